"""What the head reads: moments of rows, and products with their covariance."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eigenheads._typing import FloatArray
from eigenheads.estimators._attention_pca_fit import Product

# Prompts grow by this factor until they hold all rows.
_GROWTH = 8
Rows = NDArray[np.floating[Any]]


class Moments(NamedTuple):
    """Number of rows, their mean, and the sum of squared distances from it."""

    n: int
    mean: FloatArray
    squares: float

    def merged(self, other: "Moments") -> "Moments":
        """Return the moments of both sets of rows together."""
        n = self.n + other.n
        shift = other.mean - self.mean
        mean = self.mean + shift * (other.n / n)
        between = float(shift @ shift) * (self.n * other.n / n)
        return Moments(n, mean, self.squares + other.squares + between)


def no_moments(d: int) -> Moments:
    return Moments(0, np.zeros(d), 0.0)


def moments_of(rows: Rows, block_size: int) -> Moments:
    """Return the moments, read in blocks; sums of a block are taken in its dtype."""
    moments = no_moments(rows.shape[1])
    ones = np.ones(min(block_size, len(rows)), dtype=rows.dtype)
    for block in blocks_of(rows, block_size):
        weights = ones[: len(block)] / rows.dtype.type(len(block))
        rough = weights @ block
        centred = block - rough
        rest = (weights @ centred).astype(np.float64)
        squares = float(np.vdot(centred, centred)) - len(block) * float(rest @ rest)
        here = Moments(len(block), rough.astype(np.float64) + rest, max(squares, 0.0))
        moments = moments.merged(here)
    return moments


def blocks_of(rows: Rows, block_size: int) -> Iterator[Rows]:
    for first in range(0, len(rows), block_size):
        yield rows[first : first + block_size]


def covariance_of(blocks: list[Rows], mean: FloatArray) -> Product:
    """Return V ↦ ΣV for the rows of all blocks, without a d × d matrix."""
    n, largest = sum(map(len, blocks)), max(map(len, blocks))
    return covariance_over(lambda: blocks, n, largest, mean.astype(blocks[0].dtype))


def covariance_over(
    blocks: Callable[[], Iterable[Rows]], n: int, largest: int, shift: Rows
) -> Product:
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
    """Rows to train on, all of them at hand."""

    def __init__(self, rows: Rows, block_size: int) -> None:
        self._rows, self._block_size = rows, block_size
        self.n, self.dtype = len(rows), rows.dtype
        self.moments = moments_of(rows, block_size)

    def parts(self) -> Iterator[Rows]:
        """Yield arrays that together are all rows."""
        yield self._rows

    def covariance(self) -> Product:
        """Return V ↦ ΣV for all rows."""
        blocks = list(blocks_of(self._rows, self._block_size))
        return covariance_of(blocks, self.moments.mean)

    def growing(self, random: np.random.RandomState) -> Iterator[tuple[int, Product]]:
        """Yield the number and the covariance of more and more rows, at last of all."""
        for prompt in growing_prompts(self._rows, self._block_size, random):
            n = sum(len(block) for block in prompt)
            yield n, covariance_of(prompt, self.moments.mean)


class Memory(NamedTuple):
    """What a head keeps of a stream: moments, and variances along its directions.

    The variance it has not kept is taken to be the same in all other directions.
    """

    moments: Moments
    directions: FloatArray
    variances: FloatArray

    def covariance_with(self, rows: Rows) -> tuple[Moments, Product]:
        """Return moments and V ↦ ΣV of the past and these rows together."""
        old, new = self.moments, moments_of(rows, len(rows))
        moments = old.merged(new)
        fresh = covariance_of([rows], new.mean)
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
            kept = self.directions @ along + elsewhere * vectors
            moved = np.outer(shift, shift @ vectors)
            total: FloatArray = past * kept + now * (fresh(vectors) + past * moved)
            return total

        return moments, times
