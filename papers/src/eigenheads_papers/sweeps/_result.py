"""Result of a sweep: a table, its means over seeds, and a map of them.

The map shows heat maps over two axes or curves over one, with theory's lines.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eigenheads.extend import (
    FloatArray,
    Got,
    check_choice,
    fail,
    html_table,
    require,
)
from eigenheads.extend.drawing import BLUE, INK, ORANGE, new_figure, render_svg
from eigenheads_papers._core import Boundary, Cells
from eigenheads_papers._parameters import Value
from eigenheads_papers.sweeps._grid import SweepPlan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Points along each axis at which theory's line is computed, if it is cheap.
_FINE = 41
# A figure with more panels than this is not drawn.
_MAX_PANELS = 12
# Positive values with a larger ratio of last to first get a logarithmic axis.
_LOG_SPAN = 20.0
_MOST_TICKS = 7
# Colours are logarithmic if the largest number is this many times the median, and
# this many times the smallest.
_DWARFED, _WIDE = 30.0, 1e3
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# Colour of points without a number, which no other point has: a quarter of "Greys".
_BLANK = "#d9d9d9"
# Numbers from 0 to 1 that differ by this much, such as cosines and shares, have the
# whole of it as their scale, so that panels can be compared.
_SPREAD = 0.3


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """Result of a complete sweep.

    Attributes
    ----------
    key, preset
        Experiment and preset.
    axes
        Values of each parameter of the grid.
    seeds
        Seeds that ran at each point.
    table
        One row per cell, sorted by point, then seed. Columns are the parameters of the
        grid, ``seed``, and the measured numbers; NaN where parameters were refused.
    folder
        Folder of the table, the map and the plan.
    computed
        Number of cells that this call computed; the others were stored before.
    refused
        Distinct error messages of the points whose parameters were refused.
    damaged
        Files of the store that could not be read; their cells were computed again.
    drawing
        The map that :meth:`plot` draws; None if there is no axis, or too many panels.
    """

    key: str
    preset: str
    axes: Mapping[str, tuple[Value, ...]]
    seeds: tuple[int, ...]
    table: Mapping[str, NDArray[Any]]
    folder: Path
    computed: int
    refused: tuple[str, ...]
    damaged: tuple[Path, ...]
    drawing: "SweepMap | None" = field(default=None, repr=False, compare=False)

    @property
    def names(self) -> list[str]:
        """Names of the measured numbers."""
        return [name for name in self.table if name not in self.axes and name != "seed"]

    def over_seeds(self, name: str) -> NDArray[np.float64]:
        """Return a measured number as an array: one axis per parameter, then seeds."""
        check_choice("name", name, self.names)
        shape = (*(len(values) for values in self.axes.values()), len(self.seeds))
        return np.asarray(self.table[name]).reshape(shape)

    def mean(self, name: str) -> NDArray[np.float64]:
        """Return the mean over seeds of a measured number, on the grid."""
        return np.asarray(self.over_seeds(name).mean(axis=-1))

    def plot(self) -> "Figure":
        """Return the map as a Matplotlib figure: heat maps, or curves over one axis.

        Panels of one quantity share a scale of colours, and grey points have no value.
        """
        if self.drawing is None:
            contract = "a sweep with an axis of two values, and at most 12 panels"
            got = Got(f"axes {', '.join(self.axes) or 'none'}")
            fail("grid", contract, got)
        return self.drawing.figure()

    def _repr_html_(self) -> str:
        """Return the means over seeds as a table for notebooks."""
        means = [self.mean(name).ravel() for name in self.names]
        first_rows = range(0, len(self.table["seed"]), len(self.seeds))
        rows = [
            [*(self.table[name][row] for name in self.axes)]
            + [f"{mean[point]:.4g}" for mean in means]
            for point, row in enumerate(first_rows)
        ]
        header = [*self.axes, *self.names]
        title = f"{self.key}, preset {self.preset}: means of {len(self.seeds)} seeds"
        notes = [f"Refused: {message}" for message in self.refused[:3]]
        return html_table(
            title, header, rows, notes=[*notes, str(self.folder)], n_texts=0
        )

    def to_frame(self) -> Any:
        """Return the table as a pandas DataFrame (extra ``frame``)."""
        pandas = require("pandas", "pandas", extra="frame")
        return pandas.DataFrame(dict(self.table))


@dataclass(frozen=True)
class SweepAxis:
    """One parameter of a grid: sorted values, labels and scale of its axis."""

    name: str
    values: FloatArray
    labels: tuple[str, ...]
    order: NDArray[np.intp]
    is_log: bool

    @classmethod
    def of(cls, name: str, values: Sequence[Any]) -> "SweepAxis":
        """Make the axis; strings and booleans keep their order.

        Examples
        --------
        >>> SweepAxis.of("d", [1e6, 1e2]).is_log
        True
        """
        if isinstance(values[0], bool | str):
            places = np.arange(len(values), dtype=np.float64)
            labels = tuple(_label(value) for value in values)
            return cls(name, places, labels, np.arange(len(values)), False)
        numbers = np.array(values, dtype=np.float64)
        order = np.argsort(numbers)
        ordered = numbers[order]
        labels = tuple(_tick(number) for number in ordered)
        is_log = _is_logarithmic(ordered)
        return cls(name, ordered, labels, order, is_log)

    @property
    def edges(self) -> FloatArray:
        """Edges of the cells of a heat map."""
        at = np.log(self.values) if self.is_log else self.values
        middle = (at[1:] + at[:-1]) / 2
        # An outer cell extends as far beyond its value as on its inner side.
        edges = np.concatenate(
            [[2 * at[0] - middle[0]], middle, [2 * at[-1] - middle[-1]]]
        )
        return np.exp(edges) if self.is_log else edges

    def show(self, axis: Any) -> None:
        """Set scale, ticks and name of an axis of a panel."""
        axis.axes.set(**{f"{axis.axis_name}scale": "log" if self.is_log else "linear"})
        step = -(-len(self.values) // _MOST_TICKS)
        axis.set_ticks(self.values[::step], self.labels[::step])
        axis.set_ticks([], minor=True)
        axis.set_label_text(self.name)


def _label(value: bool | str) -> str:
    """Return a text of at most 14 characters."""
    text = repr(value)
    return text if len(text) <= 14 else f"{text[:13]}…"


def _tick(number: float) -> str:
    """Return a short label: powers of ten as such, and no exponent below 10 000.

    Examples
    --------
    >>> _tick(1e6), _tick(2.5e-5), _tick(1000.0), _tick(0.05)
    ('10⁶', '2.5·10⁻⁵', '1000', '0.05')
    """
    if number == 0 or 1e-3 <= abs(number) < 1e4:
        return f"{number:.3g}" if abs(number) < 1e3 else f"{number:.4g}"
    factor, _, power = f"{number:.2e}".partition("e")
    factor = factor.rstrip("0").rstrip(".")
    raised = f"10{str(int(power)).translate(_RAISED)}"
    return {"1": raised, "-1": f"-{raised}"}.get(factor, f"{factor}·{raised}")


def _is_logarithmic(ordered: FloatArray) -> bool:
    """Return whether values have a large ratio, or are evenly spaced in logarithm."""
    if ordered[0] <= 0:
        return False
    steps, ratios = np.diff(ordered), np.diff(np.log(ordered))
    if ordered[-1] > _LOG_SPAN * ordered[0] or len(steps) < 2:
        return bool(ordered[-1] > _LOG_SPAN * ordered[0])
    # Values with a small ratio get a logarithmic axis only if their ratios are even and
    # their steps are not.
    return bool(np.ptp(ratios) / ratios.mean() < 0.1 < np.ptp(steps) / steps.mean())


@dataclass(frozen=True)
class SweepPanel:
    """Data of one panel: one number over the grid.

    Attributes
    ----------
    title
        Title of the panel.
    quantity
        Name of the number; panels of one quantity share their scale of colours.
    mean, error
        Mean over seeds and its standard error, one entry per point of the grid.
    label, line_at, line
        Theory's line: its name, points along the axes, and at each point a number
        that is zero on the line.
    """

    title: str
    quantity: str
    mean: FloatArray
    error: FloatArray | None
    label: str
    line_at: list[FloatArray] | None
    line: FloatArray | None


@dataclass(frozen=True)
class SweepMap:
    """Map of a sweep: panels over the same axes.

    Attributes
    ----------
    draw
        Fills a figure.
    size
        Width and height in inches.
    """

    draw: Callable[["Figure"], None]
    size: tuple[float, float]

    def svg(self) -> bytes:
        """Return the map as SVG."""
        return render_svg(self.draw, size=self.size)

    def figure(self) -> "Figure":
        """Return the map as a Matplotlib figure."""
        return new_figure(self.draw, size=self.size)


def make_map(
    plan: SweepPlan, cells: Cells[Any], result: SweepResult
) -> SweepMap | None:
    """Return heat maps over two axes or curves over one; None without an axis.

    Further axes give one panel per value, if these are few.
    """
    # Axes with one value are constants of the map, not axes.
    long = [name for name, values in plan.axes.items() if len(values) > 1]
    shown, panelled = long[:2], long[2:]
    names = [name for name in cells.shows if name in result.names]
    choices = [
        dict(zip(panelled, values, strict=True))
        for values in itertools.product(*(plan.axes[name] for name in panelled))
    ]
    if not shown or not 0 < len(names) * len(choices) <= _MAX_PANELS:
        return None
    axes = [SweepAxis.of(name, plan.axes[name]) for name in shown]
    panels = [
        _panel(plan, cells.boundaries.get(name), result, name, shown, at)
        for name in names
        for at in choices
    ]
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    draw = partial(draw_sweep_panels, axes=axes, panels=panels, columns=columns)
    return SweepMap(draw, size=(4.6 * columns + 0.6, 3.6 * rows + 0.4))


def _panel(
    plan: SweepPlan,
    boundary: Boundary[Any] | None,
    result: SweepResult,
    name: str,
    shown: list[str],
    at: dict[str, Value],
) -> SweepPanel:
    # The axes of the map stay whole. A further axis takes the value of this panel, and
    # an axis with one value takes that one.
    index = tuple(
        slice(None) if axis in shown else values.index(at.get(axis, values[0]))
        for axis, values in plan.axes.items()
    )
    chosen = result.over_seeds(name)[index]
    n_seeds = chosen.shape[-1]
    lines = None if boundary is None else _lines(plan, boundary, shown, at)
    return SweepPanel(
        title=", ".join([name, *(f"{axis} = {value}" for axis, value in at.items())]),
        quantity=f"{name}, mean of {n_seeds} seeds" if n_seeds > 1 else name,
        mean=chosen.mean(axis=-1),
        error=chosen.std(axis=-1, ddof=1) / np.sqrt(n_seeds) if n_seeds > 1 else None,
        label=boundary.label if boundary is not None else "",
        line_at=None if lines is None else lines[0],
        line=None if lines is None else lines[1],
    )


def _lines(
    plan: SweepPlan, boundary: Boundary[Any], shown: list[str], at: dict[str, Value]
) -> tuple[list[FloatArray], FloatArray] | None:
    """Return points along each axis, and the signed distance to theory's line there."""
    if any(isinstance(plan.axes[name][0], bool | str) for name in shown):
        return None
    places = [_places(plan.axes[name], boundary.between) for name in shown]
    # These set the axes with a single value; those of the map are set point by point.
    fixed = {name: values[0] for name, values in plan.axes.items()}
    base = dataclasses.replace(plan.base, **{**fixed, **at})
    distances = [
        _distance(boundary, base, dict(zip(shown, point, strict=True)))
        for point in itertools.product(*places)
    ]
    return places, np.array(distances).reshape([len(place) for place in places])


