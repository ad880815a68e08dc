"""Size limits: larger requests raise a ValueError instead of a MemoryError."""

import math

from eigenheads._checks import Got, check_count, fail
from eigenheads._typing import FloatArray

# Numbers recorded by a simulation: 4 GiB of doubles.
MAX_RECORDED = 2**29
# Numbers in working memory: 2 GiB of doubles.
MAX_WORK = 2**28
# Numbers in one sampled array: 32 GiB of doubles.
MAX_SAMPLE = 2**32
# Updates per run: ten days at a nanosecond per step, and exact in float64.
MAX_STEPS = 10**15
# Largest input: products of four such numbers do not overflow float64.
LARGEST = 1e50
# The same in float32: sums of many squares of such numbers do not overflow.
LARGEST_SINGLE = 1e15
# Runs per simulation.
MAX_RUNS = 10**6
# Largest dimension: d - 4 and d / 2 are exact in float64.
MAX_DIMENSION = 10**15


def check_run_memory(n_runs: int, numbers: int, *, hint: str = "") -> None:
    """Raise if runs that keep so many numbers each exceed the working memory.

    Examples
    --------
    >>> check_run_memory(1000, 100)
    """
    if n_runs * numbers > MAX_WORK:
        contract = (
            f"at most {MAX_WORK // numbers}, because each run keeps {numbers} numbers "
            f"and {MAX_WORK} fit into the working memory"
        )
        fail("n_runs", contract, n_runs, hint=hint)


def check_largest(name: str, array: FloatArray) -> None:
    """Raise if a finite number is so large that its square could overflow.

    Examples
    --------
    >>> import numpy as np
    >>> check_largest("X", np.array([1e9]))
    """
    largest = max(float(array.max(initial=0)), -float(array.min(initial=0)))
    limit, where = LARGEST, ""
    if array.dtype == "float32":
        limit, where = LARGEST_SINGLE, " in float32"
    if limit < largest < math.inf:
        contract = f"numbers of at most {limit:g}{where}"
        fail(name, contract, Got(f"{largest:g}"), hint="Rescale it.")


def check_sample_size(n: object, numbers: int, *, hint: str) -> int:
    """Return `n` if `n` prompts of `numbers` numbers each fit into memory."""
    count = check_count("n", n)
    if count * numbers > MAX_SAMPLE:
        contract = f"so small that a sample has at most {MAX_SAMPLE} numbers"
        fail("n", contract, count, hint=hint)
    return count
