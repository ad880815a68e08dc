"""Rows that do not fit in memory: read again in every pass, one batch at a time."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from eigenheads.estimators._attention_pca_fit import Product
from eigenheads.estimators._attention_pca_rows import (
    Rows,
    RowsInMemory,
    blocks_of,
    covariance_over,
    moments_of,
    no_moments,
)

Read: TypeAlias = Callable[[], Iterator[Rows]]


class StreamedRows:
    """Rows to train on, in batches; the counterpart of :class:`RowsInMemory`.

    Parameters
    ----------
    read
        Begins a pass over the batches, checked.
    block_size
        Rows of a product.
    """

    def __init__(self, read: Read, block_size: int) -> None:
        self._read, self._block_size = read, block_size
        self._largest, dtypes = 0, set()
        moments = no_moments(0)
        for batch in read():
            here = moments_of(batch, block_size)
            moments = moments.merged(here) if moments.n else here
            self._largest = max(self._largest, len(batch))
            dtypes.add(batch.dtype)
        self.n, self.moments = moments.n, moments
        self.dtype = np.result_type(*dtypes) if dtypes else np.dtype(float)

    def parts(self) -> Iterator[Rows]:
        """Yield the batches, all of one type."""
        for batch in self._read():
            yield batch.astype(self.dtype, copy=False)

    def covariance(self) -> Product:
        """Return V ↦ ΣV for all rows: a pass a product."""
        largest = min(self._block_size, self._largest)
        shift = self.moments.mean.astype(self.dtype)
        return covariance_over(self._blocks, self.n, largest, shift)

    def growing(self, random: np.random.RandomState) -> Iterator[tuple[int, Product]]:
        """Yield number and covariance of more and more rows, at last of all.

        Till then they are some rows of all batches, as many as a batch holds. They are
        enough for most of the way, and each product with all rows is a pass.
        """
        size = max(self._largest, self._block_size)
        if size < self.n:
            some = RowsInMemory(self._some(size / self.n, random), self._block_size)
            yield from some.growing(random)
        yield self.n, self.covariance()

    def _blocks(self) -> Iterator[Rows]:
        for part in self.parts():
            yield from blocks_of(part, self._block_size)

    def _some(self, share: float, random: np.random.RandomState) -> Rows:
        taken, seen = [], 0
        for part in self.parts():
            count = int(share * (seen + len(part))) - int(share * seen)
            seen += len(part)
            taken.append(part[np.sort(random.permutation(len(part))[:count])])
        return np.concatenate(taken)
