"""Order of the examples of a run, and reading them ahead of the model."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor

from eigenheads_papers.recipes._tasks import Reader

# Parts of batches that are read while the model computes.
_AHEAD = 2


class Place(NamedTuple):
    """Examples to read: numbers, the seed of their crops, the place in the batch."""

    indices: list[int]
    seed: tuple[int, ...]
    first: int


class Prefetch:
    """Read parts of batches in order, in a thread, some of them ahead of the model."""

    def __init__(
        self, places: Iterator[Place], reader: Reader, device: torch.device
    ) -> None:
        self._places, self._reader, self._device = places, reader, device
        self._pool = ThreadPoolExecutor(1)
        self._waiting: list[Future[tuple[Tensor, Tensor]]] = []

    def __enter__(self) -> "Prefetch":
        for _ in range(_AHEAD):
            self._submit()
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def next(self) -> tuple[Tensor, Tensor]:
        """Return the next part of a batch, on the device."""
        # The next part is requested before the wait, so that reading stays ahead.
        self._submit()
        inputs, targets = self._waiting.pop(0).result()
        return inputs.to(self._device), targets.to(self._device)

    def _submit(self) -> None:
        place = next(self._places, None)
        if place is not None:
            self._waiting.append(self._pool.submit(self._read, place))

    def _read(self, place: Place) -> tuple[Tensor, Tensor]:
        return self._reader.read(place.indices, seed=place.seed, first=place.first)


def epoch_order(n: int, *, seed: int, epoch: int, repeats: int) -> NDArray[np.int64]:
    """Return the numbers of the examples of an epoch, in order.

    With `repeats` > 1, each of the first ``n / repeats`` examples of a random order
    is repeated that many times in a row (repeated augmentation); an epoch still has
    n examples.
    """
    shuffled = np.random.default_rng((seed, epoch)).permutation(n)
    return np.repeat(shuffled, repeats)[:n]


def shares(n: int, batch_size: int, accelerator: Accelerator) -> Iterator[list[int]]:
    """Yield batches of this process' share of n examples."""
    # Interleaved shares differ by one example at most.
    mine = range(accelerator.process_index, n, accelerator.num_processes)
    for begin in range(0, len(mine), batch_size):
        yield list(mine[begin : begin + batch_size])