def _distance(boundary: Boundary[Any], base: Any, point: dict[str, float]) -> float:
    values = {
        name: round(value) if isinstance(getattr(base, name), int) else float(value)
        for name, value in point.items()
    }
    try:
        return float(boundary.distance(dataclasses.replace(base, **values)))
    except ValueError:  # theory does not allow these parameters
        return np.nan


def _places(values: tuple[Any, ...], between: bool) -> FloatArray:
    ordered = np.sort(np.array(values, dtype=np.float64))
    if not between:
        return ordered
    is_log = SweepAxis.of("", values).is_log
    return (np.geomspace if is_log else np.linspace)(ordered[0], ordered[-1], _FINE)


def draw_sweep_panels(
    figure: "Figure",
    *,
    axes: Sequence[SweepAxis],
    panels: Sequence[SweepPanel],
    columns: int,
) -> None:
    """Draw panels: heat maps over two axes, or curves over one."""
    rows = -(-len(panels) // columns)
    places: NDArray[Any] = figure.subplots(rows, columns, squeeze=False)
    norms = _norms(panels) if len(axes) == 2 else {}
    for place, panel in zip(places.flat, panels, strict=False):
        if len(axes) == 2:
            _draw_map(figure, place, axes, panel, norms[panel.quantity])
        else:
            _draw_curve(place, axes[0], panel)
            place.set_ylabel(panel.quantity)
        place.set_title(panel.title)
        if place.get_legend_handles_labels()[0]:
            place.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18))
    for place in places.flat[len(panels) :]:
        place.set_axis_off()


