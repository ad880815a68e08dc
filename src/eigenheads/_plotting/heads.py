"""One number per head: heat maps, and strips beside null distributions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from eigenheads._plotting.svg import BLUE, GREEN, GREY, INK, ORANGE, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Effects beyond that are all "far".
_FAR = 10.0
_PALE = "#e9ecf0"
_LEVEL = LinearSegmentedColormap.from_list("level", [_PALE, BLUE, "#12304d"])
_SIGNED = LinearSegmentedColormap.from_list("signed", [ORANGE, _PALE, BLUE])
_COLUMNS = 3
_NULL_COLORS = (GREY, ORANGE, GREEN)
# Half the width of a layer's column of heads.
_SPREAD = 0.3
_N_TICKS = 6


@dataclass(frozen=True, eq=False)
class HeadMap:
    """One panel.

    Attributes
    ----------
    title
        Above it.
    values
        (layers, heads); NaN is drawn grey.
    found
        (layers, heads), heads to mark; None for none.
    is_effect
        Whether the values are distances from a null, drawn around zero.
    """

    title: str
    values: NDArray[np.float64]
    found: NDArray[np.bool_] | None = None
    is_effect: bool = False


def head_maps_size(maps: Sequence[HeadMap]) -> tuple[float, float]:
    """Return a size in inches that gives every cell room."""
    n_rows = -(-len(maps) // _COLUMNS)
    n_layers, _ = maps[0].values.shape
    return 10.0, n_rows * (1.2 + min(4.0, max(0.9, 0.22 * n_layers)))


def draw_head_maps(
    figure: "Figure", maps: Sequence[HeadMap], layers: Sequence[int]
) -> None:
    """Draw one panel per map; a dot marks a head that stands out from its null.

    Parameters
    ----------
    figure
        Empty.
    maps
        Panels, all of one shape.
    layers
        Names of the rows.
    """
    n_columns = min(_COLUMNS, len(maps))
    n_rows = -(-len(maps) // n_columns)
    panels: NDArray[Any] = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    for axes, one in zip(panels, maps, strict=False):
        draw_head_map(figure, axes, one, layers)
    for axes in panels[len(maps) :]:
        axes.set_visible(False)


def draw_head_map(
    figure: "Figure", axes: "Axes", one: HeadMap, layers: Sequence[int]
) -> None:
    """Draw one panel."""
    values = np.ma.masked_invalid(one.values)
    axes.set_facecolor(GREY)
    axes.grid(False)
    limits: dict[str, Any] = {"cmap": _LEVEL}
    if one.is_effect:
        largest = float(np.abs(values).max()) if values.count() else 1.0
        # Symmetric limits put zero, which is the null, at the pale middle colour.
        size = min(_FAR, max(1.0, largest))
        limits = {"cmap": _SIGNED, "vmin": -size, "vmax": size}
    # The colour of the page's text would replace INK on the cells' edges.
    mesh = axes.pcolormesh(values, edgecolors="none", linewidth=0, **limits)
    bar = figure.colorbar(mesh, ax=axes, pad=0.02, extend=_extend(one, values))
    bar.outline.set_visible(False)
    bar.locator = MaxNLocator(3)
    axes.set_title(plain(one.title), fontsize="small")
    axes.invert_yaxis()
    _label(axes, values.shape, layers)
    if one.found is not None:
        down, across = np.nonzero(one.found)
        # A pale edge shows the dot on dark cells, too.
        edge: dict[str, Any] = {"markeredgecolor": "#ffffff", "markeredgewidth": 0.6}
        place = (across + 0.5, down + 0.5)
        axes.plot(*place, "o", color="#101419", markersize=3.6, linestyle="", **edge)


def _extend(one: HeadMap, values: Any) -> str:
    if not one.is_effect or not values.count():
        return "neither"
    # Arrows at the ends of the bar show that values lie beyond its limits.
    low, high = float(values.min()) < -_FAR, float(values.max()) > _FAR
    return {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[low, high]


def _label(axes: "Axes", shape: tuple[int, int], layers: Sequence[int]) -> None:
    n_layers, n_heads = shape
    # Negated floor division rounds up, so that the ticks are never too many.
    down = range(0, n_layers, -(-n_layers // _N_TICKS))
    across = range(0, n_heads, -(-n_heads // _N_TICKS))
    axes.set_yticks([i + 0.5 for i in down], [str(layers[i]) for i in down])
    axes.set_xticks([i + 0.5 for i in across], [str(i) for i in across])
    axes.set_xlabel("head", color=INK)
    axes.set_ylabel("layer", color=INK)
    axes.tick_params(length=0)


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
    axes.set_title(plain(one.title), fontsize="small")


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
