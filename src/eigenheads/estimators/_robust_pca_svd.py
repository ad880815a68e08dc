"""Singular values above a threshold, of matrices that change slowly.

The right singular vectors of one matrix are the start for the next.
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh

from eigenheads._rng import random_source
from eigenheads._typing import FloatArray


class ThresholdedSVD(NamedTuple):
    """Factors of a matrix whose singular values were shrunk, largest first.

    ``left`` has orthonormal columns and ``right`` orthonormal rows, one per singular
    value; the matrix is ``left * singular_values @ right``.
    """

    left: FloatArray
    singular_values: FloatArray
    right: FloatArray

    @property
    def rank(self) -> int:
        """Number of singular values above the threshold."""
        return len(self.singular_values)

    def matrix(self) -> FloatArray:
        """Return the matrix."""
        return (self.left * self.singular_values) @ self.right


# Columns beyond the predicted rank, which speed up the convergence of the others.
_SPARE = 8
# The smaller Gram matrix is decomposed if its side is at most this, or at most this
# many times the block of a partial decomposition.
_SMALL_SIDE, _FULL_FROM = 96, 8
# Products of a cold start: each squares the separation of the singular values.
_COLD_STEPS = 4
# Columns (or rows) of the matrix that are converted to double precision at a time.
_BLOCK = 1024


class WarmThresholdedSVD:
    """Thresholded singular value decompositions of a sequence of centred matrices.

    Parameters
    ----------
    roots
        Column by which the rows of the matrices were multiplied; None is ones. It is
        the square root of weights, and means are weighted.

    Attributes
    ----------
    mean
        Column means of the last matrix.
    """

    def __init__(self, roots: FloatArray | None = None) -> None:
        self._roots = None if roots is None else roots[:, 0]
        self.mean: FloatArray = np.empty(0)
        self._basis: FloatArray | None = None  # right vectors of the last matrix
        self._rank = 0
        self._random = random_source(0)

    def __call__(self, x: FloatArray, threshold: float) -> ThresholdedSVD:
        """Subtract `threshold` from the singular values of ``x - roots * mean``.

        Parameters
        ----------
        x
            Matrix in single or double precision; it is not copied.
        threshold
            Singular values above it are kept.

        Returns
        -------
        factors
            In double precision.
        """
        ones = np.ones(len(x)) if self._roots is None else self._roots
        self._ones = ones
        self.mean = (ones.astype(x.dtype) @ x).astype(np.float64) / float(ones @ ones)
        side = min(x.shape)
        block = min(self._rank + _SPARE, side)
        if side <= _SMALL_SIDE or _FULL_FROM * block > side:
            factors = self._full(x, threshold)
        else:
            factors = self._partial(x, threshold, block)
        self._rank = factors.rank
        return factors

    def _full(self, x: FloatArray, threshold: float) -> ThresholdedSVD:
        """Decompose the smaller Gram matrix, formed in double precision."""
        n, d = x.shape
        is_tall = n >= d
        gram = np.zeros((min(n, d),) * 2)
        for start in range(0, max(n, d), _BLOCK):
            part = slice(start, start + _BLOCK)
            rows = x[part] if is_tall else x[:, part].T
            wide = rows.astype(np.float64, copy=False)
            gram += wide.T @ wide
        if is_tall:
            gram -= float(self._ones @ self._ones) * np.outer(self.mean, self.mean)
        else:
            # (X - u m')(X - u m')' with the mean m and the column u of ones.
            shift = x @ self.mean - self._ones * float(self.mean @ self.mean) / 2
            gram -= np.outer(shift, self._ones) + np.outer(self._ones, shift)
        low, top = threshold**2, 2 * max(float(np.trace(gram)), 0.0)
        if low >= top:
            return _nothing(n, d)
        squares, vectors = eigh(
            gram, subset_by_value=(low, top), overwrite_a=True, check_finite=False
        )
        sizes, vectors = np.sqrt(squares[::-1]), vectors[:, ::-1]
        is_above = sizes > threshold
        sizes, vectors = sizes[is_above], vectors[:, is_above]
        if is_tall:
            left, right = self._times(x, vectors) / sizes, vectors.T
        else:
            left, right = vectors, (self._transposed_times(x, vectors) / sizes).T
        self._basis = right.T
        return ThresholdedSVD(left, sizes - threshold, right)

    def _partial(self, x: FloatArray, threshold: float, block: int) -> ThresholdedSVD:
        """Iterate on a block of vectors that holds all above the threshold."""
        side = min(x.shape)
        n_steps = 1 if self._basis is not None else _COLD_STEPS
        while True:
            if _FULL_FROM * block > side:
                return self._full(x, threshold)
            basis = self._padded(x.shape[1], block)
            for _ in range(n_steps):
                left = np.linalg.qr(self._times(x, basis))[0]
                image = self._transposed_times(x, left)  # (d, block)
                squares, turn = np.linalg.eigh(image.T @ image)
                squares, turn = squares[::-1], turn[:, ::-1]
                sizes = np.sqrt(np.maximum(squares, 0.0))
                floor = 1e-12 * max(float(sizes[0]), np.finfo(float).tiny)
                basis = (image @ turn) / np.maximum(sizes, floor)
            self._basis = basis
            if sizes[-1] <= threshold:
                is_above = sizes > threshold
                return ThresholdedSVD(
                    left @ turn[:, is_above],
                    sizes[is_above] - threshold,
                    basis[:, is_above].T,
                )
            block = min(2 * block, side)
            n_steps = 2

    def _padded(self, d: int, block: int) -> FloatArray:
        """Return a basis of `block` columns that begins with the last one."""
        columns = np.empty((d, 0)) if self._basis is None else self._basis[:, :block]
        fresh = self._random.standard_normal((d, block - columns.shape[1])) / np.sqrt(d)
        return np.concatenate([columns, fresh], axis=1)

    def _times(self, x: FloatArray, vectors: FloatArray) -> FloatArray:
        product: FloatArray = x @ vectors.astype(x.dtype)
        return product.astype(np.float64) - np.outer(self._ones, self.mean @ vectors)

    def _transposed_times(self, x: FloatArray, vectors: FloatArray) -> FloatArray:
        product: FloatArray = x.T @ vectors.astype(x.dtype)
        return product.astype(np.float64) - np.outer(self.mean, self._ones @ vectors)


def _nothing(n: int, d: int) -> ThresholdedSVD:
    return ThresholdedSVD(np.empty((n, 0)), np.empty(0), np.empty((0, d)))
