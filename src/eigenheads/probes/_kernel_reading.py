"""One head on one sequence, read as kernel PCA, and what any values would give."""

import math
from dataclasses import dataclass

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
# that values of deficient rank have an inverse; it moves results by its size.
_RIDGE = 1e-10
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

    @property
    def normaliser(self) -> FloatArray:
        """Return g relative to its largest: it may exceed the largest float."""
        logs = self.cloud.log_normaliser
        return np.exp(logs - logs.max())

    def of_values(self, drawn: FloatArray) -> dict[str, FloatArray]:
        """Return the cheap statistics of values (d_value, draws, n), one a draw."""
        size = max(1, _BLOCK // (drawn.shape[0] * drawn.shape[2]))
        parts = [
            self._of_block(np.ascontiguousarray(drawn[:, start : start + size]))
            for start in range(0, drawn.shape[1], size)
        ]
        return {name: np.concatenate([p[name] for p in parts]) for name in CHEAP}

    def _of_block(self, drawn: FloatArray) -> dict[str, FloatArray]:
        log_outputs = self._log_outputs(drawn)
        found = {
            "norm_ratio": (log_outputs - self.log_features).mean(axis=-1),
            "output_norm": log_outputs.mean(axis=-1),
            "linear_cka": self._linear_cka(drawn),
        }
        found = {name: np.asarray(value) for name, value in found.items()}
        for name in ("norm_ratio", "output_norm"):
            found[name] /= math.log(10)
        return found | self._of_coefficients(drawn)

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

    def _of_coefficients(self, drawn: FloatArray) -> dict[str, FloatArray]:
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
        captured = self._captured(a, product)
        tiny = np.finfo(np.float64).smallest_normal
        np.copyto(a, tiny, where=np.abs(a) < tiny)
        np.divide(product, a, out=product)
        differences = relative_differences(np.swapaxes(product, -1, -2))
        return {
            "gamma_difference": differences.mean(axis=0),
            "eigen_residual": residual.mean(axis=0),
            "captured_variance": captured,
        }

    def _captured(self, a: FloatArray, product: FloatArray) -> FloatArray:
        stack = a.transpose(1, 0, 2)
        inner = stack @ stack.transpose(0, 2, 1)
        form = stack @ product.transpose(1, 2, 0)
        d = inner.shape[-1]
        ridge = _RIDGE * np.einsum("bdd->b", inner) / d
        inner[:, range(d), range(d)] += np.where(ridge > 0, ridge, 1.0)[:, None]
        best = self.cloud.eigenvalues[:d].sum()
        if best <= 0:
            return np.full(len(inner), np.nan)
        return np.einsum("bij,bij->b", np.linalg.inv(inner), form) / best

    def rbf_of_permuted(self, orders: NDArray[np.intp]) -> FloatArray:
        """Return the RBF alignment for permuted values, (draws, n) orders."""
        own = _unit_gram(self.values)
        target = _unit_gram(self.target).ravel()
        n = orders.shape[1]
        step = max(1, _BLOCK // n**2)
        blocks = [orders[i : i + step] for i in range(0, len(orders), step)]
        flat = [(o[:, :, None] * n + o[:, None, :]).reshape(len(o), -1) for o in blocks]
        return np.concatenate([np.take(own.ravel(), i) @ target for i in flat])

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
