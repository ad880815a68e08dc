"""Stages of a fit that do not depend on the penalty: coordinates of the tokens."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location._data import (
    MANY_NUMBERS,
    LocationData,
    column_order,
    in_standard_order,
    rounded,
)
from eigenheads.estimators._location._head import RELATIVE
from eigenheads.estimators._location._state import (
    CHUNK,
    Coordinates,
    FitState,
    Stage,
    weighted_gram,
)

# Weight of the identity beside the pooled correlation. The correlation contains what
# decides, so that whitening by it alone would penalise the key along itself.
_SHRINKAGE = 3.0
# Variances below this, of standardised tokens, are not told from rounding.
_LEAST_VARIANCE = 1e-3
# Above this width an eigendecomposition costs more than it saves.
_WIDEST = 2_000


def standardise(state: FitState) -> FitState:
    """Standardise the features, and sort them so that only content decides."""
    data, settings = state.data, state.settings
    center = settings.head in RELATIVE and settings.has_intercept
    mean, scale = _moments(data, center=center)
    coordinates = Coordinates(mean, scale, np.arange(len(mean)))

    def standardised(bags: Bags) -> Bags:
        return replace(bags, tokens=coordinates.standardised(bags.tokens))

    if not data.is_stream:
        (batch,) = data.read()
        order = column_order(rounded(batch.bags.tokens, mean, scale))
        coordinates = replace(coordinates, order=order)
    return replace(state, data=data.mapped(standardised), coordinates=coordinates)


def sort_bags(data: LocationData) -> LocationData:
    """Return bags in memory in an order that only their content decides."""
    if data.is_stream:
        return data
    (batch,) = data.read()
    batch = in_standard_order(batch, *_moments(data, center=True))
    return replace(data, read=lambda: [batch])


def _moments(data: LocationData, *, center: bool) -> tuple[FloatArray, FloatArray]:
    """Return mean and scale of pooled tokens; a token has the weight of its bag.

    Without `center`, moments are taken about zero: the erf head depends on the origin.
    """
    total, first, second = 0.0, np.zeros(data.n_features), np.zeros(data.n_features)
    for batch in data.read():
        weights = np.repeat(batch.weights, batch.bags.lengths)
        total += float(weights.sum())
        for start in range(0, len(weights), CHUNK):
            rows = batch.bags.tokens[start : start + CHUNK].astype(np.float64)
            first += weights[start : start + CHUNK] @ rows
    mean = first / total if center else first * 0.0
    for batch in data.read():
        weights = np.repeat(batch.weights, batch.bags.lengths)
        for start in range(0, len(weights), CHUNK):
            rows = batch.bags.tokens[start : start + CHUNK] - mean
            second += weights[start : start + CHUNK] @ rows**2
    variance = second / total
    # A column that is constant up to rounding keeps scale 1: its coefficient is 0.
    rounding = 1e-14 * (variance + mean**2)
    return mean, np.where(variance > rounding, np.sqrt(variance), 1.0)


def add_constant(state: FitState) -> FitState:
    """Sigmoid head: give every token a feature that is one.

    Its coefficient in the key is the threshold of the weights, that in the value lets
    the head count tokens.
    """
    if state.settings.head != "sigmoid":
        return state
    return _with_column(state, lambda bags: np.ones(len(bags.tokens)))


def _with_column(state: FitState, column: Callable[[Bags], FloatArray]) -> FitState:
    def widened(bags: Bags) -> Bags:
        added = column(bags).astype(bags.tokens.dtype)[:, None]
        return replace(bags, tokens=np.hstack([bags.tokens, added]))

    directions = np.pad(state.random_directions, ((0, 0), (0, 1)))
    data = replace(state.data.mapped(widened), n_features=state.data.n_features + 1)
    return replace(state, data=data, random_directions=directions)


def whiten(state: FitState) -> FitState:
    """Whiten the tokens, so that the loss is well conditioned.

    With more features than tokens, the whitened tokens are coordinates in their span.
    """
    data, settings, coordinates = state.data, state.settings, state.coordinates
    if _is_reducible(state):
        return _in_span(state)
    shrinkage = _SHRINKAGE if settings.shrinkage is None else settings.shrinkage
    coordinates = replace(coordinates, shrinkage=shrinkage)
    root = np.ones(data.n_features)
    principal = to_key = None
    if data.n_features <= _WIDEST:
        eigenvalues, vectors = np.linalg.eigh(_correlation(data))
        shrunk = (np.maximum(eigenvalues, 0.0) + shrinkage) / (1 + shrinkage)
        root = (vectors / np.sqrt(shrunk)) @ vectors.T
        coordinates, principal = replace(coordinates, whitening=root), vectors[:, -1]
        factors = _to_key(data, np.maximum(eigenvalues, 0.0), shrinkage)
        to_key = (vectors * factors) @ vectors.T
    is_large = data.n_tokens * data.n_features > MANY_NUMBERS
    dtype = np.float32 if is_large else np.float64

    def whitened(bags: Bags) -> Bags:
        if coordinates.whitening is None:
            return replace(bags, tokens=bags.tokens.astype(dtype))
        tokens = bags.tokens.astype(dtype, copy=False)
        return replace(bags, tokens=tokens @ root.astype(dtype))

    data = data.mapped(whitened)
    return replace(
        state, data=data, coordinates=coordinates, principal=principal, to_key=to_key
    )


def _to_key(data: LocationData, variances: FloatArray, shrinkage: float) -> FloatArray:
    r"""Return the factors, per principal axis, from mean attended token to key.

    For tokens with an elliptical law the mean attended token is the covariance times
    the key: on an axis with variance :math:`\lambda`, whitened with the weight
    :math:`\delta` of the identity, the key is :math:`(\lambda + \delta) / \lambda`
    times the mean, up to a common factor. The denominator is shrunk towards the mean
    variance as Ledoit and Wolf (2004) do, with a bag as one observation, because tokens
    of a bag may be alike; but not more than in the metric.
    """
    total = fourth = 0.0
    for batch in data.read():
        tokens, weights = batch.bags.tokens, batch.bags.spread(batch.weights)
        squares = np.einsum("ij,ij->i", tokens, tokens).astype(np.float64)
        fourth += float(weights @ squares**2)
        total += float(weights.sum())
    square, mean = (
        float(variances @ variances),
        float(variances.sum()) / data.n_features,
    )
    noise = max(fourth / total - square, 0.0) / data.size
    spread = max(square - data.n_features * mean**2, 0.0)  # of the variances
    least = shrinkage
    if noise < spread:
        least = min(shrinkage, mean * noise / (spread - noise))
    return (variances + shrinkage) / (variances + max(least, _LEAST_VARIANCE))


def _is_reducible(state: FitState) -> bool:
    """Return whether all that counts is in the span of the tokens.

    The radius has a part outside, and an L1 penalty is one on the features as given.
    """
    data, settings = state.data, state.settings
    is_wide = not data.is_stream and data.n_features > data.n_tokens
    is_linear = settings.head not in ("radial", "sigmoid") and settings.l1_ratio == 0
    return is_wide and is_linear


def _correlation(data: LocationData) -> FloatArray:
    gram, total = np.zeros((data.n_features, data.n_features)), 0.0
    for batch in data.read():
        weights = np.repeat(batch.weights, batch.bags.lengths)
        gram += weighted_gram(batch.bags.tokens, weights)
        total += float(weights.sum())
    return gram / total


def _in_span(state: FitState) -> FitState:
    """Whiten in the span of the tokens, from a matrix with one row per token.

    Key and values that minimise the penalised loss lie in this span: components outside
    change no score and no readout, but the penalty.
    """
    (batch,) = state.data.read()
    weights = np.repeat(batch.weights, batch.bags.lengths)
    roots = np.sqrt(weights / weights.sum())[:, None]
    tokens = batch.bags.tokens
    eigenvalues, vectors = np.linalg.eigh((roots * tokens) @ (roots * tokens).T)
    resolved = eigenvalues > 1e-10 * max(float(eigenvalues[-1]), 1e-300)
    if not resolved.any():  # no feature varies
        resolved[-1] = True
    variances, vectors = eigenvalues[resolved][::-1], vectors[:, resolved][:, ::-1]
    variances = np.maximum(variances, 1e-300)
    shrinkage = state.settings.shrinkage
    shrinkage = _SHRINKAGE if shrinkage is None else shrinkage
    scale = np.sqrt((variances + shrinkage) / (1 + shrinkage))
    # Coordinates z·q / scale, with axes q = (roots z)ᵀ vectors / √variances.
    span = (vectors * roots / (np.sqrt(variances) * scale)).T
    whitened = vectors * (np.sqrt(variances) / scale) / roots
    bags = replace(batch.bags, tokens=np.ascontiguousarray(whitened))
    kept = replace(batch, bags=bags)
    width = len(scale)
    data = replace(state.data, read=lambda: [kept], n_features=width)
    coordinates = replace(
        state.coordinates, shrinkage=shrinkage, span=span, tokens=tokens
    )
    return replace(
        state,
        data=data,
        coordinates=coordinates,
        principal=np.eye(1, width).ravel(),
        to_key=np.diag(_to_key(state.data, variances, shrinkage)),
        random_directions=state.random_directions[:, :width],
    )


def add_radius(state: FitState) -> FitState:
    """Radial head: give every token minus half its squared radius, for scores only."""
    if state.settings.head != "radial":
        return state

    def radii(bags: Bags) -> FloatArray:
        tokens = bags.tokens
        return np.asarray(-0.5 * np.einsum("ij,ij->i", tokens, tokens))

    total = mean = square = 0.0
    for batch in state.data.read():
        weights, column = (
            np.repeat(batch.weights, batch.bags.lengths),
            radii(batch.bags),
        )
        total += float(weights.sum())
        mean += float(weights @ column)
        square += float(weights @ column**2)
    mean /= total
    variance = square / total - mean**2
    has_spread = variance > 1e-14 * square / total
    scale = np.sqrt(variance) if has_spread else 1.0
    state = _with_column(state, lambda bags: (radii(bags) - mean) / scale)
    principal = None if state.principal is None else np.append(state.principal, 0.0)
    return replace(state, radius=(mean, float(scale)), principal=principal)


# Every fit runs these stages, in this order, and then those of `OPTIMISATION` in
# `_fit.py`. A stage that does not apply returns its argument.
PREPARATION: tuple[Stage, ...] = (standardise, add_constant, whiten, add_radius)