def _norms(panels: Sequence[SweepPanel]) -> dict[str, dict[str, Any]]:
    """Return the scale of colours of each quantity: its type and its ends."""
    norms = {}
    for quantity in dict.fromkeys(panel.quantity for panel in panels):
        means = [panel.mean.ravel() for panel in panels if panel.quantity == quantity]
        finite = np.concatenate(means)
        finite = finite[np.isfinite(finite)]
        ends = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
        if ends[0] >= 0 and ends[1] <= 1 and ends[1] - ends[0] > _SPREAD:
            ends = (0.0, 1.0)
        norms[quantity] = {"is_log": _is_dwarfed(finite), "ends": ends}
    return norms


def _draw_map(
    figure: "Figure",
    place: "Axes",
    axes: Sequence[SweepAxis],
    panel: SweepPanel,
    norm: dict[str, Any],
) -> None:
    x, y = axes
    mean = panel.mean[np.ix_(x.order, y.order)]
    image = place.pcolormesh(
        x.edges,
        y.edges,
        mean.T,
        cmap="viridis",
        norm="log" if norm["is_log"] else "linear",
        rasterized=False,
    )
    image.set_clim(*norm["ends"])
    figure.colorbar(image, ax=place, label=panel.quantity)
    if not np.isfinite(mean).all():
        # Figures have no ground of their own, so these cells are drawn, too.
        blank = np.where(np.isfinite(mean), np.nan, 0.25)
        place.pcolormesh(
            x.edges, y.edges, blank.T, cmap="Greys", vmin=0, vmax=1, rasterized=False
        )
        label = "no value: refused, or not measured"
        place.plot([], [], "s", color=_BLANK, label=label)
    if panel.line is not None and panel.line_at is not None:
        _draw_contour(place, panel.line_at, panel.line, panel.label)
    x.show(place.xaxis)
    y.show(place.yaxis)
    place.set_xlim(*x.edges[[0, -1]])
    place.set_ylim(*y.edges[[0, -1]])
    place.grid(False)


