"""Mean pooling: the head with a key of zero, as a rival of attention."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location._head import pool_tokens
from eigenheads.estimators._location._losses import LOGISTIC, SQUARED, columns
from eigenheads.estimators._location._minimise import minimise
from eigenheads.estimators._location._problem import LabelledBags
from eigenheads.estimators._location._starts import solve_positive
from eigenheads.estimators._location._state import FitState

# Penalties of mean pooling, in units of the variance of pooled tokens.
_POOLING = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_TINY = 1e-300
# Smallest squared singular value, as a share of the largest.
_UNRESOLVED = 1e-12
_LEAST_ALPHA = 1e-12
# Steps of Newton's method, and the width above which they cost more than L-BFGS.
_NEWTON_STEPS = 20
_WIDEST_NEWTON = 300


def fit_mean_pooling(
    state: FitState, alphas: tuple[float, ...], path: int = 0
) -> tuple[FitState, list[FloatArray]]:
    """Fit the values with a key of zero, where every token has the same weight.

    Returns the coordinates as a state, and key, values and intercepts per penalty.

    Path 0 is in standardised features, path 1 in the units of the features as given,
    where a column that rarely varies has little influence.
    """
    pooled = _in_pooling_scale(state, path)
    plain = pooled.coordinates
    state = replace(state, coordinates=plain, attended=None, start="mean")
    is_narrow = min(state.data.n_bags, len(plain.mean)) <= _WIDEST_NEWTON
    is_binary = state.settings.kind == LOGISTIC and state.data.n_outputs == 1
    if state.settings.kind == SQUARED or (is_binary and is_narrow):
        path_of = _logistic_path if is_binary else _ridge_path
        state = replace(state, converged=True)
        return state, list(path_of(pooled, alphas))
    size = (1 + state.data.n_outputs) * len(plain.mean) + state.data.n_outputs
    flat, found = np.zeros(size), list[FloatArray]()
    for alpha in alphas:
        settings = state.settings
        objective = _with_alpha(pooled, alpha).objective()
        result = minimise(objective, flat, max_iter=settings.max_iter, tol=settings.tol)
        flat = result.x.copy()
        flat[: len(plain.mean)] = 0.0  # the key, which is zero up to rounding
        found.append(flat)
        state = state.after(result)
    return state, found


def left_out_outputs(
    state: FitState, alphas: tuple[float, ...], path: int, number: NDArray[np.int64]
) -> Iterator[FloatArray]:
    """Yield for each penalty the output on every bag of a fit to the others.

    A ridge regression without one row needs no fit of its own: the residual of the row
    is divided by one minus its leverage. The penalty stays that of all bags.

    Parameters
    ----------
    state
        Squared loss; the bags are in memory.
    alphas, path
        As in :func:`fit_mean_pooling`.
    number
        Number of each bag among the different bags; equal ones are left out together.
    """
    table = _pooled_rows(_in_pooling_scale(state, path))
    # Equal bags are one row with the sum of their weights.
    _, first, place = np.unique(number, return_index=True, return_inverse=True)
    weights = np.bincount(place, table.weights).astype(np.float64)
    targets, leverages = table.targets[first], 0.0 * weights
    mean = np.zeros(targets.shape[1])
    if state.settings.has_intercept:
        mean, leverages = weights @ targets, weights
    roots = np.sqrt(weights)[:, None]
    scores, _ = _decomposed(roots * table.scores[first])
    squares, aims = (scores**2).sum(axis=0), roots * (targets - mean)
    for alpha in alphas:
        shares = scores / (squares + max(alpha, _LEAST_ALPHA))
        rest = np.maximum(1 - leverages - (shares * scores).sum(axis=1), _UNRESOLVED)
        residuals = (aims - shares @ (scores.T @ aims)) / rest[:, None] / roots
        yield np.asarray((targets - residuals)[place])


def mean_outputs(state: FitState, flat: FloatArray, means: Bags) -> FloatArray:
    """Return the outputs of a fit of mean pooling on bags of one token."""
    coordinates, n_outputs = state.coordinates, state.data.n_outputs
    d = len(coordinates.mean)
    values = flat[d:-n_outputs].reshape(n_outputs, d) / coordinates.scale
    intercepts = flat[-n_outputs:] - values @ coordinates.mean
    return np.asarray(means.tokens @ values[:, : means.tokens.shape[1]].T + intercepts)


def _in_pooling_scale(state: FitState, path: int) -> FitState:
    """Return the state with pooled bags, in the features of a path."""
    # Not whitened: small eigenvalues of the few pooled tokens are noise.
    plain = replace(state.coordinates, whitening=None, metric=None)
    plain = replace(plain, scale=_pooling_scale(plain.scale, path))
    data = state.data.mapped(mean_bags)
    return replace(state, coordinates=plain, attended=None, start="mean", data=data)


@dataclass(frozen=True)
class _PooledTable:
    """Pooled tokens with one row per bag, as the product of `scores` and `axes`.

    No axes are those of the features.
    """

    scores: FloatArray
    axes: FloatArray | None
    center: FloatArray
    targets: FloatArray
    weights: FloatArray

    def flat(self, slopes: FloatArray, intercepts: FloatArray) -> FloatArray:
        """Return key, values and intercepts from slopes on the scores."""
        values = slopes.T if self.axes is None else slopes.T @ self.axes
        key = np.zeros(len(self.center))
        return np.concatenate([key, values.ravel(), intercepts - values @ self.center])


def _pooled_rows(pooled: FitState) -> _PooledTable:
    """Return centred pooled tokens as `scores`, on the axes of the features."""
    coordinates, rows, targets, weights = pooled.coordinates, [], [], []
    for batch in pooled.data.read():
        d = batch.bags.tokens.shape[1]
        table = np.zeros((len(batch.bags), len(coordinates.mean)))
        table[:, :d] = batch.bags.tokens - coordinates.mean[:d]
        rows.append(table / coordinates.scale)
        targets.append(columns(batch.targets))
        weights.append(batch.weights / pooled.data.weight)
    features, shares = np.concatenate(rows), np.concatenate(weights)
    center = np.zeros(features.shape[1])
    if pooled.settings.has_intercept:
        center = shares @ features
    return _PooledTable(
        features - center, None, center, np.concatenate(targets), shares
    )


def _pooled_table(pooled: FitState) -> _PooledTable:
    table = _pooled_rows(pooled)
    # The decomposition is of weighted rows, in which a ridge regression is diagonal.
    roots = np.sqrt(table.weights)[:, None]
    left, axes = _decomposed(roots * table.scores)
    return replace(table, scores=left / roots, axes=axes)


def _decomposed(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return scores and orthonormal axes whose product is `rows`.

    From the smaller matrix of inner products, which takes less time than a singular
    value decomposition; directions that it cannot resolve are left out.
    """
    is_wide = len(rows) < rows.shape[1]
    squares, vectors = np.linalg.eigh(rows @ rows.T if is_wide else rows.T @ rows)
    kept = squares > _UNRESOLVED * max(float(squares[-1]), _TINY)
    if not is_wide:
        axes = vectors[:, kept].T
        return rows @ axes.T, axes
    roots = np.sqrt(squares[kept])
    return vectors[:, kept] * roots, vectors[:, kept].T @ rows / roots[:, None]


