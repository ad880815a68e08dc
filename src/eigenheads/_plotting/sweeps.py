"""Maps and curves of a sweep, with theory's lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._checks import shown
from eigenheads._plotting.svg import BLUE, INK, ORANGE
from eigenheads._typing import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Positive values that span more than this are drawn on a logarithmic axis.
_LOG_SPAN = 20.0
_MOST_TICKS = 7
# Maps whose largest number is so many times the median, and so many times the least,
# have logarithmic colours.
_DWARFED, _WIDE = 30.0, 1e3


@dataclass(frozen=True)
class SweepAxis:
    """One parameter of a grid: its values in increasing order, and how to draw them."""

    name: str
    values: FloatArray
    labels: tuple[str, ...]
    order: NDArray[np.intp]
    is_log: bool

    @classmethod
    def of(cls, name: str, values: Sequence[Any]) -> "SweepAxis":
        """Make the axis; texts and truth values stand side by side in their order.

        Examples
        --------
        >>> SweepAxis.of("d", [1e6, 1e2]).is_log
        True
        """
        if isinstance(values[0], bool | str):
            places = np.arange(len(values), dtype=np.float64)
            labels = tuple(shown(value, limit=14) for value in values)
            return cls(name, places, labels, np.arange(len(values)), False)
        numbers = np.array(values, dtype=np.float64)
        order = np.argsort(numbers)
        ordered = numbers[order]
        labels = tuple(f"{number:.3g}" for number in ordered)
        is_log = _is_logarithmic(ordered)
        return cls(name, ordered, labels, order, is_log)

    @property
    def edges(self) -> FloatArray:
        """Where the cells of a map begin and end."""
        at = np.log(self.values) if self.is_log else self.values
        middle = (at[1:] + at[:-1]) / 2
        edges = np.concatenate(
            [[2 * at[0] - middle[0]], middle, [2 * at[-1] - middle[-1]]]
        )
        return np.exp(edges) if self.is_log else edges

    def show(self, axis: Any) -> None:
        """Put scale, ticks and name on an axis of a panel."""
        axis.axes.set(**{f"{axis.axis_name}scale": "log" if self.is_log else "linear"})
        step = -(-len(self.values) // _MOST_TICKS)
        axis.set_ticks(self.values[::step], self.labels[::step])
        axis.set_ticks([], minor=True)
        axis.set_label_text(self.name)


def _is_logarithmic(ordered: FloatArray) -> bool:
    """Return whether values span much, or have steps more even in their logarithms."""
    if ordered[0] <= 0:
        return False
    steps, ratios = np.diff(ordered), np.diff(np.log(ordered))
    if ordered[-1] > _LOG_SPAN * ordered[0] or len(steps) < 2:
        return bool(ordered[-1] > _LOG_SPAN * ordered[0])
    return bool(np.ptp(ratios) / ratios.mean() < 0.1 < np.ptp(steps) / steps.mean())


@dataclass(frozen=True)
class SweepPanel:
    """One number over the grid.

    Attributes
    ----------
    title
        What it is.
    mean, error
        Mean over seeds and its standard error, one entry a point, in the grid's order.
    label, line_at, line
        Theory's line: its name, places along the axes, and a number at each that is
        zero on the line.
    """

    title: str
    mean: FloatArray
    error: FloatArray | None
    label: str
    line_at: list[FloatArray] | None
    line: FloatArray | None


def draw_sweep(
    figure: "Figure",
    *,
    axes: Sequence[SweepAxis],
    panels: Sequence[SweepPanel],
    columns: int,
) -> None:
    """Draw heat maps over two axes, or curves over one."""
    rows = -(-len(panels) // columns)
    places: NDArray[Any] = figure.subplots(rows, columns, squeeze=False)
    for place, panel in zip(places.flat, panels, strict=False):
        if len(axes) == 2:
            _draw_map(figure, place, axes, panel)
        else:
            _draw_curve(place, axes[0], panel)
        place.set_title(panel.title)
        if place.get_legend_handles_labels()[0]:
            place.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18))
    for place in places.flat[len(panels) :]:
        place.set_axis_off()


def _draw_map(
    figure: "Figure", place: "Axes", axes: Sequence[SweepAxis], panel: SweepPanel
) -> None:
    x, y = axes
    mean = panel.mean[np.ix_(x.order, y.order)]
    image = place.pcolormesh(
        x.edges,
        y.edges,
        mean.T,
        cmap="viridis",
        norm="log" if _is_dwarfed(mean) else "linear",
        rasterized=False,
    )
    figure.colorbar(image, ax=place)
    if panel.line is not None and panel.line_at is not None:
        _draw_contour(place, panel.line_at, panel.line, panel.label)
    x.show(place.xaxis)
    y.show(place.yaxis)
    place.set_xlim(*x.edges[[0, -1]])
    place.set_ylim(*y.edges[[0, -1]])
    place.grid(False)


def _is_dwarfed(mean: FloatArray) -> bool:
    """Return whether a few large numbers would leave one colour to all others."""
    known = mean[np.isfinite(mean)]
    if not known.size or known.min() <= 0:
        return False
    largest = known.max()
    return bool(largest > _DWARFED * np.median(known) and largest > _WIDE * known.min())


def _draw_contour(
    place: "Axes", at: list[FloatArray], line: FloatArray, label: str
) -> None:
    known = line[np.isfinite(line)]
    crosses = known.size > 0 and known.min() < 0 < known.max()
    if not crosses:
        where = "all above" if known.size and known.min() >= 0 else "all below"
        place.plot([], [], color=ORANGE, label=f"{label}: {where}")
        return
    masked = np.ma.masked_invalid(line.T)
    for color, width in (("#ffffff", 3.2), (ORANGE, 1.8)):
        place.contour(*at, masked, levels=[0.0], colors=[color], linewidths=[width])
    place.plot([], [], color=ORANGE, label=label)


def _draw_curve(place: "Axes", x: SweepAxis, panel: SweepPanel) -> None:
    mean = panel.mean[x.order]
    if panel.error is None:
        place.plot(x.values, mean, "o-", color=BLUE)
    else:
        place.errorbar(x.values, mean, panel.error[x.order], fmt="o-", color=BLUE)
    if panel.line is not None and panel.line_at is not None:
        signs = np.sign(panel.line)
        for index in np.flatnonzero(signs[1:] * signs[:-1] < 0):
            cross = _crossing(panel.line_at[0], panel.line, int(index))
            place.axvline(cross, color=INK, linestyle="--", label=panel.label)
    x.show(place.xaxis)


def _crossing(at: FloatArray, line: FloatArray, index: int) -> float:
    share = line[index] / (line[index] - line[index + 1])
    return float(at[index] + share * (at[index + 1] - at[index]))
