"""Panels of a robustness table: what each model keeps, condition by condition."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from eigenheads._plotting.svg import BLUE, GREEN, GREY, ORANGE, PURPLE, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = (BLUE, ORANGE, GREEN, PURPLE, GREY, "#b0455a", "#8a7a2f", "#3aa0a8")
_MARKERS = "os^Dv<>P"
_NAMES = {"fgsm": "FGSM", "pgd": "PGD", "spsa": "SPSA", "square": "Square"}
_AXES = {"tokens replaced": "share of tokens", "words swapped": "share of words"}


class Row(Protocol):
    """A row of a robustness table."""

    @property
    def model(self) -> str:
        """Name of the model."""

    @property
    def metric(self) -> str:
        """Name of the measure."""

    @property
    def condition(self) -> str:
        """Under what."""

    @property
    def level(self) -> float | None:
        """Level of the condition."""

    @property
    def value(self) -> float:
        """Measured value."""

    @property
    def low(self) -> float:
        """Lower end of the interval."""

    @property
    def high(self) -> float:
        """Upper end of the interval."""


def robustness_size(rows: Sequence[Row]) -> tuple[float, float]:
    """Return a size in inches at which the panels of these rows can be read."""
    n_panels = len(_curves(rows)) + bool(_errors(rows))
    height = 2.9 * math.ceil(n_panels / 3)
    return 10.0, max(height, 2.9) + 0.2 * len({row.model for row in rows}) / 3


def draw_robustness(figure: "Figure", rows: Sequence[Row]) -> None:
    """Draw accuracy against strength, a panel a condition, and corruption errors.

    Parameters
    ----------
    figure
        Empty.
    rows
        ``Robustness.rows``.
    """
    models = list(dict.fromkeys(row.model for row in rows))
    curves, errors = _curves(rows), _errors(rows)
    n_panels = max(len(curves) + bool(errors), 1)
    n_columns = min(3, n_panels)
    grid: Any = figure.subplots(
        math.ceil(n_panels / n_columns), n_columns, squeeze=False
    )
    panels = list(grid.flat)
    for panel in panels[n_panels:]:
        panel.set_axis_off()
    for panel, name in zip(panels, curves, strict=False):
        _draw_curves(panel, rows, name, models)
    if errors:
        _draw_errors(panels[len(curves)], rows, errors, models)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(4, max(len(models), 1))
    )


def _curves(rows: Sequence[Row]) -> list[str]:
    """Return the conditions that have levels and are not corruptions."""
    corruptions = {r.condition for r in rows if r.metric == "mean corruption error"}
    return list(
        dict.fromkeys(
            r.condition
            for r in rows
            if r.level is not None and r.condition not in corruptions
        )
    )


def _errors(rows: Sequence[Row]) -> list[str]:
    return list(
        dict.fromkeys(r.condition for r in rows if r.metric == "mean corruption error")
    )


def _draw_curves(
    axes: "Axes", rows: Sequence[Row], condition: str, models: list[str]
) -> None:
    for index, model in enumerate(models):
        of_model = [r for r in rows if r.model == model and r.condition == condition]
        metric = of_model[0].metric if of_model else ""
        clean = [
            r
            for r in rows
            if (r.model, r.condition, r.metric) == (model, "clean", metric)
        ]
        # The clean value is the point of the curve at strength zero.
        shown = sorted(clean + of_model, key=lambda r: r.level or 0.0)
        at = np.array([r.level or 0.0 for r in shown])
        _draw_line(axes, at, shown, index, model)
    axes.set_xlabel(_AXES.get(condition, "budget, in 1/255"))
    name = _NAMES.get(condition, condition)
    metric = next(r.metric for r in rows if r.condition == condition)
    axes.set_title(plain(f"{name}: {metric}"))
    if metric == "top-1":
        axes.set_ylim(-0.03, 1.03)


def _draw_line(
    axes: "Axes", at: Any, shown: Sequence[Row], index: int, label: str
) -> None:
    color, marker = _COLORS[index % len(_COLORS)], _MARKERS[index % len(_MARKERS)]
    value = np.array([r.value for r in shown])
    low, high = (np.array([getattr(r, end) for r in shown]) for end in ("low", "high"))
    axes.fill_between(at, low, high, color=color, alpha=0.15, linewidth=0)
    axes.plot(at, value, marker=marker, markersize=4, color=color, label=plain(label))


def _draw_errors(
    axes: "Axes", rows: Sequence[Row], conditions: list[str], models: list[str]
) -> None:
    """Draw a line a corruption, a point a model, with its interval."""
    for index, model in enumerate(models):
        # Models are shifted within a line, so that their intervals do not overlap.
        shift = 0.6 * ((index + 0.5) / len(models) - 0.5)
        by_condition = {
            r.condition: r
            for r in rows
            if r.model == model and r.metric == "mean corruption error"
        }
        at = np.array([conditions.index(name) + shift for name in by_condition])
        value = np.array([r.value for r in by_condition.values()])
        # An interval need not contain its value, and negative lengths are an error.
        ends = np.array(
            [[r.value - r.low, r.high - r.value] for r in by_condition.values()]
        )
        axes.errorbar(
            value,
            at,
            xerr=np.maximum(ends.T, 0.0),
            fmt=_MARKERS[index % len(_MARKERS)],
            markersize=3.5,
            linewidth=1,
            color=_COLORS[index % len(_COLORS)],
            label=plain(model),
        )
    axes.set_yticks(range(len(conditions)), list(map(plain, conditions)))
    axes.invert_yaxis()
    axes.set_title("mean corruption error")
    axes.set_xlim(left=0.0)
