"""Mean pooling: the head with a key of zero, as a rival of attention."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location._head import pool_tokens
from eigenheads.estimators._location._losses import SQUARED, columns
from eigenheads.estimators._location._objective import minimise
from eigenheads.estimators._location._problem import LabelledBags
from eigenheads.estimators._location._state import FitState

# Penalties of mean pooling, in units of the variance of pooled tokens.
_POOLING = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_TINY = 1e-300


def fit_mean_pooling(
    state: FitState, alphas: tuple[float, ...], path: int = 0
) -> list[FitState]:
    """Fit the values with a key of zero, where every token has the same weight.

    Path 0 is in standardised features, path 1 in the units of the features as given,
    where a column that rarely varies has little influence.
    """
    # Not whitened: small eigenvalues of the few pooled tokens are noise.
    plain = replace(state.coordinates, whitening=None, metric=None)
    plain = replace(plain, scale=_pooling_scale(plain.scale, path))
    state = replace(state, coordinates=plain, attended=None, start="mean")
    pooled = replace(state, data=state.data.mapped(mean_bags))
    if state.settings.kind == SQUARED:
        flats = _ridge_path(pooled, alphas)
        return [
            replace(_with_alpha(state, alpha), flat=flat, converged=True)
            for alpha, flat in zip(alphas, flats, strict=True)
        ]
    size = (1 + state.data.n_outputs) * len(plain.mean) + state.data.n_outputs
    flat, found = np.zeros(size), []
    for alpha in alphas:
        settings = state.settings
        objective = _with_alpha(pooled, alpha).objective()
        result = minimise(objective, flat, max_iter=settings.max_iter, tol=settings.tol)
        flat = result.x
        flat[: len(plain.mean)] = 0.0  # the key, which is zero up to rounding
        found.append(_with_alpha(state, alpha).after(result))
    return found


def _ridge_path(pooled: FitState, alphas: tuple[float, ...]) -> Iterator[FloatArray]:
    """Yield key, value and intercept of ridge regressions, from one decomposition."""
    coordinates, has_intercept = pooled.coordinates, pooled.settings.has_intercept
    rows, targets, weights = [], [], []
    for batch in pooled.data.read():
        d = batch.bags.tokens.shape[1]
        table = np.zeros((len(batch.bags), len(coordinates.mean)))
        table[:, :d] = batch.bags.tokens - coordinates.mean[:d]
        rows.append(table / coordinates.scale)
        targets.append(columns(batch.targets))
        weights.append(batch.weights / pooled.data.weight)
    features, target = np.concatenate(rows), np.concatenate(targets)
    roots = np.sqrt(np.concatenate(weights))
    center = roots**2 @ features if has_intercept else np.zeros(features.shape[1])
    mean = roots**2 @ target if has_intercept else np.zeros(target.shape[1])
    left, singular, right = np.linalg.svd(
        roots[:, None] * (features - center), full_matrices=False
    )
    along = left.T @ (roots[:, None] * (target - mean))
    for alpha in alphas:
        shrunk = singular / (singular**2 + max(alpha, 1e-12))
        values = (shrunk[:, None] * along).T @ right
        key = np.zeros(features.shape[1])
        yield np.concatenate([key, values.ravel(), mean - values @ center])


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
