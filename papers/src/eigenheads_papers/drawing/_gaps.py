"""Paired differences of models from a baseline, with intervals over seeds."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import NDArray
from scipy import stats

from eigenheads.extend.drawing import BLUE, GREEN, GREY, INK, ORANGE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Columns = Mapping[str, NDArray[np.float64]]
_HOLLOW: Any = {"markersize": 5, "markerfacecolor": "none"}


def draw_gaps(
    figure: "Figure",
    gaps: Mapping[str, NDArray[np.float64]],
    table: Columns,
    names: Sequence[str],
    *,
    label: str,
    layers: str = "first layer",
) -> None:
    """Draw paired differences with intervals over seeds, and what layers do.

    Parameters
    ----------
    figure
        Empty.
    gaps
        By title: models by seeds, NaN for seeds that a model does not have; lines after
        the first of a title are small print.
    table
        ``flagged`` and ``self_weight``, models by seeds, likewise.
    names
        Names of the models.
    label
        Description of the differences.
    layers
        Layers that `table` describes.
    """
    axes: Any = figure.subplots(1, len(gaps) + 1, sharey=True, squeeze=False)[0]
    for panel, (title, values) in zip(axes, gaps.items(), strict=False):
        draw_intervals(panel, values)
        panel.set_title(title, fontsize="small")
    figure.supxlabel(f"{label} (better to the right)", fontsize="small")
    _draw_layer(axes[-1], table)
    axes[-1].set_title(f"{layers}, as trained", fontsize="small")
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    keys = [
        Line2D([], [], color=color, marker="o", markersize=4, label=text)
        for color, text in (
            (GREEN, "better, 95 % interval over seeds"),
            (ORANGE, "worse"),
            (GREY, "within noise"),
        )
    ]
    keys.append(
        Line2D([], [], color=INK, marker="o", ls="", label="baseline", **_HOLLOW)
    )
    shown = [*keys, *axes[-1].get_legend_handles_labels()[0]]
    figure.legend(handles=shown, loc="outside upper left", ncols=len(shown))


def draw_intervals(axes: "Axes", gaps: NDArray[np.float64]) -> None:
    """Draw mean differences with 95 % intervals over seeds, one row per model.

    Seeds that a model does not have are NaN.
    """
    n = np.isfinite(gaps).sum(axis=1)
    mean = np.nanmean(gaps, axis=1)
    # A single seed has no spread, so its interval has no length.
    squares = np.nansum((gaps - mean[:, None]) ** 2, axis=1)
    error = np.sqrt(squares / np.maximum(n - 1, 1) / n)
    half = stats.t.ppf(0.975, np.maximum(n - 1, 1)) * error
    at = np.arange(len(gaps))
    # The differences of the baseline from itself are exactly zero.
    baseline = (np.nan_to_num(gaps) == 0).all(axis=1)
    axes.plot(mean[baseline], at[baseline], "o", color=INK, **_HOLLOW)
    for sure, color in (
        (mean - half > 0, GREEN),
        (mean + half < 0, ORANGE),
        ((np.abs(mean) <= half) & ~baseline, GREY),
    ):
        axes.errorbar(
            mean[sure],
            at[sure],
            xerr=half[sure],
            fmt="o",
            color=color,
            markersize=4,
            linewidth=1.2,
        )
    axes.axvline(0.0, color=INK, linewidth=0.8)


def _draw_layer(axes: "Axes", table: Columns) -> None:
    at = np.arange(len(table["flagged"]))
    shown = (
        ("flagged", "s", INK, "share of keys in S"),
        ("self_weight", "D", BLUE, "weight of a token on itself"),
    )
    for name, marker, color, label in shown:
        values = table[name]
        # A measurement that a model does not have is not drawn.
        has = np.isfinite(values).any(axis=1)
        mean = np.full(len(values), np.nan)
        mean[has] = np.nanmean(values[has], axis=1)
        axes.plot(mean, at, marker, color=color, markersize=4, label=label)
    axes.set_xlim(-0.05, 1.05)


def label_decades(axes: "Axes") -> None:
    """Use a logarithmic vertical axis with ticks at 1, 2 and 5 of each decade."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
