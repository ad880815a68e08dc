"""Parts that panels of several figures share: axes of steps, bands, categories."""

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.ticker import EngFormatter, MaxNLocator
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes


def show_steps(axes: "Axes") -> None:
    """Label the horizontal axis with few, short numbers of steps."""
    show_few_ticks(axes)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("step")


def show_few_ticks(axes: "Axes") -> None:
    """Put at most five ticks on the horizontal axis."""
    axes.xaxis.set_major_locator(MaxNLocator(5))


def draw_band(
    axes: "Axes",
    steps: NDArray[np.float64],
    curves: NDArray[np.float64],
    label: str,
    color: str,
) -> None:
    """Draw the mean of curves (n_runs, n_records) and the range of all runs."""
    low, high = curves.min(axis=0), curves.max(axis=0)
    axes.fill_between(steps, low, high, color=color, alpha=0.18, linewidth=0)
    axes.plot(steps, curves.mean(axis=0), color=color, label=label)


def category_colors(colors: "Sequence[str]") -> dict[str, Any]:
    """Return the colour map and norm that give category i the colour i."""
    norm = BoundaryNorm(np.arange(len(colors) + 1) - 0.5, len(colors))
    return {"cmap": ListedColormap(list(colors)), "norm": norm}