def _ridge_path(pooled: FitState, alphas: tuple[float, ...]) -> Iterator[FloatArray]:
    """Yield key, values and intercepts of ridge regressions."""
    table = _pooled_rows(pooled)
    mean = np.zeros(table.targets.shape[1])
    if pooled.settings.has_intercept:
        mean = table.weights @ table.targets
    roots = np.sqrt(table.weights)[:, None]
    rows, aims = roots * table.scores, roots * (table.targets - mean)
    is_wide = len(rows) < rows.shape[1]
    gram, sides = (rows @ rows.T, aims) if is_wide else (rows.T @ rows, rows.T @ aims)
    # A factorisation per penalty takes less time than one decomposition for all.
    for alpha in alphas:
        matrix = gram.copy()
        matrix.flat[:: len(matrix) + 1] += max(alpha, _LEAST_ALPHA)
        slopes = solve_positive(matrix, sides)
        yield table.flat(rows.T @ slopes if is_wide else slopes, mean)


def _logistic_path(pooled: FitState, alphas: tuple[float, ...]) -> list[FloatArray]:
    """Return key, value and intercept of logistic regressions, by Newton's method."""
    table = _pooled_table(pooled)
    signs = 1 - 2 * table.targets[:, 0]
    ones = np.full((len(signs), 1), float(pooled.settings.has_intercept))
    rows = np.hstack([table.scores, ones])
    penalty = np.ones(rows.shape[1])
    penalty[-1] = 0.0
    found, at = dict[float, FloatArray](), np.zeros(rows.shape[1])

    def cost(at: FloatArray, alpha: float) -> float:
        losses = np.logaddexp(0.0, signs * (rows @ at))
        return float(table.weights @ losses + 0.5 * alpha * penalty @ at**2)

    for alpha in sorted(alphas, reverse=True):
        least = cost(at, alpha)
        for _ in range(_NEWTON_STEPS):
            wrong = expit(signs * (rows @ at))
            slope = rows.T @ (table.weights * signs * wrong) + alpha * penalty * at
            curved = rows * (table.weights * wrong * (1 - wrong))[:, None]
            curvature = rows.T @ curved
            curvature.flat[:: len(curvature) + 1] += alpha * penalty + 1e-10
            step = solve_positive(curvature, -slope)
            size = 1.0
            while cost(at + size * step, alpha) > least and size > 1e-3:
                size /= 2
            at = at + size * step
            least = cost(at, alpha)
            if np.abs(slope).max() <= pooled.settings.tol:
                break
        found[alpha] = table.flat(at[:-1, None], at[-1:])
    return [found[alpha] for alpha in alphas]


