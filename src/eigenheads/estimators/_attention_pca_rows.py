"""Rows of streaming PCA: reading them, centring, and coordinates of the subspace."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.utils import Tags, check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from eigenheads._checks import Got, fail, without_traps
from eigenheads._typing import FloatArray
from eigenheads.estimators._batches import is_dask, row_blocks

# --- Coordinates ---------------------------------------------------------------------


class PrincipalCoordinates(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """Methods of :class:`AttentionPCA` that need no training data."""

    components_: NDArray[np.floating[Any]]
    explained_variance_: NDArray[np.floating[Any]]
    mean_: NDArray[np.floating[Any]]
    noise_variance_: float
    verbose: int
    whiten: bool

    def transform(self, X: Any) -> NDArray[np.floating[Any]]:
        """Return the coordinates of rows along the components.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), or Dask array
            Rows; of a Dask array one chunk is in memory at a time.

        Returns
        -------
        X_new : ndarray of shape (n_samples, n_components)
            Coordinates, of unit variance with `whiten`.
        """
        if is_dask(X):
            return np.concatenate([self.transform(block) for block in row_blocks(X)])
        check_is_fitted(self)
        rows = self._read(X, reset=False, accept_sparse="csr")
        turn = (self.components_.T / self._scales()).astype(rows.dtype)
        mean = self.mean_.astype(rows.dtype)
        if issparse(rows):
            return np.asarray(rows @ turn) - mean @ turn
        projected: NDArray[np.floating[Any]] = (rows - mean) @ turn
        return projected

    def inverse_transform(self, X: ArrayLike) -> NDArray[np.floating[Any]]:
        """Return the rows that have given coordinates.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_components)
            Coordinates.

        Returns
        -------
        X_original : ndarray of shape (n_samples, n_features)
            Points of the span of the components.
        """
        check_is_fitted(self)
        X = without_traps("X", X)
        scores = check_array(X, dtype=[np.float64, np.float32], input_name="X")
        k = len(self.components_)
        if scores.shape[1] != k:
            contract = f"of shape (n_samples, {k})"
            fail("X", contract, Got(scores.shape))
        turn = (self.components_.T * self._scales()).T.astype(scores.dtype)
        back: NDArray[np.floating[Any]] = scores @ turn + self.mean_.astype(turn.dtype)
        return back

    def get_covariance(self) -> NDArray[np.floating[Any]]:
        """Return the covariance under the model of probabilistic PCA.

        Returns
        -------
        covariance : ndarray of shape (n_features, n_features)
            Variances `explained_variance_` along the components, and
            `noise_variance_` in all other directions.
        """
        check_is_fitted(self)
        excess = np.maximum(self.explained_variance_ - self.noise_variance_, 0)
        covariance = (self.components_.T * excess) @ self.components_
        covariance.flat[:: len(covariance) + 1] += self.noise_variance_
        return covariance

    def _scales(self) -> Any:
        """Return what coordinates are divided by."""
        if not self.whiten:
            return 1.0
        deviations = np.sqrt(self.explained_variance_)
        return np.maximum(deviations, np.finfo(deviations.dtype).eps)

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _report(self, message: str) -> None:
        if self.verbose:
            sys.stdout.write(f"{type(self).__name__}: {message}\n")

    def _read(self, X: ArrayLike, *, reset: bool, **options: Any) -> Any:
        X = without_traps("X", X)
        return validate_data(
            self, X, dtype=[np.float64, np.float32], reset=reset, **options
        )


# --- Rows ----------------------------------------------------------------------------


# Prompts grow by this factor until they contain all rows.
_GROWTH = 8
Rows: TypeAlias = NDArray[np.floating[Any]]
# V ↦ ΣV for V of shape (d, k).
CovarianceProduct: TypeAlias = Callable[[FloatArray], FloatArray]


class RowMoments(NamedTuple):
    """Number or weight of rows, their mean, the sum of squared distances from it."""

    n: float
    mean: FloatArray
    squares: float

    def merged(self, other: "RowMoments") -> "RowMoments":
        """Return the moments of both sets of rows together."""
        n = self.n + other.n
        shift = other.mean - self.mean
        mean = self.mean + shift * (other.n / n)
        between = float(shift @ shift) * (self.n * other.n / n)
        return RowMoments(n, mean, self.squares + other.squares + between)


def no_moments(d: int) -> RowMoments:
    """Return the moments of no rows."""
    return RowMoments(0, np.zeros(d), 0.0)


def moments_of(rows: Rows, block_size: int) -> RowMoments:
    """Return the moments, read in blocks; sums of a block are taken in its dtype."""
    moments = no_moments(rows.shape[1])
    ones = np.ones(min(block_size, len(rows)), dtype=rows.dtype)
    for block in blocks_of(rows, block_size):
        weights = ones[: len(block)] / rows.dtype.type(len(block))
        rough = weights @ block
        centred = block - rough
        shift = (weights @ centred).astype(np.float64)
        squares = float(np.vdot(centred, centred)) - len(block) * float(shift @ shift)
        here = RowMoments(
            len(block), rough.astype(np.float64) + shift, max(squares, 0.0)
        )
        moments = moments.merged(here)
    return moments


def blocks_of(rows: Rows, block_size: int) -> Iterator[Rows]:
    """Yield consecutive blocks of rows."""
    for first in range(0, len(rows), block_size):
        yield rows[first : first + block_size]


def covariance_of(blocks: list[Rows], mean: FloatArray) -> CovarianceProduct:
    """Return V ↦ ΣV for the rows of all blocks, without a d × d matrix."""
    n, largest = sum(map(len, blocks)), max(map(len, blocks))
    return covariance_over(lambda: blocks, n, largest, mean.astype(blocks[0].dtype))


def covariance_over(
    blocks: Callable[[], Iterable[Rows]], n: int, largest: int, shift: Rows
) -> CovarianceProduct:
    """Return V ↦ ΣV for `n` rows that are read anew, block by block, each time.

    Rows are centred in the dtype of `shift`; sums over blocks are float64.
    """
    dtype = shift.dtype
    space = np.empty((largest, len(shift)), dtype)

    def times(vectors: FloatArray) -> FloatArray:
        narrow = np.ascontiguousarray(vectors, dtype=dtype)
        total = np.zeros(vectors.shape[::-1])
        for block in blocks():
            centred = space[: len(block)]
            np.subtract(block, shift, out=centred)
            total += (centred @ narrow).T @ centred
        return total.T / n

    return times


def growing_prompts(
    rows: Rows, block_size: int, random: np.random.RandomState
) -> Iterator[list[Rows]]:
    """Yield prompts that grow from a few random blocks of rows to all rows."""
    blocks = list(blocks_of(rows, block_size))
    order = random.permutation(len(blocks))
    size = max(1, math.ceil(2 * rows.shape[1] / block_size))
    while size * _GROWTH <= len(blocks):
        yield [blocks[index] for index in order[:size]]
        size *= _GROWTH
    yield blocks


class RowsInMemory:
    """Rows to train on, all in memory."""

    def __init__(self, rows: Rows, block_size: int) -> None:
        self._rows, self._block_size = rows, block_size
        self.n, self.dtype = len(rows), rows.dtype
        self.moments = moments_of(rows, block_size)

    def parts(self) -> Iterator[Rows]:
        """Yield arrays that together are all rows."""
        yield self._rows

    def covariance(self) -> CovarianceProduct:
        """Return V ↦ ΣV for all rows."""
        blocks = list(blocks_of(self._rows, self._block_size))
        return covariance_of(blocks, self.moments.mean)

    def growing(
        self, random: np.random.RandomState
    ) -> Iterator[tuple[int, CovarianceProduct]]:
        """Yield the number and the covariance of more and more rows, at last of all."""
        for prompt in growing_prompts(self._rows, self._block_size, random):
            n = sum(len(block) for block in prompt)
            yield n, covariance_of(prompt, self.moments.mean)


class WeightedRows:
    """Rows with weights, or in a sparse matrix; a counterpart of `RowsInMemory`.

    A sparse matrix stays one: the mean is subtracted from products.

    Parameters
    ----------
    rows
        Dense array or CSR matrix.
    weights
        Weights of the rows; None is ones.
    """

    def __init__(self, rows: Any, weights: FloatArray | None) -> None:
        self._rows = rows
        self._weights = np.ones(rows.shape[0]) if weights is None else weights
        self.n, self.dtype = float(self._weights.sum()), rows.dtype
        mean = np.asarray(rows.T @ self._weights, dtype=np.float64).ravel() / self.n
        if issparse(rows):
            lengths = np.asarray(rows.multiply(rows).sum(axis=1)).ravel()
            total = float(self._weights @ lengths) - self.n * float(mean @ mean)
        else:
            self._rows = rows - mean.astype(rows.dtype)
            total = float(self._weights @ np.einsum("ij,ij->i", *(self._rows,) * 2))
        self.moments = RowMoments(self.n, mean, max(total, 0.0))

    def parts(self) -> Iterator[Rows]:
        """Yield arrays that together are all rows."""
        rows = self._rows
        dense = rows.toarray() if issparse(rows) else rows + self.moments.mean
        yield dense.astype(self.dtype, copy=False)

    def covariance(self) -> CovarianceProduct:
        """Return V ↦ ΣV for all rows."""
        rows, weights, mean = self._rows, self._weights[:, None], self.moments.mean
        shift = mean if issparse(rows) else np.zeros_like(mean)

        def times(vectors: FloatArray) -> FloatArray:
            product = np.asarray(rows @ vectors.astype(rows.dtype), dtype=np.float64)
            product = weights * (product - shift @ vectors)
            back = np.asarray(rows.T @ product.astype(rows.dtype), dtype=np.float64)
            covariance: FloatArray = (
                back - np.outer(shift, product.sum(axis=0))
            ) / self.n
            return covariance

        return times

    def growing(
        self, random: np.random.RandomState
    ) -> Iterator[tuple[float, CovarianceProduct]]:
        """Yield the weight and the covariance of all rows."""
        yield self.n, self.covariance()


class StreamedRows:
    """Rows to train on, in batches; the counterpart of :class:`RowsInMemory`.

    Parameters
    ----------
    read
        Begins a pass over the checked batches.
    block_size
        Rows per product.
    """

    def __init__(self, read: Callable[[], Iterator[Rows]], block_size: int) -> None:
        self._read, self._block_size = read, block_size
        self._largest, dtypes = 0, set()
        moments = no_moments(0)
        for batch in read():
            here = moments_of(batch, block_size)
            moments = moments.merged(here) if moments.n else here
            self._largest = max(self._largest, len(batch))
            dtypes.add(batch.dtype)
        self.n, self.moments = int(moments.n), moments
        self.dtype = np.result_type(*dtypes) if dtypes else np.dtype(float)

    def parts(self) -> Iterator[Rows]:
        """Yield the batches, all of one type."""
        for batch in self._read():
            yield batch.astype(self.dtype, copy=False)

    def covariance(self) -> CovarianceProduct:
        """Return V ↦ ΣV for all rows: one pass per product."""
        largest = min(self._block_size, self._largest)
        shift = self.moments.mean.astype(self.dtype)
        return covariance_over(self._blocks, self.n, largest, shift)

    def growing(
        self, random: np.random.RandomState
    ) -> Iterator[tuple[int, CovarianceProduct]]:
        """Yield number and covariance of more and more rows, at last of all.

        Before that they are a sample from all batches, as large as one batch: it is
        enough for most iterations, and each product with all rows costs a pass.
        """
        size = max(self._largest, self._block_size)
        if size < self.n:
            sample = RowsInMemory(self._some(size / self.n, random), self._block_size)
            yield from sample.growing(random)
        yield self.n, self.covariance()

    def _blocks(self) -> Iterator[Rows]:
        for part in self.parts():
            yield from blocks_of(part, self._block_size)

    def _some(self, share: float, random: np.random.RandomState) -> Rows:
        taken, n_read = [], 0
        for part in self.parts():
            count = int(share * (n_read + len(part))) - int(share * n_read)
            n_read += len(part)
            taken.append(part[np.sort(random.permutation(len(part))[:count])])
        return np.concatenate(taken)


class StreamMemory(NamedTuple):
    """Summary of past rows of a stream: moments, and variances along the directions.

    The remaining variance is assumed to be the same in all other directions.
    """

    moments: RowMoments
    directions: FloatArray
    variances: FloatArray

    def covariance_with(
        self, rows: Rows, weights: FloatArray | None = None
    ) -> tuple[RowMoments, CovarianceProduct]:
        """Return moments and V ↦ ΣV of the past and these rows together."""
        if weights is None and not issparse(rows):
            new = moments_of(rows, len(rows))
            fresh = covariance_of([rows], new.mean)
        else:
            weighted = WeightedRows(rows, weights)
            new, fresh = weighted.moments, weighted.covariance()
        old = self.moments
        moments = old.merged(new)
        if not old.n:
            return moments, fresh
        past, now = old.n / moments.n, new.n / moments.n
        shift = new.mean - old.mean
        d, k = self.directions.shape
        lost = max(old.squares / old.n - float(self.variances.sum()), 0.0)
        elsewhere = lost / (d - k) if d > k else 0.0
        excess = self.variances - elsewhere

        def times(vectors: FloatArray) -> FloatArray:
            along = excess[:, None] * (self.directions.T @ vectors)
            remembered = self.directions @ along + elsewhere * vectors
            moved = np.outer(shift, shift @ vectors)
            total: FloatArray = past * remembered + now * (
                fresh(vectors) + past * moved
            )
            return total

        return moments, times
