"""Kernel PCA of one head on one sequence, and statistics of drawn values."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from eigenheads._arrays import stable_softmax
from eigenheads._typing import FloatArray
from eigenheads.functional import (
    KernelPCA,
    effective_rank,
    kernel_pca,
    kernel_pca_values,
    log_feature_norms,
)
from eigenheads.functional._similarity import best_matching, unit_rows
from eigenheads.probes._kernel_compiled import (
    alignments,
    differences_of_sorted,
    norms_and_ratios,
    pair_distances,
)

# Added to a Gram matrix before it is inverted, relative to its mean eigenvalue, so
# that a deficient one has an inverse.
_RIDGE = 1e-10
# Gram matrices of whitened columns have condition 1/_NARROW² at most: the ridge then
# moves results by 1e-5 of a direction's share at most.
_NARROW = 3e-3
# If the smallest singular value of the columns is above this share of the largest, no
# whitening is needed: it would gain at most four digits.
_APART = 1e-2
# If what the other columns leave of one is below this share of its square, too few
# digits are left, and an orthonormal basis is computed instead.
_LEAST_REST = 1e-8
# Singular values below this share of the largest are rounding errors of float32.
_FLOAT32 = 1e-6
# Fields of a kernel PCA.
_CLOUD = ("log_normaliser", "gram", "trace", "eigenvalues", "eigenvectors")
# Numbers per block of draws. Every call of NumPy takes the interpreter lock: in blocks
# of an eighth, two threads waited for each other a third of the time.
_BLOCK = 2**17
# Numbers per block of matrices of pairs of tokens, of which several are in use.
PAIRS = 2**17


@dataclass(frozen=True, eq=False)
class HeadReading:
    """A head on the real tokens of one sequence, and its kernel PCA."""

    cloud: KernelPCA
    values: FloatArray  # (n, d_value)
    weights: FloatArray  # (n_queries, n), softmax
    log_features: FloatArray  # (n_queries,), natural logarithm
    target: FloatArray  # (n, d_value), kernel-PCA values

    @cached_property
    def whitener(self) -> FloatArray | None:
        """Return B, (rank, d_value), that makes the columns of V Bᵀ orthonormal.

        None if the columns are far enough from dependent as they are.
        """
        _, sizes, right = np.linalg.svd(self.values, full_matrices=False)
        is_apart = sizes[-1] > _APART * sizes[0]
        if is_apart and len(sizes) == self.values.shape[1]:
            return None
        real = sizes > _FLOAT32 * sizes[0]
        return right[real] / sizes[real, None]

    @cached_property
    def normaliser(self) -> FloatArray:
        """Return g relative to its largest: it may exceed the largest float."""
        logs = self.cloud.log_normaliser
        return np.exp(logs - logs.max())

    @cached_property
    def readout(self) -> FloatArray:
        """Return the matrix that all values are multiplied by.

        Its shape is (n, n_queries + d_value + n): attention weights for the outputs,
        centred kernel-PCA values for CKA, and the centred Gram matrix with the factor g
        for the coefficients. Columns of the last two sum to zero, so that the values
        need not be centred.
        """
        target = self.target - self.target.mean(axis=0)
        gram = self.normaliser[:, None] * self.cloud.gram
        return np.concatenate([self.weights.T, target, gram], axis=1)

    @cached_property
    def target_gram(self) -> FloatArray:
        """Return the centred Gaussian Gram matrix of the target, of norm 1."""
        return _unit_gram(self.target)

    @cached_property
    def norms(self) -> tuple[FloatArray, FloatArray]:
        """Return the Frobenius norms of the covariances of values and target."""
        return _covariance_norm(self.values), _covariance_norm(self.target)

    def of_permuted(self, orders: NDArray[np.intp]) -> dict[str, FloatArray]:
        """Return the cheap statistics of permuted values, one permutation per row."""
        columns = np.ascontiguousarray(self.values.T)
        spread, target = self.norms
        return self._of_draws(
            len(orders),
            lambda part: np.take(columns, orders[part], axis=1),
            np.full(len(orders), spread * target),
            is_alike=True,
        )

    def of_values(
        self, drawn: FloatArray, *, is_alike: bool = True
    ) -> dict[str, FloatArray]:
        """Return the cheap statistics of drawn values (d_value, draws, n).

        `is_alike`: whether all draws have the mean and covariance of the head's values.
        """
        spread, target = self.norms
        if is_alike:
            norms = np.full(drawn.shape[1], spread)
        else:
            norms = _covariance_norm(drawn.transpose(1, 2, 0))
        return self._of_draws(
            drawn.shape[1],
            lambda part: np.ascontiguousarray(drawn[:, part]),
            norms * target,
            is_alike=is_alike,
        )

    def _of_draws(
        self,
        count: int,
        draw: Callable[[slice], FloatArray],
        norms: FloatArray,
        *,
        is_alike: bool,
    ) -> dict[str, FloatArray]:
        """Return the cheap statistics of blocks of draws, (d_value, draws, n) each.

        `norms` are the denominators of linear CKA.
        """
        squares = np.empty((count, len(self.weights)))
        crosses, residuals, differences, captured = np.empty((4, count))
        n = len(self.values)
        for part in parts(count, self.values.size):
            drawn = draw(part)
            read = (drawn.reshape(-1, n) @ self.readout).reshape(*drawn.shape[:2], -1)
            ratios = np.empty(drawn.shape, dtype=np.uint64)
            norms_and_ratios(
                drawn,
                self.normaliser[None],
                read,
                squares[part],
                crosses[part],
                residuals[part],
                ratios,
            )
            ratios.sort(axis=-1)
            differences[part] = differences_of_sorted(ratios)
            captured[part] = self.captured(drawn, read[..., -n:], is_alike)
        with np.errstate(divide="ignore"):
            logs = np.log10(squares)
        best = self.cloud.eigenvalues[: self.values.shape[1]].sum()
        return {
            "norm_ratio": (logs - self.log_features / math.log(10)).mean(axis=-1),
            "output_norm": logs.mean(axis=-1),
            "linear_cka": _shares(crosses, norms),
            "gamma_difference": differences,
            "eigen_residual": residuals,
            "captured_variance": _shares(captured, np.full(count, best)),
        }

    def captured(
        self, drawn: FloatArray, products: FloatArray, is_alike: bool
    ) -> FloatArray:
        """Return the variance in the span of the coefficients.

        With coefficients A of values (d, draws, n) and their products with the Gram
        matrix, it is tr((AᵀA)⁻¹ AᵀK̃A). Mixing the columns does not change their span,
        so that values with the covariance of the head's values are whitened first if
        they are nearly dependent. Then only the spread of the normalisers can make AᵀA
        ill-conditioned; in that case an orthonormal basis is computed, which costs
        more.
        """
        d, count, n = drawn.shape
        ridge = 0.0
        if is_alike and self.whitener is not None:
            drawn, products = (
                (self.whitener @ np.ascontiguousarray(x).reshape(d, -1)).reshape(
                    -1, count, n
                )
                for x in (drawn, products)
            )
            ridge = _RIDGE if self.normaliser.min() >= _NARROW else 0.0
        captured = captured_traces(drawn, self.normaliser, products, ridge)
        poor = np.isnan(captured)
        if poor.any():
            captured[poor] = self._captured_by_basis(drawn[:, poor])
        return captured

    def _captured_by_basis(self, drawn: FloatArray) -> FloatArray:
        """Return the variance in the span, from an orthonormal basis of it."""
        weighted = (drawn * self.normaliser).transpose(1, 2, 0)
        columns = weighted - weighted.mean(axis=1, keepdims=True)
        basis = np.linalg.qr(columns)[0]
        return np.einsum("bnr,bnr->b", basis, self.cloud.gram @ basis)

    def rbf_of_values(self, drawn: FloatArray) -> FloatArray:
        """Return the RBF alignment of drawn values (d_value, draws, n), per draw."""
        target = self.target_gram

        def of_block(part: slice) -> FloatArray:
            return alignments(
                _gaussian_pairs(drawn[:, part].transpose(1, 2, 0)), target
            )

        return self._by_pairs(drawn.shape[1], of_block)

    def matching_of_values(self, drawn: FloatArray) -> FloatArray:
        """Return the matching cosine of drawn values (d_value, draws, n), per draw."""
        target = unit_rows(self.target)

        def of_block(part: slice) -> FloatArray:
            block = drawn[:, part]
            lengths = np.sqrt(np.einsum("dbn,dbn->bn", block, block))
            cosines = target @ block.transpose(1, 0, 2)
            cosines /= np.where(lengths > 0, lengths, 1.0)[:, None, :]
            return best_matching(cosines)

        return self._by_pairs(drawn.shape[1], of_block)

    def _by_pairs(
        self, count: int, of_block: Callable[[slice], FloatArray]
    ) -> FloatArray:
        """Compute in blocks what needs matrices of pairs of tokens, per draw."""
        n = len(self.values)
        return np.concatenate([of_block(p) for p in parts(count, n * n, PAIRS)])


@dataclass(frozen=True, eq=False)
class SequenceReading:
    """All heads on the real tokens of one sequence, stacked along the first axis."""

    cloud: KernelPCA
    values: FloatArray
    weights: FloatArray
    log_features: FloatArray
    target: FloatArray

    @classmethod
    def of(
        cls,
        queries: FloatArray,
        keys: FloatArray,
        values: FloatArray,
        *,
        scale: float,
        is_causal: bool,
        standardize: bool,
    ) -> "SequenceReading":
        """Compute the kernel PCA of heads (h, n, d)."""
        cloud = kernel_pca(keys, scale=scale)
        logs = log_feature_norms(
            queries, keys, scale=scale, is_causal=is_causal, standardize=standardize
        )
        weights = softmax_weights(queries, keys, scale=scale, is_causal=is_causal)
        target = kernel_pca_values(cloud, values.shape[-1])
        return cls(cloud, values, weights, logs, target)

    def head(self, index: int) -> HeadReading:
        """Return one head."""
        return HeadReading(
            cloud=KernelPCA(**{f: getattr(self.cloud, f)[index] for f in _CLOUD}),
            values=self.values[index],
            weights=self.weights[index],
            log_features=self.log_features[index],
            target=self.target[index],
        )

    def statistics(self) -> dict[str, FloatArray]:
        """Return the statistics of all heads at once, (heads,) each, without nulls.

        The loops over draws serve here for heads, each with its own normaliser.
        """
        n_heads, n, width = self.values.shape
        logs = self.cloud.log_normaliser
        normaliser = np.exp(logs - logs.max(axis=-1, keepdims=True))
        rows = np.ascontiguousarray(self.values.transpose(0, 2, 1))
        n_queries = self.weights.shape[1]
        read = np.empty((n_heads, width, n_queries + width + n))
        read[..., :n_queries] = rows @ self.weights.transpose(0, 2, 1)
        target = self.target - self.target.mean(axis=1, keepdims=True)
        read[..., n_queries:-n] = rows @ target
        read[..., -n:] = (rows * normaliser[:, None]) @ self.cloud.gram
        drawn, read = (np.ascontiguousarray(x.swapaxes(0, 1)) for x in (rows, read))
        squares = np.empty((n_heads, n_queries))
        crosses, residuals = np.empty((2, n_heads))
        ratios = np.empty(drawn.shape, dtype=np.uint64)
        norms_and_ratios(drawn, normaliser, read, squares, crosses, residuals, ratios)
        ratios.sort(axis=-1)
        captured = captured_traces(drawn, normaliser, read[..., -n:])
        for index in np.flatnonzero(np.isnan(captured)).tolist():
            place = slice(index, index + 1)
            products = read[:, place, -n:]
            captured[place] = self.head(index).captured(drawn[:, place], products, True)
        norms = _covariance_norm(self.values) * _covariance_norm(self.target)
        with np.errstate(divide="ignore"):
            outputs = np.log10(squares)
        features = self.log_features / math.log(10)
        grams = _unit_gram(self.values), _unit_gram(self.target)
        cosines = unit_rows(self.target) @ unit_rows(self.values).swapaxes(1, 2)
        eigenvalues = self.cloud.eigenvalues
        return {
            "norm_ratio": (outputs - features).mean(axis=-1),
            "output_norm": outputs.mean(axis=-1),
            "feature_norm": features.mean(axis=-1),
            "gamma_difference": differences_of_sorted(ratios),
            "eigen_residual": residuals,
            "captured_variance": _shares(captured, eigenvalues[:, :width].sum(axis=1)),
            "linear_cka": _shares(crosses, norms),
            "rbf_cka": np.einsum("hij,hij->h", *grams),
            "matching_cosine": best_matching(cosines),
            "kernel_trace": self.cloud.trace,
            "top_eigenvalue": eigenvalues[:, 0],
            "kernel_rank": effective_rank(eigenvalues),
        }


def rbf_of_permuted(
    readings: list[HeadReading], orders: NDArray[np.intp]
) -> FloatArray:
    """Return the RBF alignments for permuted values, (heads, draws).

    A permutation of the values permutes their Gram matrix, so that distances and
    bandwidth are computed once; heads share the permutations and the index arrays.
    """
    n = orders.shape[1]
    rows, columns = np.triu_indices(n)
    # Both are symmetric: an entry above the diagonal counts twice.
    counts = np.where(rows == columns, 1.0, 2.0)
    grams = [_unit_gram(reading.values).ravel() for reading in readings]
    targets = [counts * r.target_gram[rows, columns] for r in readings]
    aligned = np.empty((len(readings), len(orders)))
    for part in parts(len(orders), len(rows)):
        o = orders[part]
        index = np.take(o, rows, axis=1) * n + np.take(o, columns, axis=1)
        for row, (gram, target) in enumerate(zip(grams, targets, strict=True)):
            aligned[row, part] = np.take(gram, index) @ target
    return aligned


def softmax_weights(
    queries: FloatArray, keys: FloatArray, *, scale: float, is_causal: bool
) -> FloatArray:
    """Return softmax(c q·k), rows of queries."""
    scores = scale * queries @ np.swapaxes(keys, -1, -2)
    if is_causal:
        n, m = scores.shape[-2:]
        scores = np.where(np.tril(np.ones((n, m), bool), m - n), scores, -np.inf)
    weights: FloatArray = stable_softmax(scores)
    return weights


def parts(count: int, size: int, block: int = _BLOCK) -> list[slice]:
    """Return slices of `count` draws, each of about `block` numbers."""
    step = max(1, block // size)
    return [slice(start, start + step) for start in range(0, count, step)]


def joined_draws(blocks: Iterable[dict[str, FloatArray]]) -> dict[str, FloatArray]:
    """Return the draws of all blocks."""
    listed = list(blocks)
    return {
        name: np.concatenate([block[name] for block in listed]) for name in listed[0]
    }


def _shares(parts_of: FloatArray, wholes: FloatArray) -> FloatArray:
    """Return quotients; NaN where the denominator is zero."""
    empty = np.full(len(wholes), np.nan)
    return np.divide(parts_of, wholes, out=empty, where=wholes > 0)


def _covariance_norm(points: FloatArray) -> FloatArray:
    """Return the Frobenius norm of XᵀHX, X of shape (..., n, d)."""
    centred = points - points.mean(axis=-2, keepdims=True)
    products = np.swapaxes(centred, -1, -2) @ centred
    return np.asarray(np.linalg.norm(products, axis=(-2, -1)))


def _unit_gram(points: FloatArray) -> FloatArray:
    """Return centred Gaussian Gram matrices of Frobenius norm 1, (..., n, n).

    As `rbf_gram`, from the pairs of tokens above the diagonal.
    """
    *batch, n, width = points.shape
    pairs = _gaussian_pairs(points.reshape(-1, n, width))
    rows, columns = np.triu_indices(n, 1)
    gram = np.ones((len(pairs), n, n))
    gram[:, rows, columns] = gram[:, columns, rows] = pairs
    means = gram.mean(axis=2)
    # In this order the entries of a matrix of ones become exactly zero.
    shifts = means[:, :, None] + means[:, None, :]
    gram -= shifts - means.mean(axis=1)[:, None, None]
    norms = np.linalg.norm(gram, axis=(1, 2))[:, None, None]
    gram /= np.where(norms > 0, norms, np.nan)
    return gram.reshape(*batch, n, n)


def _gaussian_pairs(stack: FloatArray) -> FloatArray:
    """Return the Gaussian kernel of pairs of tokens (draws, pairs), median bandwidth.

    The median is the lower of two.
    """
    pairs = pair_distances(stack @ stack.transpose(0, 2, 1))
    middle = (pairs.shape[1] - 1) // 2
    median = np.partition(pairs, middle, axis=1)[:, middle, None]
    pairs /= -2 * np.where(median > 0, median, 1.0)
    return np.exp(pairs, out=pairs)


def captured_traces(
    drawn: FloatArray, normaliser: FloatArray, products: FloatArray, ridge: float = 0.0
) -> FloatArray:
    r"""Return :math:`\operatorname{tr} ((A^\top A)^{-1} A^\top \tilde K A)` per draw.

    Parameters
    ----------
    drawn
        Values (d, draws, n).
    normaliser
        :math:`g`, (draws, n), or (n,) for all draws: :math:`A` is the values times it,
        centred.
    products
        :math:`\tilde K A`, (d, draws, n).
    ridge
        Added to :math:`A^\top A`, relative to its mean eigenvalue.

    Returns
    -------
    traces
        NaN where :math:`A^\top A` is too close to singular (never with a ridge).
    """
    weighted = drawn * normaliser
    weighted -= weighted.mean(axis=-1, keepdims=True)
    rows = weighted.swapaxes(0, 1)
    gram = rows @ rows.swapaxes(1, 2)
    form = rows @ products.transpose(1, 2, 0)
    squares = np.trace(gram, axis1=1, axis2=2)
    diagonal = np.arange(len(drawn))
    gram[:, diagonal, diagonal] += (ridge * squares / len(drawn))[:, None]
    try:
        inverse = np.linalg.inv(gram)
    except np.linalg.LinAlgError:  # one of them is singular to the last digit
        return np.full(len(gram), np.nan)
    traces = np.einsum("bij,bji->b", inverse, form)
    # One over the share of a column's square that the others leave of it.
    inflation = np.einsum("bii,bii->bi", inverse, gram)
    is_sound = (inflation > 0) & (inflation < 1 / _LEAST_REST)
    return np.where(is_sound.all(axis=1) | (ridge > 0), traces, np.nan)
