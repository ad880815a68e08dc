"""Differences of variants from a baseline, family by family, with intervals."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import NDArray
from scipy import stats

from eigenheads.plotting._svg import BLUE, GREEN, GREY, INK, ORANGE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Columns = Mapping[str, NDArray[np.float64]]
_WELL = 10.0
_HOLLOW: Any = {"markersize": 5, "markerfacecolor": "none"}


def draw_variants(
    figure: "Figure",
    table: Columns,
    names: Sequence[str],
    baselines: Sequence[int],
    families: Sequence[str],
    *,
    label: str = "points of accuracy, less symmetric attention’s",
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
    lost = table["clean"][0].mean() - table["accuracy"][0].mean(axis=1)
    panels = [("clean", table["clean"])]
    for family in dict.fromkeys(families):
        all_ = np.array(families) == family
        own = all_ & (lost >= _WELL)
        if own.any():
            title = (
                f"{family}\n{own.sum()} of {all_.sum()} count,"
                f"\n{names[0]} loses {lost[own].mean():.0f}"
            )
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
        By title: models by seeds; lines after the first of a title are small print.
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
        _set_title(panel, title)
    figure.supxlabel(f"{label} (better to the right)", fontsize="small")
    _draw_layer(axes[-1], table)
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


def _set_title(axes: "Axes", title: str) -> None:
    axes.set_title(title, fontsize="small")


def _draw_gaps(axes: "Axes", gaps: NDArray[np.float64]) -> None:
    n = gaps.shape[1]
    error = gaps.std(axis=1, ddof=1) / np.sqrt(n) if n > 1 else 0 * gaps[:, 0]
    half = stats.t.ppf(0.975, max(n - 1, 1)) * error
    at = np.arange(len(gaps))
    mean = gaps.mean(axis=1)
    baseline = (gaps == 0).all(axis=1)
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
        mean = table[name].mean(axis=1)
        axes.plot(mean, at, marker, color=color, markersize=4, label=label)
    axes.set_xlim(-0.05, 1.05)
    axes.set_title("first layer, as trained", fontsize="small")


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
        panel.set(title=title, xlabel="step (bands: 95 % over seeds)")
    axes[0].set_yscale("log")
    axes[0].yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes[0].yaxis.set_major_formatter("{x:g}")
    axes[0].yaxis.set_minor_formatter(NullFormatter())
    axes[0].legend()
    final = table["accuracy"][:, :, -1]
    _draw_gaps(axes[2], final - final[:1])
    axes[2].set(
        title="final accuracy, paired over seeds",
        xlabel=f"points, less {names[0]}’s (95 % interval)",
    )
    axes[2].set_yticks(range(len(names)), names)
    axes[2].set_ylim(-0.4, len(names) - 0.6)
    axes[2].invert_yaxis()
