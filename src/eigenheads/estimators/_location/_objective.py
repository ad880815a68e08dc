"""Penalised loss of the single-location head, in coordinates that condition it well."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag
from scipy.linalg.blas import dsyrk

from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location._head import (
    HeadLoss,
    attention_weights,
    token_scores,
)
from eigenheads.estimators._location._problem import (
    HeadSettings,
    LabelledBags,
    LocationData,
)

# Above this width an eigendecomposition costs more than it saves.
_WIDEST = 2_000
# Least amount added to the pooled correlation: bounds the whitening of directions in
# which tokens do not vary.
_RIDGE = 1e-2
# With few bags, this multiple of n_features / n_bags is added instead.
_RIDGE_SHARE = 1 / 3
# Rows per chunk: a few hundred kB, so that a chunk stays in the cache.
_CHUNK = 1_024


@dataclass(frozen=True)
class TokenWhitening:
    r"""Pooled mean and scale of the tokens, and the whitening of their correlation.

    A coefficient in whitened coordinates :math:`u` is :math:`W u` in standardised
    features and :math:`D^{-1} W u` in the features as given, where
    :math:`W = (R + \delta I)^{-1/2}` and :math:`R` is the pooled correlation. So
    :math:`\lVert u \rVert^2` is the variance of the scores of pooled tokens, plus
    :math:`\delta` times the squared length of the standardised coefficient.
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

    def without_whitening(self) -> "TokenWhitening":
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

    def whitened(self, bags: Bags) -> Bags:
        """Return the bags in whitened coordinates, in their floating type."""
        d, dtype = bags.tokens.shape[1], bags.tokens.dtype
        tokens, radii = (bags.tokens - self.mean[:d]) / self.scale[:d], bags.radii
        if self.whitening is not None:
            tokens = tokens @ self.whitening[:d, :d]
        if radii is not None:
            factor = 1.0 if self.whitening is None else self.whitening[d, d]
            radii = (radii * (factor / self.scale[d])).astype(dtype)
        return Bags(tokens.astype(dtype, copy=False), bags.offsets, radii)

    def of_whitened_tokens(self) -> "TokenWhitening":
        """Return the coordinates of tokens that are whitened already."""
        d = len(self.mean)
        return TokenWhitening(np.zeros(d), np.ones(d), None, None, self.principal)

    def with_column(
        self, mean: float, scale: float, shrinkage: float
    ) -> "TokenWhitening":
        """Return the coordinates with one more column, which is whitened by itself."""
        whitening, principal = self.whitening, self.principal
        if whitening is not None:
            whitening = block_diag(whitening, 1 / np.sqrt(1 + shrinkage))
        if principal is not None:
            principal = np.append(principal, 0.0)
        return TokenWhitening(
            np.append(self.mean, mean),
            np.append(self.scale, scale),
            whitening,
            None,
            principal,
        )


def default_shrinkage(n_features: int, n_bags: float) -> float:
    """Return ``max(0.01, n_features / (3 * n_bags))``.

    Noise in a sample correlation, and the ridge that is best against it, grow with the
    number of features over that of independent samples. Tokens of one bag may be alike,
    so bags are counted, not tokens.
    """
    return max(_RIDGE, _RIDGE_SHARE * n_features / n_bags)


def pooled_whitening(
    data: LocationData, *, center: bool, shrinkage: float = _RIDGE
) -> TokenWhitening:
    """Return the whitening of the pooled tokens, in three passes over the data.

    A token has the weight of its bag. Without `center`, moments are taken about zero:
    the erf head depends on the origin.
    """
    total = sum(float(weights.sum()) for _, weights in _token_weights(data))
    mean: Any = 0.0
    for tokens, weights in _token_weights(data):
        mean = mean + weighted_sum(tokens, weights / total)
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
        return TokenWhitening(mean, scale, None, None, None)
    eigenvalues, vectors = np.linalg.eigh(moments / np.outer(scale, scale))
    shrunk = np.maximum(eigenvalues, 0.0) + shrinkage
    whitening = (vectors / np.sqrt(shrunk)) @ vectors.T
    return TokenWhitening(mean, scale, whitening, None, vectors[:, -1])


