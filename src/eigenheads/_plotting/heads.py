"""One number per head: heat maps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from eigenheads._plotting.svg import BLUE, GREY, INK, ORANGE, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Effects beyond that are all "far".
_FAR = 10.0
_PALE = "#e9ecf0"
_LEVEL = LinearSegmentedColormap.from_list("level", [_PALE, BLUE, "#12304d"])
_SIGNED = LinearSegmentedColormap.from_list("signed", [ORANGE, _PALE, BLUE])
_COLUMNS = 3
# Larger maps have no room for numbers in their cells.
_MOST_COLUMNS, _MOST_ROWS = 16, 32
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
    for axes, head_map in zip(panels, maps, strict=False):
        draw_head_map(figure, axes, head_map, layers)
    for axes in panels[len(maps) :]:
        axes.set_visible(False)


def draw_head_map(
    figure: "Figure", axes: "Axes", head_map: HeadMap, layers: Sequence[int]
) -> None:
    """Draw one panel."""
    values = np.ma.masked_invalid(head_map.values)
    axes.set_facecolor(GREY)
    axes.grid(False)
    limits: dict[str, Any] = {"cmap": _LEVEL}
    if head_map.is_effect:
        largest = float(np.abs(values).max()) if values.count() else 1.0
        # Symmetric limits put zero, which is the null, at the pale middle colour.
        size = min(_FAR, max(1.0, largest))
        limits = {"cmap": _SIGNED, "vmin": -size, "vmax": size}
    # The colour of the page's text would replace INK on the cells' edges.
    mesh = axes.pcolormesh(values, edgecolors="none", linewidth=0, **limits)
    bar = figure.colorbar(mesh, ax=axes, pad=0.02, extend=_extend(head_map, values))
    bar.outline.set_visible(False)
    bar.locator = MaxNLocator(3)
    axes.set_title(plain(head_map.title), fontsize="small")
    axes.invert_yaxis()
    _label(axes, values.shape, layers)
    if head_map.found is not None:
        down, across = np.nonzero(head_map.found)
        # A pale edge shows the dot on dark cells, too.
        edge: dict[str, Any] = {"markeredgecolor": "#ffffff", "markeredgewidth": 0.6}
        # In the corner, where it leaves the number in the cell readable.
        place = (across + 0.86, down + 0.2)
        axes.plot(*place, "o", color="#101419", markersize=2.8, linestyle="", **edge)
    if values.shape[1] <= _MOST_COLUMNS and values.shape[0] <= _MOST_ROWS:
        _write_numbers(axes, mesh, values)


def _write_numbers(axes: "Axes", mesh: Any, values: Any) -> None:
    """Write each value into its cell, in ink or in white, whichever is readable."""
    largest = float(np.abs(values).max()) if values.count() else 1.0
    # Two digits of the largest number, so that small ones do not all become 0.
    places = 2 if largest == 0 else int(np.clip(1 - np.floor(np.log10(largest)), 2, 4))
    for (down, across), value in np.ndenumerate(values):
        if not np.isfinite(value):
            continue
        red, green, blue, _ = mesh.cmap(mesh.norm(value))
        is_dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.55
        axes.text(
            across + 0.47,
            down + 0.55,
            _short(value, places),
            color="#ffffff" if is_dark else "#101419",
            fontsize=4.6,
            ha="center",
            va="center",
        )


def _short(value: float, places: int = 2) -> str:
    """Return a number that fits into a cell, with this many decimals below 1.

    Examples
    --------
    >>> [_short(x) for x in (0.034, 0.999, 1.0, -2.31, 47.2, 3e-5)]
    ['.03', '1', '1', '-2.3', '47', '0']
    >>> _short(0.00324, 4)
    '.0032'
    """
    text = f"{value:.{places}f}" if abs(value) < 1 else f"{value:.2g}"
    if "e" in text:
        return text.replace("e+0", "e").replace("e+", "e")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    text = text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text
    return "0" if text in ("", "-", "-0") else text


def _extend(head_map: HeadMap, values: Any) -> str:
    if not head_map.is_effect or not values.count():
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
