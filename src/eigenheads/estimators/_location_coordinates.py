"""Coordinates in which the single-location fit is well conditioned."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags

# Above this width an eigendecomposition costs more than it saves.
_WIDEST = 2_000
# Added to the pooled correlation at least: bounds the whitening of empty directions.
_RIDGE = 1e-2
# Share of features a bag that is added where bags are few.
_RIDGE_SHARE = 1 / 3
# Rows of a chunk: a few hundred kB, so that it stays in the cache.
_CHUNK = 1_024


@dataclass(frozen=True)
class Coordinates:
    r"""Pooled mean and scale of the tokens, and the whitening of their correlation.

    A coefficient in whitened coordinates :math:`u` is :math:`W u` in standardised
    features and :math:`D^{-1} W u` in the features as given, where
    :math:`W = (R + \delta I)^{-1/2}` and :math:`R` is the pooled correlation. So
    :math:`\lVert u \rVert^2` is the variance of the scores of pooled tokens, plus a
    little of the squared length of the standardised coefficient.
    """

    mean: FloatArray
    scale: FloatArray
    whitening: FloatArray | None
    metric: FloatArray | None
    principal: FloatArray | None

    def standardised(self, whitened: FloatArray) -> FloatArray:
        """Map rows in whitened coordinates to standardised features, or back by W."""
        return whitened if self.whitening is None else whitened @ self.whitening

    def raw(self, whitened: FloatArray) -> FloatArray:
        """Map rows in whitened coordinates to the features as given."""
        return self.standardised(whitened) / self.scale

    def pulled_back(self, by_raw: FloatArray) -> FloatArray:
        """Map gradients by raw coefficients to gradients by whitened ones."""
        return self.standardised(by_raw / self.scale)

    def measured(self, rows: FloatArray) -> FloatArray:
        """Apply the metric: the inner product of it with `rows` is their variance."""
        return rows if self.metric is None else rows @ self.metric

    def without_whitening(self) -> "Coordinates":
        """Return the coordinates of the standardised features, with their metric."""
        if self.whitening is None:
            return self
        inverse = np.linalg.inv(self.whitening)
        return replace(self, whitening=None, metric=inverse @ inverse)

    def precision(self) -> FloatArray:
        """Return the metric of tokens in the features as given; one axis: diagonal."""
        if self.whitening is None:
            return np.asarray(self.scale**-2.0)
        root = self.whitening / self.scale[:, None]
        return np.asarray(root @ root.T)

    def with_column(self, mean: float, scale: float, shrinkage: float) -> "Coordinates":
        """Return coordinates of tokens with one column more, whitened by itself."""
        whitening, principal = self.whitening, self.principal
        if whitening is not None:
            whitening = block_diag(whitening, 1 / np.sqrt(1 + shrinkage))
        if principal is not None:
            principal = np.append(principal, 0.0)
        return Coordinates(
            np.append(self.mean, mean),
            np.append(self.scale, scale),
            whitening,
            None,
            principal,
        )


class Part(Protocol):
    """Some of the bags, with their responses and weights."""

    @property
    def bags(self) -> Bags:
        """The bags."""

    @property
    def responses(self) -> FloatArray:
        """What is regressed, one row a bag."""

    @property
    def weights(self) -> FloatArray:
        """One weight a bag."""


class Parts(Protocol):
    """Bags that are read part by part, as often as wanted."""

    def parts(self) -> Iterator[Part]:
        """Yield the parts."""


@dataclass(frozen=True)
class OnePart:
    """Bags that are in memory: their only part."""

    bags: Bags
    responses: FloatArray
    weights: FloatArray

    def parts(self) -> "Iterator[OnePart]":
        """Yield it."""
        yield self


def pooled_coordinates(bags: Bags, weights: FloatArray, *, center: bool) -> Coordinates:
    """Return the coordinates of the pooled tokens; a token weighs what its bag does.

    Without `center` moments are taken about zero: the erf head sees the origin.
    """
    return coordinates_of_parts(OnePart(bags, weights, weights), center=center)


def default_shrinkage(n_features: int, n_bags: float) -> float:
    """Return what is added to the pooled correlation: more where bags are few.

    Noise in a sample correlation, and the ridge that is best against it, grow with the
    number of features over that of independent samples. Tokens of one bag may be alike,
    so bags are counted, not tokens.
    """
    return max(_RIDGE, _RIDGE_SHARE * n_features / n_bags)


def coordinates_of_parts(
    data: Parts, *, center: bool, shrinkage: float = _RIDGE
) -> Coordinates:
    """Return the coordinates of the pooled tokens, in three passes over the parts."""
    total = sum(float(weights.sum()) for _, weights in _token_weights(data))
    mean: Any = 0.0
    for tokens, weights in _token_weights(data):
        mean = mean + weights / total @ tokens
    mean = mean if center else np.zeros(np.shape(mean))
    is_wide = len(mean) > _WIDEST
    moments: Any = 0.0
    for tokens, weights in _token_weights(data):
        if is_wide:
            moments = moments + weights / total @ tokens.astype(np.float64) ** 2
        else:
            moments = moments + weighted_gram(tokens, weights / total, mean)
    variance = moments - mean**2 if is_wide else np.diag(moments)
    # A column that is constant up to rounding keeps scale 1: its coefficient is 0.
    rounding = 1e-14 * (variance + mean**2)
    scale = np.where(variance > rounding, np.sqrt(variance), 1.0)
    if is_wide:
        return Coordinates(mean, scale, None, None, None)
    eigenvalues, vectors = np.linalg.eigh(moments / np.outer(scale, scale))
    shrunk = np.maximum(eigenvalues, 0.0) + shrinkage
    whitening = (vectors / np.sqrt(shrunk)) @ vectors.T
    return Coordinates(mean, scale, whitening, None, vectors[:, -1])


def radius_moments(data: Parts) -> tuple[float, float]:
    """Return mean and standard deviation of the radii over all tokens."""
    total = mean = square = 0.0
    for part in data.parts():
        weights = np.repeat(part.weights, part.bags.lengths)
        column = np.asarray(part.bags.radii, dtype=np.float64)
        total += float(weights.sum())
        mean += float(weights @ column)
        square += float(weights @ column**2)
    variance = square / total - (mean / total) ** 2
    is_constant = variance <= 1e-14 * square / total
    return mean / total, 1.0 if is_constant else float(np.sqrt(variance))


def _token_weights(data: Parts) -> Iterator[tuple[NDArray[Any], FloatArray]]:
    for part in data.parts():
        yield part.bags.tokens, np.repeat(part.weights, part.bags.lengths)


def weighted_gram(
    tokens: NDArray[Any], weights: FloatArray, mean: FloatArray
) -> FloatArray:
    r"""Return :math:`\sum_l w_l (x_l - m)(x_l - m)^\top`, chunk by chunk."""
    d = tokens.shape[1]
    gram = np.zeros((d, d))
    for start in range(0, len(tokens), _CHUNK):
        rows = tokens[start : start + _CHUNK] - mean
        gram += (rows * weights[start : start + _CHUNK, None]).T @ rows
    return gram