@dataclass(frozen=True)
class TokenSpan:
    r"""Coordinates in the span of the tokens, if features are more than tokens.

    A token :math:`x` becomes :math:`Q^\top D^{-1} (x - m)`, with orthonormal columns
    :math:`Q` that are the principal directions of the standardised tokens. Key and
    values that minimise the penalised loss lie in this span: components outside change
    no score and no readout, but the penalty.

    With `rows` the standardised tokens times the roots of their weights,
    :math:`Q` is the transpose of `rows` times `axes`. It is never computed: it would
    take as long as the decomposition.
    """

    mean: FloatArray
    scale: FloatArray
    variances: FloatArray
    rows: FloatArray
    axes: FloatArray
    coordinates: FloatArray

    def raw(self, rows: FloatArray) -> FloatArray:
        """Map coefficients in the span to the features as given."""
        return np.asarray(rows @ self.axes.T @ self.rows / self.scale)

    def whitening(self, shrinkage: float) -> TokenWhitening:
        """Return the whitening, which is diagonal in these coordinates."""
        scale = np.sqrt(self.variances + shrinkage)
        principal = np.eye(1, len(scale)).ravel()
        return TokenWhitening(np.zeros(len(scale)), scale, None, None, principal)


def token_span(batch: LabelledBags, *, center: bool) -> TokenSpan:
    """Return the span of the tokens, from a matrix with one row per token."""
    tokens = batch.bags.tokens.astype(np.float64)
    weights = np.repeat(batch.weights, batch.bags.lengths)
    weights = weights / weights.sum()
    mean = weights @ tokens if center else np.zeros(tokens.shape[1])
    variance = weights @ (tokens - mean) ** 2
    is_constant = variance <= 1e-14 * (variance + mean**2)
    scale = np.where(is_constant, 1.0, np.sqrt(variance))
    roots = np.sqrt(weights)[:, None]
    rows = roots * ((tokens - mean) / scale)
    # One triangle of the symmetric product takes half the time.
    products = dsyrk(1.0, rows.T, trans=1, lower=1)
    eigenvalues, vectors = np.linalg.eigh(products, UPLO="L")
    kept = eigenvalues > 1e-10 * max(float(eigenvalues[-1]), 1e-300)
    eigenvalues, vectors = eigenvalues[kept][::-1], vectors[:, kept][:, ::-1]
    spread = np.sqrt(eigenvalues)
    # Equal tokens get equal coordinates up to the last digit, by which copies of a bag
    # are known.
    coordinates = (vectors * spread / roots)[_first_equal(batch.bags.tokens)]
    return TokenSpan(mean, scale, eigenvalues, rows, vectors / spread, coordinates)


def _first_equal(tokens: NDArray[Any]) -> NDArray[np.int64]:
    """Return for each row the index of the first row that is equal to it."""
    first: dict[bytes, int] = {}
    digests = (blake2b(row.tobytes(), digest_size=16).digest() for row in tokens)
    return np.array([first.setdefault(key, row) for row, key in enumerate(digests)])


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


def radius_moments(data: LocationData) -> tuple[float, float]:
    """Return mean and standard deviation of the radii over all tokens."""
    total = mean = square = 0.0
    for batch in data.read():
        weights = np.repeat(batch.weights, batch.bags.lengths)
        column = np.asarray(batch.bags.radii, dtype=np.float64)
        total += float(weights.sum())
        mean += float(weights @ column)
        square += float(weights @ column**2)
    variance = square / total - (mean / total) ** 2
    is_constant = variance <= 1e-14 * square / total
    return mean / total, 1.0 if is_constant else float(np.sqrt(variance))


