"""State of a single-location fit, and the solution that it ends with."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from scipy.optimize import OptimizeResult

from eigenheads._typing import FloatArray
from eigenheads.estimators._location._objective import (
    PenalisedLoss,
    TokenSpan,
    TokenWhitening,
)
from eigenheads.estimators._location._problem import HeadSettings, LocationData
from eigenheads.estimators._location._starts import HeadStart

_NO_WHITENING = TokenWhitening(np.zeros(0), np.ones(0), None, None, None)


@dataclass(frozen=True)
class FitState:
    """Everything that the stages of a fit know and learn.

    Parameters
    ----------
    data, settings
        What is fitted; with ``head="radial"`` one stage adds radii to the bags.
    random_directions
        Keys to try beside those from moments, one per row, in whitened coordinates.
    report
        Called with a sentence on progress.
    shrinkage
        Amount added to the pooled correlation.
    whitening, coordinates
        Whitening of the tokens, and the coordinates in which `flat` is expressed; they
        differ by the column of the radius.
    span
        Span of the tokens, if they are fewer than the features.
    precision
        Metric of the radius, for the radial head.
    directions
        Candidates for the direction of the key, by name.
    profiles
        The same with several lengths and the best values, which any penalty shares.
    attended
        Unit vectors of the mean attended token, one per head, or None before they are
        known.
    n_heads
        Number of heads so far.
    flat
        Keys, values and intercepts as one vector.
    start, value, n_iter, converged
        Name of the start, penalised loss, iterations so far, success of the last stage.
    """

    data: LocationData
    settings: HeadSettings
    random_directions: FloatArray
    report: Callable[[str], None]
    shrinkage: float = 0.0
    whitening: TokenWhitening = _NO_WHITENING
    coordinates: TokenWhitening = _NO_WHITENING
    span: TokenSpan | None = None
    precision: FloatArray | None = None
    directions: dict[str, list[FloatArray]] = field(default_factory=dict)
    profiles: list[HeadStart] = field(default_factory=list)
    attended: FloatArray | None = None
    n_heads: int = 1
    flat: FloatArray = field(default_factory=lambda: np.zeros(0))
    start: str = ""
    value: float = np.inf
    n_iter: int = 0
    converged: bool = False

    @property
    def is_sparse(self) -> bool:
        """True if the penalty has an L1 part."""
        return self.settings.alpha * self.settings.l1_ratio > 0

    def objective(self) -> PenalisedLoss:
        """Return the smooth penalised loss, in the present coordinates."""
        smooth = self.settings
        if smooth.l1_ratio:
            smooth = replace(smooth, l1_ratio=0.0)
        return PenalisedLoss(
            self.data, smooth, self.coordinates, self.attended, self.n_heads
        )

    def after(self, result: OptimizeResult) -> "FitState":
        """Return the state after a run of the optimiser."""
        return replace(
            self,
            flat=result.x,
            value=float(result.fun),
            n_iter=self.n_iter + int(result.nit),
            converged=bool(result.success),
        )


Stage: TypeAlias = Callable[[FitState], FitState]


@dataclass(frozen=True)
class HeadSolution:
    """Coefficients in the features as given, and how they were found.

    `keys` has one row per head, `values` one row per head and output.
    """

    keys: FloatArray
    values: FloatArray
    intercepts: FloatArray
    objective: float
    n_iter: int
    converged: bool
    start: str
    center: FloatArray
    precision: FloatArray | None

    def scaled(self, scale: float, constant: FloatArray) -> "HeadSolution":
        """Return the solution with outputs moved towards a constant."""
        intercepts = constant + scale * (self.intercepts - constant)
        return replace(self, values=scale * self.values, intercepts=intercepts)


def run_stages(state: FitState, stages: tuple[Stage, ...]) -> FitState:
    """Apply stages in order."""
    for stage in stages:
        state = stage(state)
    return state


def solution_of(state: FitState) -> HeadSolution:
    """Return the solution in the features as given."""
    objective = state.objective()
    rows, intercepts = objective.raw(state.flat)
    n_outputs = objective.n_outputs
    if state.span is not None:
        rows = state.span.raw(rows)
        moved = rows[objective.values] @ state.span.mean
        intercepts = intercepts - moved.reshape(-1, n_outputs).sum(axis=0)
    values = rows[objective.values]
    if state.precision is not None:
        values = values[:, :-1]  # values do not read the radius
    center = state.whitening.mean if state.span is None else state.span.mean
    return HeadSolution(
        rows[objective.keys],
        values.reshape(state.n_heads, n_outputs, -1),
        intercepts,
        objective=state.value,
        n_iter=max(state.n_iter, 1),
        converged=state.converged,
        start=state.start,
        center=center,
        precision=state.precision,
    )
