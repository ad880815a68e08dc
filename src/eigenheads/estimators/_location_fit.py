"""Minimise the penalised loss of the single-location head."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.optimize import OptimizeResult, minimize

from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location_coordinates import (
    Coordinates,
    coordinates_of_parts,
    default_shrinkage,
    last_column,
)
from eigenheads.estimators._location_head import squared_radii
from eigenheads.estimators._location_loss import SQUARED
from eigenheads.estimators._location_problem import Problem, Solution
from eigenheads.estimators._location_sharpen import sharpened
from eigenheads.estimators._location_start import (
    Start,
    directions_of_parts,
    starts,
)

# All starts take the first number of iterations, the best two the second.
_SCREEN_ITERATIONS = (5, 10)
_MEMORY = 20


class Objective:
    r"""Penalised loss as a function of one flat vector of whitened coordinates.

    .. math::

        \text{mean loss} + \alpha \sum_{u \in \{k, v_1, \dots\}}
        \Bigl( \tfrac{1 - r}{2} \lVert u \rVert_W^2 + r \lVert D u \rVert_1 \Bigr)
        + \tfrac{(1 - r) c}{2} \bigl(
        \lVert k \rVert_W^2 - \langle k, t \rangle_W^2 \bigr)

    with :math:`D` the pooled scale of the features, :math:`W` the whitened metric,
    :math:`r` the `l1_ratio`, :math:`c` the `coherence` and :math:`t` the unit vector
    `attended`, without which the last term is left out. The L1 norm is added by
    :func:`minimise_sparse`. For ``head="radial"`` the last coordinate is that of the
    radius: values do not read it, and the last term leaves it free.
    """

    def __init__(
        self,
        problem: Problem,
        coordinates: Coordinates,
        attended: FloatArray | None = None,
    ) -> None:
        self.coordinates = coordinates
        self.has_intercept = problem.has_intercept
        self.loss = problem.loss()
        self.ridge = problem.alpha * (1 - problem.l1_ratio)
        self.lasso = problem.alpha * problem.l1_ratio
        self.coherence = problem.coherence * (1 - problem.l1_ratio)
        self.attended = attended
        self.has_radius = problem.head == "radial"
        self.shape = (1 + problem.n_outputs, len(coordinates.mean))

    def split(self, flat: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return key and values as rows, and the intercepts."""
        size = self.shape[0] * self.shape[1]
        return flat[:size].reshape(self.shape), flat[size:]

    def raw(self, flat: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return rows and intercepts in the features as given."""
        whitened, centred = self.split(flat)
        rows = self.coordinates.raw(whitened)
        return rows, centred - rows[1:] @ self.coordinates.mean

    def __call__(self, flat: FloatArray) -> tuple[float, FloatArray]:
        """Return value and gradient."""
        rows, intercepts = self.raw(flat)
        loss, by_raw, by_intercepts = self.loss(rows, intercepts)
        by_raw[1:] -= np.outer(by_intercepts, self.coordinates.mean)
        by_rows = self.coordinates.pulled_back(by_raw)
        whitened = self.split(flat)[0]
        measured = self.coordinates.measured(whitened)
        loss += 0.5 * self.ridge * float((measured * whitened).sum())
        by_rows += self.ridge * measured
        if self.attended is not None:
            along = whitened[0] @ self.attended
            off = measured[0] - along * self.attended
            if self.has_radius:
                off[-1] = 0.0
            loss += 0.5 * self.coherence * float(whitened[0] @ off)
            by_rows[0] += self.coherence * off
        if self.has_radius:
            by_rows[1:, -1] = 0.0
        if not self.has_intercept:
            by_intercepts[:] = 0.0
        return loss, np.concatenate([by_rows.ravel(), by_intercepts])


def minimise(
    objective: Objective, flat: FloatArray, *, max_iter: int, tol: float
) -> OptimizeResult:
    """Run L-BFGS."""
    return minimize(
        objective,
        flat,
        jac=True,
        method="L-BFGS-B",
        options=_options(max_iter, tol),
    )


def minimise_sparse(
    objective: Objective, flat: FloatArray, *, max_iter: int, tol: float
) -> OptimizeResult:
    """Run L-BFGS-B on positive and negative parts, so that zeros are exact."""
    size = objective.shape[0] * objective.shape[1]

    def joined(parts: FloatArray) -> FloatArray:
        return np.concatenate(
            [parts[:size] - parts[size : 2 * size], parts[2 * size :]]
        )

    def value_and_gradient(parts: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = objective(joined(parts))
        value += objective.lasso * float(parts[: 2 * size].sum())
        by = gradient[:size]
        both = [by + objective.lasso, objective.lasso - by, gradient[size:]]
        return value, np.concatenate(both)

    result = minimize(
        value_and_gradient,
        np.concatenate(
            [np.maximum(flat[:size], 0), np.maximum(-flat[:size], 0), flat[size:]]
        ),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, None)] * (2 * size) + [(None, None)] * (len(flat) - size),
        options=_options(max_iter, tol),
    )
    result.x = joined(result.x)
    return result


def _options(max_iter: int, tol: float) -> dict[str, float]:
    return {
        "maxiter": max_iter,
        "maxfun": 4 * max_iter + 20,
        "maxcor": _MEMORY,
        "gtol": tol,
        "ftol": tol * 1e-3,
    }


def fit_head(
    problem: Problem,
    random_directions: FloatArray,
    report: Callable[[str], None],
) -> Solution:
    """Screen the starts, refine the best, and return it in the features as given."""
    center = problem.head != "erf" and problem.has_intercept
    shrinkage = problem.shrinkage
    if shrinkage is None:
        shrinkage = default_shrinkage(problem.bags.tokens.shape[1], problem.size)
    coordinates = coordinates_of_parts(problem, center=center, shrinkage=shrinkage)
    origin, precision = coordinates.mean, None
    if problem.head == "radial":
        precision = coordinates.precision()
        problem, coordinates = _with_radius(problem, coordinates, precision, shrinkage)
    smooth = replace(problem, l1_ratio=0.0)
    name, flat = _best_start(smooth, coordinates, random_directions, report)
    objective = Objective(smooth, coordinates)
    # Good enough to see which tokens are attended to, when a second stage follows.
    tol = problem.tol * (10 if problem.coherence > 0 else 1)
    with objective.loss.threads():
        result = minimise(objective, flat, max_iter=problem.max_iter, tol=tol)
    n_iter = int(result.nit)
    attended = _attended(objective, result.x)
    if problem.coherence > 0 and attended is not None:
        objective = Objective(smooth, coordinates, attended)
        with objective.loss.threads():
            result = minimise(
                objective, result.x, max_iter=problem.max_iter, tol=problem.tol
            )
        n_iter += int(result.nit)
    if problem.alpha * problem.l1_ratio > 0:
        objective, result = _sparse(problem, objective, result.x)
        n_iter += int(result.nit)
    report(f"refined {name}: objective {result.fun:.6g} after {n_iter} iterations")
    if _has_free_length(problem):
        rows, _ = objective.split(result.x)
        longer, intercepts = sharpened(problem, coordinates, rows)
        result.x = np.concatenate([longer.ravel(), intercepts])
        result.fun = Objective(smooth, coordinates)(result.x)[0]
        lengths = np.linalg.norm(longer[0]), np.linalg.norm(rows[0])
        report(f"length of the key: {lengths[0]:.4g} instead of {lengths[1]:.4g}")
    rows, intercepts = objective.raw(result.x)
    return Solution(
        rows[0],
        rows[1:],
        intercepts,
        objective=float(result.fun),
        n_iter=max(n_iter, 1),
        converged=bool(result.success),
        start=name,
        center=origin,
        precision=precision,
    )


def _has_free_length(problem: Problem) -> bool:
    """Whether the values given a key are a ridge regression on attended tokens."""
    is_sparse = problem.alpha * problem.l1_ratio > 0
    return problem.kind == SQUARED and problem.head != "erf" and not is_sparse


def _sparse(
    problem: Problem, smooth: Objective, flat: FloatArray
) -> tuple[Objective, OptimizeResult]:
    """Refine in standardised features, where the L1 norm is a sum over coordinates."""
    coordinates, attended = smooth.coordinates, smooth.attended
    rows, intercepts = smooth.split(flat)
    flat = np.concatenate([coordinates.standardised(rows).ravel(), intercepts])
    plain = coordinates.without_whitening()
    if attended is not None:
        attended = plain.measured(coordinates.standardised(attended))
    objective = Objective(problem, plain, attended)
    with objective.loss.threads():
        result = minimise_sparse(
            objective, flat, max_iter=problem.max_iter, tol=problem.tol
        )
    return objective, result


def _with_radius(
    problem: Problem,
    coordinates: Coordinates,
    precision: FloatArray,
    shrinkage: float,
) -> tuple[Problem, Coordinates]:
    """Add minus half the squared radius as the last feature of every token."""

    def change(bags: Bags) -> Bags:
        n, d = bags.tokens.shape
        tokens = np.empty((n, d + 1), dtype=bags.tokens.dtype)
        tokens[:, :d] = bags.tokens
        tokens[:, d] = squared_radii(bags.tokens, coordinates.mean, precision)
        tokens[:, d] *= -0.5
        return Bags(tokens, bags.offsets)

    problem = problem.mapped(change)
    return problem, coordinates.with_column(*last_column(problem), shrinkage)


def _attended(objective: Objective, flat: FloatArray) -> FloatArray | None:
    r"""Return the direction of the mean attended token, in whitened coordinates.

    For tokens with an elliptical law it is that of the key: selection along
    :math:`k` moves the mean by a multiple of :math:`\Sigma k`. And it is a mean over
    all bags, so it varies less than a key that the targets alone determine.
    """
    rows, _ = objective.raw(flat)
    total, weight = objective.loss.attended(rows[0])
    mean = total - weight * objective.coordinates.mean
    attended = objective.coordinates.pulled_back(mean)
    if objective.has_radius:
        attended[-1] = 0.0
    length = float(np.linalg.norm(attended))
    return attended / length if length > 1e-8 else None


def _best_start(
    problem: Problem,
    coordinates: Coordinates,
    random_directions: FloatArray,
    report: Callable[[str], None],
) -> tuple[str, FloatArray]:
    """Compare the starts after some iterations; return the best with its name."""
    directions = directions_of_parts(problem, coordinates)
    if problem.head == "radial":
        directions["radius"] = [np.eye(len(coordinates.mean))[-1]]
    for index, direction in enumerate(random_directions):
        directions[f"random {index}"] = [direction]
    screen = problem.screen()
    begun = {
        start.name: _flat(start, problem.n_outputs)
        for start in starts(
            directions,
            screen.bags,
            screen.responses,
            screen.weights,
            coordinates,
            head=problem.head,
            alpha=problem.alpha,
        )
    }
    objective = Objective(screen, coordinates)
    with objective.loss.threads():
        for iterations in _SCREEN_ITERATIONS:
            results = {
                name: minimise(
                    objective,
                    flat,
                    max_iter=min(iterations, problem.max_iter),
                    tol=problem.tol,
                )
                for name, flat in begun.items()
            }
            for name, result in results.items():
                report(f"start {name}: objective {result.fun:.6g}")
            ranked = sorted(results, key=lambda name: float(results[name].fun))
            begun = {name: results[name].x for name in ranked[:2]}
    return ranked[0], results[ranked[0]].x


def _flat(start: Start, n_outputs: int) -> FloatArray:
    rows = np.vstack([start.key, start.values])
    return np.concatenate([rows.ravel(), np.zeros(n_outputs)])
