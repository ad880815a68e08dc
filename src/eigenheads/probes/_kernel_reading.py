"""One head on one sequence, read as kernel PCA, and what any values would give."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from eigenheads._typing import FloatArray
from eigenheads.functional import (
    KernelPCA,
    centred_gram,
    kernel_pca,
    kernel_pca_values,
    log_feature_norms,
    matching_cosine,
    rbf_gram,
    relative_differences,
)

# Added to a Gram matrix before it is inverted, relative to its mean eigenvalue, so
# that a deficient one has an inverse.
_RIDGE = 1e-10
# Gram matrices of whitened columns have condition 1/_NARROW² at most: the ridge then
# moves results by 1e-5 of a direction's share at most.
_NARROW = 3e-3
# Singular values below this share of the largest are rounding of float32 models.
_FLOAT32 = 1e-6
# Values per block of draws: what is worked on stays in the cache.
_BLOCK = 2**15

# Statistics of values that all draws are cheap for, and those that are not.
CHEAP = (
    "norm_ratio",
    "output_norm",
    "gamma_difference",
    "eigen_residual",
    "captured_variance",
    "linear_cka",
)


@dataclass(frozen=True, eq=False)
class HeadReading:
    """A head on the real tokens of one sequence, and its kernel PCA."""

    cloud: KernelPCA
    values: FloatArray  # (n, d_value)
    weights: FloatArray  # (n_queries, n), softmax
    log_features: FloatArray  # (n_queries,), natural logarithm
    target: FloatArray  # (n, d_value), kernel-PCA values

    @cached_property
    def whitener(self) -> FloatArray:
        """Return B, (rank, d_value), that makes the columns of V Bᵀ orthonormal."""
        _, sizes, right = np.linalg.svd(self.values, full_matrices=False)
        real = sizes > _FLOAT32 * sizes[0]
        return right[real] / sizes[real, None]

    @cached_property
    def normaliser(self) -> FloatArray:
        """Return g relative to its largest: it may exceed the largest float."""
        logs = self.cloud.log_normaliser
        return np.exp(logs - logs.max())

    def of_values(
        self, drawn: FloatArray, *, is_alike: bool = True
    ) -> dict[str, FloatArray]:
        """Return the cheap statistics of values (d_value, draws, n), one a draw.

        `is_alike`: whether all draws have the second moments of the head's values.
        """
        size = max(1, _BLOCK // (drawn.shape[0] * drawn.shape[2]))
        parts = [
            self._of_block(
                np.ascontiguousarray(drawn[:, start : start + size]), is_alike
            )
            for start in range(0, drawn.shape[1], size)
        ]
        return {name: np.concatenate([p[name] for p in parts]) for name in CHEAP}

    def _of_block(self, drawn: FloatArray, is_alike: bool) -> dict[str, FloatArray]:
        log_outputs = self._log_outputs(drawn)
        found = {
            "norm_ratio": (log_outputs - self.log_features).mean(axis=-1),
            "output_norm": log_outputs.mean(axis=-1),
            "linear_cka": self._linear_cka(drawn),
        }
        found = {name: np.asarray(value) for name, value in found.items()}
        for name in ("norm_ratio", "output_norm"):
            found[name] /= math.log(10)
        return found | self._of_coefficients(drawn, is_alike)

    def _log_outputs(self, drawn: FloatArray) -> FloatArray:
        outputs = _apply(drawn, self.weights.T)
        with np.errstate(divide="ignore"):
            return np.log(np.einsum("dbq,dbq->bq", outputs, outputs))

    def _linear_cka(self, drawn: FloatArray) -> FloatArray:
        target = self.target - self.target.mean(axis=0)
        centred = drawn - drawn.mean(axis=-1, keepdims=True)
        cross = _apply(centred, target)
        stack = centred.transpose(1, 0, 2)
        own = np.linalg.norm(stack @ stack.transpose(0, 2, 1), axis=(1, 2))
        whole = own * np.linalg.norm(target.T @ target)
        part = np.einsum("dbr,dbr->b", cross, cross)
        return np.divide(part, whole, out=np.full(len(own), np.nan), where=whole > 0)

    def _of_coefficients(
        self, drawn: FloatArray, is_alike: bool
    ) -> dict[str, FloatArray]:
        """Return the gamma test, column by column and as a whole."""
        a = drawn * self.normaliser
        a -= a.mean(axis=-1, keepdims=True)
        product = _apply(a, self.cloud.gram)
        inner = np.einsum("dbn,dbn->db", a, product)
        squares = np.einsum("dbn,dbn->db", a, a)
        lengths = squares * np.einsum("dbn,dbn->db", product, product)
        known = lengths > 0
        cosine = inner**2 / np.where(known, lengths, 1.0)
        residual = np.sqrt(np.maximum(0.0, 1 - np.where(known, cosine, 0.0)))
        captured = self._captured(a, is_alike=is_alike)
        tiny = np.finfo(np.float64).smallest_normal
        np.copyto(a, tiny, where=np.abs(a) < tiny)
        np.divide(product, a, out=product)
        differences = relative_differences(np.swapaxes(product, -1, -2))
        return {
            "gamma_difference": differences.mean(axis=0),
            "eigen_residual": residual.mean(axis=0),
            "captured_variance": captured,
        }

    def _captured(self, a: FloatArray, *, is_alike: bool) -> FloatArray:
        """Return the share of variance in the span of the coefficients.

        A span does not see what mixes its columns, so values whose second moments are
        those of the head's are whitened first: then only the spread of the normalisers
        can make Gram matrices ill-conditioned. If it is too wide, or the moments are
        others, an orthonormal basis is computed, which costs more.
        """
        best = self.cloud.eigenvalues[: len(a)].sum()
        if best <= 0:
            return np.full(a.shape[1], np.nan)
        if is_alike:
            whitener = self.whitener
            flat = whitener @ a.reshape(len(a), -1)
            a = flat.reshape(len(whitener), *a.shape[1:])
        stack = a.transpose(1, 0, 2)
        if not is_alike or self.normaliser.min() < _NARROW:
            basis = np.linalg.qr(stack.transpose(0, 2, 1))[0]
            return np.einsum("bnr,bnr->b", basis, self.cloud.gram @ basis) / best
        inner = stack @ stack.transpose(0, 2, 1)
        form = stack @ _apply(a, self.cloud.gram).transpose(1, 2, 0)
        r = inner.shape[-1]
        inner[:, range(r), range(r)] += _RIDGE * np.einsum("bii->b", inner)[:, None] / r
        return np.einsum("bij,bij->b", np.linalg.inv(inner), form) / best

    def rbf_of_values(self, drawn: FloatArray) -> FloatArray:
        """Return the RBF alignment of values (d_value, draws, n), one a draw."""
        target = _unit_gram(self.target)
        stack = drawn.transpose(1, 2, 0)
        return np.einsum("bij,ij->b", _unit_gram(stack), target)

    def matching_of_values(self, drawn: FloatArray) -> FloatArray:
        """Return the matching cosine of values (d_value, draws, n), one a draw."""
        stack = drawn.transpose(1, 2, 0)
        return matching_cosine(stack, np.broadcast_to(self.target, stack.shape))


def read_heads(
    queries: FloatArray,
    keys: FloatArray,
    values: FloatArray,
    *,
    scale: float,
    is_causal: bool,
    standardize: bool,
) -> list[HeadReading]:
    """Return the readings of all heads (h, n, d) of one sequence."""
    cloud = kernel_pca(keys, scale=scale)
    target = kernel_pca_values(cloud, values.shape[-1])
    logs = log_feature_norms(
        queries, keys, scale=scale, is_causal=is_causal, standardize=standardize
    )
    weights = attention_weights(queries, keys, scale=scale, is_causal=is_causal)
    fields = ("log_normaliser", "gram", "trace", "eigenvalues", "eigenvectors")
    return [
        HeadReading(
            cloud=KernelPCA(**{f: getattr(cloud, f)[head] for f in fields}),
            values=values[head],
            weights=weights[head],
            log_features=logs[head],
            target=target[head],
        )
        for head in range(len(keys))
    ]


def rbf_of_permuted(
    readings: list[HeadReading], orders: NDArray[np.intp]
) -> FloatArray:
    """Return the RBF alignments for permuted values, (heads, draws).

    A permutation of the values permutes their Gram matrix, so that distances and
    bandwidth are computed once; heads share the orders, hence the indices.
    """
    own = [_unit_gram(reading.values).ravel() for reading in readings]
    targets = [_unit_gram(reading.target).ravel() for reading in readings]
    count, n = orders.shape
    found = np.empty((len(readings), count))
    step = max(1, _BLOCK // n**2)
    for start in range(0, count, step):
        o = orders[start : start + step]
        index = (o[:, :, None] * n + o[:, None, :]).reshape(len(o), -1)
        for row, (gram, target) in enumerate(zip(own, targets, strict=True)):
            found[row, start : start + step] = np.take(gram, index) @ target
    return found


def attention_weights(
    queries: FloatArray, keys: FloatArray, *, scale: float, is_causal: bool
) -> FloatArray:
    """Return softmax(c q·k), rows of queries."""
    scores = scale * queries @ np.swapaxes(keys, -1, -2)
    if is_causal:
        n, m = scores.shape[-2:]
        scores = np.where(np.tril(np.ones((n, m), bool), m - n), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def _apply(drawn: FloatArray, matrix: FloatArray) -> FloatArray:
    """Return (d, draws, n) @ (n, m) as one product of matrices."""
    d, draws, n = drawn.shape
    flat = drawn.reshape(d * draws, n) @ matrix
    return flat.reshape(d, draws, matrix.shape[1])


def _unit_gram(points: FloatArray) -> FloatArray:
    """Return centred Gaussian Gram matrices of Frobenius norm 1."""
    gram = centred_gram(rbf_gram(points))
    norm = np.linalg.norm(gram, axis=(-2, -1), keepdims=True)
    return np.divide(gram, norm, out=np.full_like(gram, np.nan), where=norm > 0)
