"""The map of a sweep: means over seeds, with theory's lines on top."""

import dataclasses
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._plotting.svg import render_svg
from eigenheads._plotting.sweeps import SweepAxis, SweepPanel, draw_sweep
from eigenheads._typing import FloatArray
from eigenheads.experiments._core import Boundary, Cells
from eigenheads.experiments._grid import Plan, Value

# Points along each axis at which theory's line is computed, where it is cheap.
_FINE = 41
# More panels than this are no map any more.
_MAX_PANELS = 12


def draw_map(
    plan: Plan, cells: Cells[Any], over_seeds: Callable[[str], NDArray[np.float64]]
) -> bytes | None:
    """Return the SVG: a heat map of two axes or a curve of one; None without an axis.

    Further axes make a panel for each of their values, if these are few.
    """
    long = [name for name, values in plan.axes.items() if len(values) > 1]
    shown, others = long[:2], long[2:]
    names = [name for name in cells.shows if _is_there(over_seeds, name)]
    choices = list(itertools.product(*(plan.axes[name] for name in others)))
    if not shown or not 0 < len(names) * len(choices) <= _MAX_PANELS:
        return None
    axes = [SweepAxis.of(name, plan.axes[name]) for name in shown]
    panels = [
        _panel(
            plan,
            cells,
            over_seeds(name),
            name,
            shown,
            dict(zip(others, at, strict=True)),
        )
        for name in names
        for at in choices
    ]
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    draw = partial(draw_sweep, axes=axes, panels=panels, columns=columns)
    return render_svg(draw, size=(4.2 * columns + 0.6, 3.6 * rows + 0.4))


def _is_there(over_seeds: Callable[[str], Any], name: str) -> bool:
    try:
        over_seeds(name)
    except ValueError:
        return False
    return True


def _panel(
    plan: Plan,
    cells: Cells[Any],
    numbers: NDArray[np.float64],
    name: str,
    shown: list[str],
    at: dict[str, Value],
) -> SweepPanel:
    index: tuple[Any, ...] = tuple(
        slice(None)
        if axis in shown
        else (plan.axes[axis].index(at[axis]) if axis in at else 0)
        for axis in plan.axes
    )
    chosen = numbers[index]
    n_seeds = chosen.shape[-1]
    error = chosen.std(axis=-1, ddof=1) / np.sqrt(n_seeds) if n_seeds > 1 else None
    title = ", ".join([name, *(f"{axis} = {value}" for axis, value in at.items())])
    boundary = cells.boundaries.get(name)
    lines = _lines(plan, boundary, shown, at) if boundary is not None else None
    return SweepPanel(
        title=f"{title} (mean of {n_seeds} seeds)",
        mean=chosen.mean(axis=-1),
        error=error,
        label=boundary.label if boundary is not None else "",
        line_at=None if lines is None else lines[0],
        line=None if lines is None else lines[1],
    )


def _lines(
    plan: Plan, boundary: Boundary[Any], shown: list[str], at: dict[str, Value]
) -> tuple[list[FloatArray], FloatArray] | None:
    """Return where theory was asked along each axis, and the signed distances there."""
    if any(isinstance(plan.axes[name][0], bool | str) for name in shown):
        return None
    places = [_places(plan.axes[name], boundary.between) for name in shown]
    fixed = {name: values[0] for name, values in plan.axes.items()}
    base = dataclasses.replace(plan.base, **{**fixed, **at})
    kinds = [type(plan.axes[name][0]) for name in shown]
    distances = [
        _distance(boundary, base, shown, kinds, point)
        for point in itertools.product(*places)
    ]
    return places, np.array(distances).reshape([len(place) for place in places])


def _distance(
    boundary: Boundary[Any],
    base: Any,
    shown: list[str],
    kinds: list[type],
    point: tuple[float, ...],
) -> float:
    values = {
        name: round(value) if kind is int else float(value)
        for name, kind, value in zip(shown, kinds, point, strict=True)
    }
    try:
        return float(boundary.distance(dataclasses.replace(base, **values)))
    except ValueError:  # no such parameters
        return np.nan


def _places(values: tuple[Any, ...], between: bool) -> FloatArray:
    ordered = np.sort(np.array(values, dtype=np.float64))
    if not between:
        return ordered
    is_log = SweepAxis.of("", values).is_log
    return (np.geomspace if is_log else np.linspace)(ordered[0], ordered[-1], _FINE)