def _is_dwarfed(mean: FloatArray) -> bool:
    """Return whether a few large numbers would give all others the same colour."""
    finite = mean[np.isfinite(mean)]
    if not finite.size or finite.min() <= 0:
        return False
    largest = finite.max()
    return bool(
        largest > _DWARFED * np.median(finite) and largest > _WIDE * finite.min()
    )


def _draw_contour(
    place: "Axes", at: list[FloatArray], line: FloatArray, label: str
) -> None:
    finite = line[np.isfinite(line)]
    crosses = finite.size > 0 and finite.min() < 0 < finite.max()
    if not crosses:
        # No zero inside the map: the legend tells on which side all of it lies.
        where = "all above" if finite.size and finite.min() >= 0 else "all below"
        place.plot([], [], color=ORANGE, label=f"{label}: {where}")
        return
    # A white line below the orange one keeps it visible on every colour.
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
        # The line crosses zero between neighbours of opposite sign. Where theory has no
        # value there is NaN, whose comparison is false.
        signs = np.sign(panel.line)
        for index in np.flatnonzero(signs[1:] * signs[:-1] < 0):
            # The distance to the line is taken as linear between two neighbours.
            start, end = panel.line[index : index + 2]
            low, high = panel.line_at[0][index : index + 2]
            cross = low + start / (start - end) * (high - low)
            place.axvline(cross, color=INK, linestyle="--", label=panel.label)
    x.show(place.xaxis)