def _with_alpha(state: FitState, alpha: float) -> FitState:
    return replace(state, settings=replace(state.settings, alpha=alpha))


def mean_bags(bags: Bags) -> Bags:
    """Return bags of one token, the mean of the bag; its radius is not used."""
    weights = np.repeat(1.0 / bags.lengths, bags.lengths)
    means = pool_tokens(bags.tokens, bags.offsets, weights)
    radii = None if bags.radii is None else np.zeros(len(bags))
    return Bags(means, np.arange(len(bags) + 1), radii)


def pooling_alphas(
    batch: LabelledBags, state: FitState
) -> tuple[tuple[float, ...], ...]:
    """Return the penalties of mean pooling, per path, the largest last.

    They are multiples of the mean variance of pooled features. A regression with nearly
    as many effective parameters as bags nearly interpolates; its cross-validated error
    then varies so much that it is useless. So at most half as many are allowed.
    """
    pooled = mean_bags(batch.bags).tokens - state.whitening.mean
    weights = batch.weights / batch.weights.sum()
    found = []
    for path in (0, 1):
        rows = pooled / _pooling_scale(state.whitening.scale, path)
        rows = np.sqrt(weights)[:, None] * (rows - weights @ rows)
        spectrum = np.linalg.svd(rows, compute_uv=False) ** 2
        variance = float(spectrum.sum()) / rows.shape[1]
        alphas = [factor * variance for factor in _POOLING]
        kept = [
            alpha
            for alpha in alphas
            if np.sum(spectrum / (spectrum + alpha + _TINY)) <= len(rows) / 2
        ]
        found.append(tuple(kept) or (alphas[-1],))
    return tuple(found)


def _pooling_scale(scale: FloatArray, path: int) -> FloatArray:
    """Return the scale of features in mean pooling: their own, or one for all."""
    if path == 0:
        return scale
    return np.full(len(scale), float(np.sqrt(np.mean(scale**2))))
