"""Differences of variants from a baseline, family by family, with intervals."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from eigenheads.plotting._svg import BLUE, GREEN, GREY, INK, ORANGE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Columns = Mapping[str, NDArray[np.float64]]
_WELL = 10.0


def draw_variants(
    figure: "Figure",
    table: Columns,
    names: Sequence[str],
    baselines: Sequence[int],
    families: Sequence[str],
    *,
    label: str = "points, less symmetric",
) -> None:
    """Draw each variant's accuracy less its baseline's, and what its layer does.

    Parameters
    ----------
    figure
        Empty.
    table
        ``accuracy`` (models, conditions, seeds) and ``clean``, ``flagged``,
        ``self_weight`` (models, seeds).
    names
        Of the models; the first is plain attention.
    baselines
        Index of each model's baseline.
    families
        Of the conditions. Only conditions that cost plain attention ten points count.
    label
        What the differences are.
    """
    plain = table["clean"][0].mean() - table["accuracy"][0].mean(axis=1)
    counts = plain >= _WELL
    panels = [("clean", table["clean"])]
    for family in dict.fromkeys(families):
        own = counts & (np.array(families) == family)
        if own.any():
            title = f"{family} ({own.sum()} count)"
            panels.append((title, table["accuracy"][:, own].mean(axis=1)))
    gaps = {title: values - values[list(baselines)] for title, values in panels}
    draw_gaps(figure, gaps, table, names, label=label)


def draw_gaps(
    figure: "Figure",
    gaps: Mapping[str, NDArray[np.float64]],
    table: Columns,
    names: Sequence[str],
    *,
    label: str,
) -> None:
    """Draw paired differences with intervals over seeds, and what the layers do.

    Parameters
    ----------
    figure
        Empty.
    gaps
        By title: models by seeds.
    table
        ``flagged`` and ``self_weight``, models by seeds.
    names
        Of the models.
    label
        What the differences are.
    """
    axes: Any = figure.subplots(1, len(gaps) + 1, sharey=True, squeeze=False)[0]
    for panel, (title, values) in zip(axes, gaps.items(), strict=False):
        _draw_gaps(panel, values)
        panel.set_title(title)
    figure.supxlabel(label, fontsize="small")
    _draw_layer(axes[-1], table)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()


def _draw_gaps(axes: "Axes", gaps: NDArray[np.float64]) -> None:
    n = gaps.shape[1]
    error = gaps.std(axis=1, ddof=1) / np.sqrt(n) if n > 1 else 0 * gaps[:, 0]
    half = stats.t.ppf(0.975, max(n - 1, 1)) * error
    at = np.arange(len(gaps))
    mean = gaps.mean(axis=1)
    for sure, color in (
        (mean - half > 0, GREEN),
        (mean + half < 0, ORANGE),
        (np.abs(mean) <= half, GREY),
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
    shown = (("flagged", "s", ORANGE, "share of S"), ("self_weight", "o", BLUE, "self"))
    for name, marker, color, label in shown:
        mean = table[name].mean(axis=1)
        axes.plot(mean, at, marker, color=color, markersize=4, label=label)
    axes.set_xlim(-0.05, 1.05)
    axes.set_title("first layer")
    axes.legend(loc="best")


def draw_convergence(figure: "Figure", table: Columns, names: Sequence[str]) -> None:
    """Draw loss and accuracy along training, and final gains, paired by seed.

    Parameters
    ----------
    figure
        Empty.
    table
        ``steps`` (records), ``loss`` and ``accuracy`` (kinds, seeds, records).
    names
        Of the kinds; the first is the one to compare with.
    """
    axes: Any = figure.subplots(1, 3)
    colors = (GREY, BLUE, GREEN)
    for panel, (name, title) in zip(
        axes,
        (("loss", "training loss"), ("accuracy", "test accuracy, percent")),
        strict=False,
    ):
        for runs, label, color in zip(table[name], names, colors, strict=True):
            n = runs.shape[0]
            half = stats.t.ppf(0.975, n - 1) * runs.std(axis=0, ddof=1) / np.sqrt(n)
            mean = runs.mean(axis=0)
            panel.fill_between(
                table["steps"], mean - half, mean + half, color=color, alpha=0.15
            )
            panel.plot(
                table["steps"], mean, "o-", markersize=3, color=color, label=label
            )
        panel.set(title=title, xlabel="step")
    axes[0].set_yscale("log")
    axes[0].legend()
    final = table["accuracy"][:, :, -1]
    _draw_gaps(axes[2], final - final[:1])
    axes[2].set(title="final accuracy, paired", xlabel="points, less the first")
    axes[2].set_yticks(range(len(names)), names)
    axes[2].invert_yaxis()