def _token_weights(data: LocationData) -> Iterator[tuple[NDArray[Any], FloatArray]]:
    for batch in data.read():
        yield batch.bags.tokens, np.repeat(batch.weights, batch.bags.lengths)


def weighted_sum(tokens: NDArray[Any], weights: NDArray[Any]) -> FloatArray:
    """Return the weighted sum of the tokens, in double precision."""
    total = np.zeros(tokens.shape[1])
    for start in range(0, len(tokens), _CHUNK):
        rows = tokens[start : start + _CHUNK].astype(np.float64, copy=False)
        total += weights[start : start + _CHUNK] @ rows
    return total


def weighted_gram(
    tokens: NDArray[Any], weights: FloatArray, mean: FloatArray
) -> FloatArray:
    r"""Return :math:`\sum_l w_l (x_l - m)(x_l - m)^\top`, chunk by chunk."""
    d = tokens.shape[1]
    gram, mean = np.zeros((d, d)), mean.astype(tokens.dtype)
    weights = weights.astype(tokens.dtype)
    for start in range(0, len(tokens), _CHUNK):
        rows = tokens[start : start + _CHUNK] - mean
        gram += (rows * weights[start : start + _CHUNK, None]).T @ rows
    return gram


class MeanLoss:
    """Mean loss over all data: one pass per call.

    Bags in memory keep one :class:`HeadLoss` and its threads; for a stream each batch
    gets its own, so that one batch is in memory at a time.
    """

    def __init__(self, data: LocationData, settings: HeadSettings) -> None:
        self._data, self._settings = data, settings

    @cached_property
    def _kept(self) -> list[HeadLoss] | None:
        if self._data.is_stream:
            return None
        return [self._loss(part) for part in self._data.read()]

    def _loss(self, batch: LabelledBags) -> HeadLoss:
        return HeadLoss(
            batch.bags,
            batch.targets,
            batch.weights,
            head=self._settings.head,
            kind=self._settings.kind,
            total=self._data.weight,
        )

    def compiled_arguments(self) -> Any:
        """Return the arrays of bags that are few enough for one block, or None."""
        if self._kept is None or len(self._kept) > 1:
            return None
        return self._kept[0].compiled_arguments()

    @contextmanager
    def threads(self) -> Iterator[None]:
        """Keep a pool of threads open for bags in memory."""
        if self._kept is None:
            yield
            return
        with self._kept[0].threads():
            yield

    def _losses(self) -> Iterator[HeadLoss]:
        if self._kept is not None:
            yield from self._kept
            return
        for batch in self._data.read():
            loss = self._loss(batch)
            with loss.threads():
                yield loss

    def __call__(
        self, rows: FloatArray, intercepts: FloatArray
    ) -> tuple[float, FloatArray, FloatArray]:
        """Return the loss and its gradients by rows (key, values) and intercepts."""
        value = 0.0
        by_rows, by_intercepts = np.zeros(rows.shape), np.zeros(intercepts.shape)
        for loss in self._losses():
            part, part_rows, part_intercepts = loss(rows, intercepts)
            value += part
            by_rows += part_rows
            by_intercepts += part_intercepts
        return value, by_rows, by_intercepts

    def attended(self, key: FloatArray) -> tuple[FloatArray, float]:
        """Return the weighted sum of attended tokens, and the sum of the weights."""
        total, weight = np.zeros(self._data.n_features), 0.0
        for loss in self._losses():
            bags = loss.bags
            weights = attention_weights(bags, token_scores(bags, key), head=loss.head)
            weights = weights * np.repeat(loss.weights, bags.lengths)
            total += weighted_sum(bags.tokens, weights)
            weight += float(weights.sum())
        return total, weight


