"""Advance the runs of a simulation side by side, one compiled kernel a run."""

from collections.abc import Callable
from typing import Any

import numpy as np

from eigenheads._parallel import RunPool
from eigenheads._typing import FloatArray


def advance_runs(
    pool: RunPool,
    kernel: Callable[..., int],
    generators: list[np.random.Generator],
    states: list[FloatArray],
    records: FloatArray,
    block: tuple[Any, ...],
) -> list[int]:
    """Advance every run by one block; return where each overflowed, or -1."""
    broken = [-1] * len(states)

    def work(run: int) -> None:
        broken[run] = kernel(generators[run], states[run], *block, records[run])

    pool.each(work)
    return broken
