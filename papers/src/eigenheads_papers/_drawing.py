"""Drawings that figures of several papers share.

Parts of panels (axes of steps, bands, categories), paired differences from a baseline
with intervals over seeds, and one number per head beside its null distributions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from eigenheads.extend.drawing import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    HeadMap,
    draw_head_map,
)
from eigenheads_papers._statistics import student_half

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Columns = Mapping[str, NDArray[np.float64]]
_HOLLOW: Any = {"markersize": 5, "markerfacecolor": "none"}
_NULL_COLORS = (GREY, ORANGE, GREEN)
# Half the width of a layer's column of heads.
_SPREAD = 0.3


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


def category_colors(colors: Sequence[str]) -> dict[str, Any]:
    """Return the colour map and norm that give category i the colour i."""
    norm = BoundaryNorm(np.arange(len(colors) + 1) - 0.5, len(colors))
    return {"cmap": ListedColormap(list(colors)), "norm": norm}


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


def seed_intervals(
    values: NDArray[np.float64], axis: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return means over seeds, and half widths of Student's 95 % intervals.

    Seeds that are missing are NaN. A single seed has no spread, so its interval has no
    length.
    """
    n = np.isfinite(values).sum(axis=axis)
    mean = np.nanmean(values, axis=axis)
    squares = np.nansum((values - np.expand_dims(mean, axis)) ** 2, axis=axis)
    error = np.sqrt(squares / np.maximum(n - 1, 1) / n)
    return mean, student_half(error, n)


def draw_intervals(axes: "Axes", gaps: NDArray[np.float64]) -> None:
    """Draw mean differences with 95 % intervals over seeds, one row per model.

    Seeds that a model does not have are NaN.
    """
    mean, half = seed_intervals(gaps, axis=1)
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


@dataclass(frozen=True, eq=False)
class HeadStrip:
    """One number per head, layer by layer, with its null distributions.

    Attributes
    ----------
    title
        Above the panel.
    values
        (layers, heads).
    layers
        Names of the layers.
    nulls
        By name, mean and standard deviation, (layers, heads) each; a band is drawn of
        two standard deviations about the layer's mean.
    references
        Horizontal lines, by name.
    is_log
        Whether the axis is logarithmic.
    has_map
        Whether a heat map of the values is drawn beside it.
    """

    title: str
    values: NDArray[np.float64]
    layers: NDArray[np.float64]
    nulls: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]] = field(
        default_factory=dict
    )
    references: Mapping[str, float] = field(default_factory=dict)
    is_log: bool = False
    has_map: bool = False


def draw_strips(figure: "Figure", rows: Sequence[Sequence[HeadStrip]]) -> None:
    """Draw rows of strips; one with a map takes two columns."""
    n_columns = max(sum(2 if strip.has_map else 1 for strip in row) for row in rows)
    panels: Any = figure.subplots(len(rows), n_columns, squeeze=False)
    for row, line in zip(rows, panels, strict=True):
        free = list(line)
        for strip in row:
            if strip.has_map:
                values = np.log10(strip.values) if strip.is_log else strip.values
                title = strip.title + (", log10" if strip.is_log else "")
                names = [int(layer) for layer in strip.layers]
                draw_head_map(figure, free.pop(0), HeadMap(title, values), names)
            _strip(free.pop(0), strip)
        for axes in free:
            axes.set_visible(False)
    # One legend serves all panels, so every label appears once.
    handles: dict[str, Any] = {}
    for axes in panels.ravel():
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=len(handles),
    )


def _strip(axes: "Axes", strip: HeadStrip) -> None:
    n_layers, n_heads = strip.values.shape
    places = np.arange(n_layers)
    offsets = np.linspace(-_SPREAD, _SPREAD, n_heads) if n_heads > 1 else np.zeros(1)
    for color, (name, (mean, sd)) in zip(
        _NULL_COLORS, strip.nulls.items(), strict=False
    ):
        _band(axes, places, mean.mean(axis=1), sd.mean(axis=1), color, name)
    axes.plot(
        (places[:, None] + offsets).ravel(),
        strip.values.ravel(),
        ".",
        color=BLUE,
        markersize=5,
        label="heads",
    )
    for style, (name, level) in zip(
        ("--", ":"), strip.references.items(), strict=False
    ):
        axes.axhline(level, color=INK, linestyle=style, linewidth=1, label=name)
    if strip.is_log:
        axes.set_yscale("log")
    axes.set_xticks(places, [str(int(layer)) for layer in strip.layers])
    axes.set_xlim(-0.6, n_layers - 0.4)
    axes.set_xlabel("layer")
    axes.set_title(strip.title, fontsize="small")


def _band(
    axes: "Axes",
    places: Any,
    mean: NDArray[np.float64],
    sd: NDArray[np.float64],
    color: str,
    name: str,
) -> None:
    """Draw a box of two standard deviations for each layer."""
    for place, centre, spread in zip(places, mean, sd, strict=True):
        axes.fill_between(
            [place - 0.42, place + 0.42],
            centre - 2 * spread,
            centre + 2 * spread,
            color=color,
            alpha=0.3,
            linewidth=0,
            label=name if place == 0 else None,
        )
        axes.hlines(centre, place - 0.42, place + 0.42, color=color, linewidth=1)
