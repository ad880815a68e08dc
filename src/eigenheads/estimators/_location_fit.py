"""Fit the single-location head: screen starts, refine the best, choose its length."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.optimize import OptimizeResult

from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location_coordinates import (
    Coordinates,
    coordinates_of_parts,
    default_shrinkage,
    radius_moments,
)
from eigenheads.estimators._location_head import squared_radii
from eigenheads.estimators._location_loss import SQUARED
from eigenheads.estimators._location_objective import (
    Objective,
    minimise,
    minimise_sparse,
)
from eigenheads.estimators._location_problem import Problem, Solution
from eigenheads.estimators._location_sharpen import sharpened
from eigenheads.estimators._location_start import (
    Start,
    directions_of_parts,
    starts,
)

# All starts take the first number of iterations, the best two the second.
_SCREEN_ITERATIONS = (5, 10)
# A weight below the tolerance divided by the exponential of this does not count.
_MARGIN = 3.0
# Times that the tokens that count are chosen before all are taken.
_ROUNDS = 3


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
    directions = directions_of_parts(problem, coordinates)
    for index, direction in enumerate(random_directions):
        directions[f"random {index}"] = [direction]
    origin, precision = coordinates.mean, None
    if problem.head == "radial":
        precision = coordinates.precision()
        problem, coordinates = _with_radius(problem, coordinates, precision, shrinkage)
        directions = _with_radius_start(directions)
    smooth = replace(problem, l1_ratio=0.0)
    name, flat = _best_start(smooth, coordinates, directions, report)
    objective = Objective(smooth, coordinates)
    # Good enough to see which tokens are attended to, when a second stage follows.
    tol = problem.tol * (10 if problem.coherence > 0 else 1)
    result = _refined(objective, smooth, flat, tol=tol)
    n_iter = int(result.nit)
    attended = _attended(objective, result.x)
    if problem.coherence > 0 and attended is not None:
        objective = Objective(smooth, coordinates, attended)
        result = _refined(objective, smooth, result.x, tol=problem.tol)
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


def _refined(
    objective: Objective, problem: Problem, flat: FloatArray, *, tol: float
) -> OptimizeResult:
    """Minimise over the tokens that count, until the others change nothing.

    Most tokens of a long bag have a weight that no sum notices. The minimum over the
    rest is that over all if there the two gradients differ by less than `tol`; if they
    do not, tokens are chosen again, and in the end all of them are taken.
    """
    n_iter = 0
    for _ in range(_ROUNDS):
        key = objective.raw(flat)[0][0]
        rest = problem.attentive(key, max(0.0, _MARGIN - np.log(tol)))
        if rest is None:
            break
        small = Objective(rest, objective.coordinates, objective.attended)
        left = problem.max_iter - n_iter
        with small.loss.threads():
            result = minimise(small, flat, max_iter=left, tol=tol)
        n_iter += int(result.nit)
        flat = result.x
        with objective.loss.threads():
            value, gradient = objective(flat)
        agrees = np.abs(gradient - result.jac).max() <= tol
        if agrees or n_iter >= problem.max_iter:
            result.fun, result.nit = value, n_iter
            return result
    left = problem.max_iter - n_iter
    with objective.loss.threads():
        result = minimise(objective, flat, max_iter=left, tol=tol)
    result.nit += n_iter
    return result


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
    """Give every token minus half its squared radius, which scores read last."""

    def change(bags: Bags) -> Bags:
        radii = squared_radii(bags.tokens, coordinates.mean, precision)
        radii *= -0.5
        return replace(bags, radii=radii)

    problem = problem.mapped(change)
    return problem, coordinates.with_column(*radius_moments(problem), shrinkage)


def _attended(objective: Objective, flat: FloatArray) -> FloatArray | None:
    r"""Return the direction of the mean attended token, in whitened coordinates.

    For tokens with an elliptical law it is that of the key: selection along
    :math:`k` moves the mean by a multiple of :math:`\Sigma k`. And it is a mean over
    all bags, so it varies less than a key that the targets alone determine.
    """
    rows, _ = objective.raw(flat)
    total, weight = objective.loss.attended(rows[0])
    d = len(total)  # without the radius, whose entry is zero
    mean = np.zeros(len(objective.coordinates.mean))
    mean[:d] = total - weight * objective.coordinates.mean[:d]
    attended = objective.coordinates.pulled_back(mean)
    length = float(np.linalg.norm(attended))
    return attended / length if length > 1e-8 else None


def _with_radius_start(
    directions: dict[str, list[FloatArray]],
) -> dict[str, list[FloatArray]]:
    """Give keys an entry for the radius: zero, and one key that is the radius alone.

    Moments are those of the tokens: which token differs by its size they do not say.
    """
    longer = {
        name: [np.append(direction, 0.0) for direction in some]
        for name, some in directions.items()
    }
    width = len(next(iter(longer.values()))[0])
    return {**longer, "radius": [np.eye(width)[-1]]}


def _best_start(
    problem: Problem,
    coordinates: Coordinates,
    directions: dict[str, list[FloatArray]],
    report: Callable[[str], None],
) -> tuple[str, FloatArray]:
    """Compare the starts after some iterations; return the best with its name."""
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
