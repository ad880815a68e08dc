"""One number per head, layer by layer, beside its null distributions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
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

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NULL_COLORS = (GREY, ORANGE, GREEN)
# Half the width of a layer's column of heads.
_SPREAD = 0.3


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
    n_columns = max(sum(2 if one.has_map else 1 for one in row) for row in rows)
    panels: Any = figure.subplots(len(rows), n_columns, squeeze=False)
    for row, line in zip(rows, panels, strict=True):
        free = list(line)
        for one in row:
            if one.has_map:
                values = np.log10(one.values) if one.is_log else one.values
                title = one.title + (", log10" if one.is_log else "")
                names = [int(layer) for layer in one.layers]
                draw_head_map(figure, free.pop(0), HeadMap(title, values), names)
            _strip(free.pop(0), one)
        for axes in free:
            axes.set_visible(False)
    # One legend serves all panels, so every label appears once.
    known: dict[str, Any] = {}
    for axes in panels.ravel():
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            known.setdefault(label, handle)
    figure.legend(
        list(known.values()), list(known), loc="outside lower center", ncols=len(known)
    )


def _strip(axes: "Axes", one: HeadStrip) -> None:
    n_layers, n_heads = one.values.shape
    places = np.arange(n_layers)
    offsets = np.linspace(-_SPREAD, _SPREAD, n_heads) if n_heads > 1 else np.zeros(1)
    for color, (name, (mean, sd)) in zip(_NULL_COLORS, one.nulls.items(), strict=False):
        _band(axes, places, mean.mean(axis=1), sd.mean(axis=1), color, name)
    axes.plot(
        (places[:, None] + offsets).ravel(),
        one.values.ravel(),
        ".",
        color=BLUE,
        markersize=5,
        label="heads",
    )
    for style, (name, level) in zip(("--", ":"), one.references.items(), strict=False):
        axes.axhline(level, color=INK, linestyle=style, linewidth=1, label=name)
    if one.is_log:
        axes.set_yscale("log")
    axes.set_xticks(places, [str(int(layer)) for layer in one.layers])
    axes.set_xlim(-0.6, n_layers - 0.4)
    axes.set_xlabel("layer")
    axes.set_title(one.title, fontsize="small")


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
