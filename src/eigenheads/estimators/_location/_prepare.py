"""State of a fit, and its stages that do not depend on the penalty: coordinates."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import OptimizeResult

from eigenheads._typing import FloatArray
from eigenheads.estimators._bag_order import MANY_NUMBERS, column_order, rounded
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location._data import (
    HeadSettings,
    LocationData,
    in_standard_order,
)
from eigenheads.estimators._location._head import RELATIVE, PenalisedLoss

# Rows of products that are computed together: a few hundred kB stay in the cache.
_CHUNK = 1_024
# Weight of the identity beside the pooled correlation. The correlation contains what
# decides, so that whitening by it alone would penalise the key along itself.
_SHRINKAGE = 3.0
# Variances below this, of standardised tokens, are not told from rounding.
_LEAST_VARIANCE = 1e-3
# Above this width an eigendecomposition costs more than it saves.
_WIDEST = 2_000


# --- State ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Coordinates:
    r"""Affine map from features as given to the coordinates of the fit.

    A token :math:`x` is standardised, :math:`z = D^{-1} (x - m)`, and whitened,
    :math:`W z` with :math:`W = ((R + \delta I) / (1 + \delta))^{-1/2}`, where :math:`R`
    is the pooled correlation. So the squared norm of a coefficient is a mean of the
    variance of the scores of pooled tokens and of the squared length of the coefficient
    of standardised features.

    Parameters
    ----------
    mean, scale
        :math:`m` and the diagonal of :math:`D`.
    order
        Columns as given, in the order of the coordinates.
    shrinkage
        :math:`\delta`.
    whitening
        :math:`W`, or None for the identity.
    span, tokens
        If features are more than tokens, the fit is done in the span of the tokens:
        whitened coordinates are the standardised features times the transpose of
        ``span @ tokens``, a product that takes as long as all of the fit.
    """

    mean: FloatArray
    scale: FloatArray
    order: NDArray[np.int64]
    shrinkage: float = 0.0
    whitening: FloatArray | None = None
    span: FloatArray | None = None
    tokens: FloatArray | None = None

    def standardised(
        self, tokens: NDArray[Any], *, is_rounded: bool = True
    ) -> NDArray[Any]:
        """Return standardised tokens, their columns in the order of the coordinates."""
        rows = (tokens - self.mean) / self.scale
        if is_rounded:
            rows = rounded(tokens, self.mean, self.scale)
        return np.ascontiguousarray(rows[:, self.order])

    def in_standardised(self, rows: FloatArray) -> FloatArray:
        """Return coefficients of standardised features."""
        if self.span is not None and self.tokens is not None:
            return np.asarray(rows @ self.span @ self.tokens)
        return rows if self.whitening is None else rows @ self.whitening

    def raw(self, rows: FloatArray) -> FloatArray:
        """Return coefficients of the features as given."""
        plain = self.in_standardised(rows)
        ordered = np.empty((len(plain), plain.shape[1]))
        width = len(self.order)
        ordered[:, self.order] = plain[:, :width] / self.scale[self.order]
        ordered[:, width:] = plain[:, width:]  # of the constant, if there is one
        return ordered

    def precision(self) -> FloatArray:
        """Return the metric of tokens in the features as given; one axis: diagonal."""
        if self.whitening is None:
            return np.asarray(self.scale**-2.0)
        root = self.raw(np.eye(len(self.whitening)))
        return np.asarray(root.T @ root)


_NO_COORDINATES = Coordinates(np.zeros(0), np.ones(0), np.arange(0))


def weighted_gram(tokens: NDArray[Any], weights: FloatArray) -> FloatArray:
    r"""Return :math:`\sum_l w_l x_l x_l^\top`, chunk by chunk."""
    d = tokens.shape[1]
    gram, weights = np.zeros((d, d)), weights.astype(tokens.dtype)
    for start in range(0, len(tokens), _CHUNK):
        rows = tokens[start : start + _CHUNK]
        gram += (rows * weights[start : start + _CHUNK, None]).T @ rows
    return gram


def squared_radii(
    tokens: NDArray[Any], center: NDArray[Any], precision: NDArray[Any]
) -> NDArray[np.floating]:
    r"""Return :math:`(x - m)^\top P (x - m)` of each token, in its floating type.

    A `precision` with one axis is the diagonal of a diagonal matrix.

    Examples
    --------
    >>> squared_radii(np.array([[3.0, 0.0], [1.0, 2.0]]), np.ones(2), np.eye(2))
    array([5., 1.])
    """
    center, precision = center.astype(tokens.dtype), precision.astype(tokens.dtype)
    radii = np.empty(len(tokens), dtype=tokens.dtype)
    for start in range(0, len(tokens), _CHUNK):
        rows = tokens[start : start + _CHUNK] - center
        moved = rows * precision if precision.ndim == 1 else rows @ precision
        radii[start : start + _CHUNK] = np.einsum("ij,ij->i", rows, moved)
    return radii


@dataclass(frozen=True)
class HeadStart:
    """Named key and values at which a fit may begin.

    `error` is that of the best values, `square` the squared length of the key.
    """

    name: str
    error: float
    square: float
    key: FloatArray
    values: FloatArray


@dataclass(frozen=True)
class FitState:
    """Everything that the stages of a fit know and learn.

    Parameters
    ----------
    data, settings
        What is fitted; tokens are in the coordinates of the stage.
    report
        Called with a sentence on progress.
    coordinates
        How tokens became what they are.
    radius
        Mean and scale of the last coordinate, the radius, for the radial head.
    metric, unwhitened
        Matrix of the penalty, if it is not the identity, and how tokens were changed
        for that.
    principal
        Direction of largest pooled variance.
    to_key
        Matrix from the mean attended token to the direction of the key.
    profiles
        Directions of the key with several lengths and the best values.
    attended
        Unit vectors of the mean attended token, one per head, or None before they are
        known.
    n_heads
        Number of heads so far.
    given
        Solutions to start from, of the same fit to other bags or with another penalty.
    minimum
        Solution before the stages that only finish a fit.
    flat
        Keys, values and intercepts as one vector.
    start, value, n_iter, converged
        Name of the start, penalised loss, iterations so far, success of the last stage.
    """

    data: LocationData
    settings: HeadSettings
    report: Callable[[str], None]
    coordinates: Coordinates = _NO_COORDINATES
    radius: tuple[float, float] | None = None
    metric: FloatArray | None = None
    unwhitened: Callable[[Bags], Bags] | None = None
    principal: FloatArray | None = None
    to_key: FloatArray | None = None
    profiles: list[HeadStart] = field(default_factory=list)
    attended: FloatArray | None = None
    n_heads: int = 1
    given: tuple[FloatArray, ...] = ()
    minimum: FloatArray = field(default_factory=lambda: np.zeros(0))
    flat: FloatArray = field(default_factory=lambda: np.zeros(0))
    start: str = ""
    value: float = np.inf
    n_iter: int = 0
    converged: bool = False

    @property
    def is_sparse(self) -> bool:
        """True if the penalty has an L1 part."""
        return self.settings.alpha * self.settings.l1_ratio > 0

    @property
    def is_held(self) -> bool:
        """True if the coherence penalty applies."""
        has_mean = self.settings.head not in ("sigmoid", "logsumexp")
        return self.settings.coherence > 0 and has_mean

    @property
    def rows(self) -> FloatArray:
        """Key and values of each head."""
        size = len(self.flat) - self.data.n_outputs
        return self.flat[:size].reshape(-1, self.data.n_features)

    @property
    def intercepts(self) -> FloatArray:
        """Added constants, one per output."""
        return self.flat[-self.data.n_outputs :]

    def loss(self, data: LocationData | None = None) -> PenalisedLoss:
        """Return the penalised loss on all data, or on some."""
        return PenalisedLoss(
            self.data if data is None else data,
            self.settings,
            n_heads=self.n_heads,
            metric=self.metric,
            attended=self.attended,
        )

    def with_alpha(self, alpha: float) -> "FitState":
        """Return the state with another penalty."""
        return replace(self, settings=replace(self.settings, alpha=alpha))

    def after(self, result: OptimizeResult) -> "FitState":
        """Return the state after a run of the optimiser."""
        return replace(
            self,
            flat=result.x,
            value=float(result.fun),
            n_iter=self.n_iter + int(result.nit),
            converged=bool(result.success),
        )


# --- Stages --------------------------------------------------------------------------


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
        for start in range(0, len(weights), _CHUNK):
            rows = batch.bags.tokens[start : start + _CHUNK].astype(np.float64)
            first += weights[start : start + _CHUNK] @ rows
    mean = first / total if center else first * 0.0
    for batch in data.read():
        weights = np.repeat(batch.weights, batch.bags.lengths)
        for start in range(0, len(weights), _CHUNK):
            rows = batch.bags.tokens[start : start + _CHUNK] - mean
            second += weights[start : start + _CHUNK] @ rows**2
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

    data = replace(state.data.mapped(widened), n_features=state.data.n_features + 1)
    return replace(state, data=data)


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