class PenalisedLoss:
    r"""Penalised loss as a function of one flat vector of whitened coordinates.

    .. math::

        \text{mean loss} + \alpha \sum_{u \in \{k, v_1, \dots\}}
        \Bigl( \tfrac{1 - r}{2} \lVert u \rVert_W^2 + r \lVert D u \rVert_1 \Bigr)
        + \tfrac{(1 - r) c}{2} \bigl(
        \lVert k \rVert_W^2 - \langle k, t \rangle_W^2 \bigr)

    with :math:`D` the pooled scale of the features, :math:`W` the whitened metric,
    :math:`r` the `l1_ratio`, :math:`c` the `coherence` and :math:`t` the unit vector
    `attended` of each key, without which the last term is left out. The L1 norm is
    added by ``minimise_sparse``. For ``head="radial"`` the last coordinate is that
    of the radius: values do not read it, and the last term does not include it.
    """

    def __init__(
        self,
        data: LocationData,
        settings: HeadSettings,
        coordinates: TokenWhitening,
        attended: FloatArray | None = None,
        n_heads: int = 1,
    ) -> None:
        self.coordinates = coordinates
        self.has_intercept = settings.has_intercept
        self.loss = MeanLoss(data, settings)
        self.ridge = settings.alpha * (1 - settings.l1_ratio)
        self.lasso = settings.alpha * settings.l1_ratio
        self.coherence = settings.coherence * (1 - settings.l1_ratio)
        self.attended = None if attended is None else np.atleast_2d(attended)
        self.has_radius = settings.head == "radial"
        per_head = 1 + data.n_outputs
        self.shape = (n_heads * per_head, len(coordinates.mean))
        self.keys = np.arange(0, self.shape[0], per_head)
        self.values = np.flatnonzero(np.arange(self.shape[0]) % per_head)
        self.n_outputs = data.n_outputs

    def split(self, flat: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return key and values as rows, and the intercepts."""
        size = self.shape[0] * self.shape[1]
        return flat[:size].reshape(self.shape), flat[size:]

    def raw(self, flat: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return rows and intercepts in the features as given."""
        whitened, centred = self.split(flat)
        rows = self.coordinates.raw(whitened)
        moved = (rows[self.values] @ self.coordinates.mean).reshape(-1, self.n_outputs)
        return rows, centred - moved.sum(axis=0)

    def compiled_arguments(self) -> Any:
        """Return what compiled code needs, or None if it would not be faster."""
        data = self.loss.compiled_arguments()
        if data is None or self.coordinates.metric is not None:
            return None
        coordinates, width = self.coordinates, len(self.coordinates.mean)
        none = np.zeros((0, width))
        return (
            data,
            (
                none if coordinates.whitening is None else coordinates.whitening,
                coordinates.scale,
                coordinates.mean,
                none if self.attended is None else self.attended,
            ),
            (
                self.ridge,
                self.coherence,
                self.n_outputs,
                self.has_radius,
                self.has_intercept,
            ),
        )

    def __call__(self, flat: FloatArray) -> tuple[float, FloatArray]:
        """Return value and gradient."""
        rows, intercepts = self.raw(flat)
        loss, by_raw, by_intercepts = self.loss(rows, intercepts)
        # Intercepts are those of centred tokens: the chain rule moves them by the mean.
        moved = np.outer(by_intercepts, self.coordinates.mean)
        by_raw[self.values] -= np.tile(moved, (len(self.keys), 1))
        by_rows = self.coordinates.pulled_back(by_raw)
        whitened = self.split(flat)[0]
        measured = self.coordinates.measured(whitened)
        loss += 0.5 * self.ridge * float((measured * whitened).sum())
        by_rows += self.ridge * measured
        if self.attended is not None:
            for key, mean in zip(self.keys, self.attended, strict=True):
                off = measured[key] - (whitened[key] @ mean) * mean
                if self.has_radius:
                    off[-1] = 0.0
                loss += 0.5 * self.coherence * float(whitened[key] @ off)
                by_rows[key] += self.coherence * off
        if self.has_radius:
            by_rows[self.values, -1] = 0.0
        if not self.has_intercept:
            by_intercepts[:] = 0.0
        return loss, np.concatenate([by_rows.ravel(), by_intercepts])
