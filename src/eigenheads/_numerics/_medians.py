"""Equals ``numpy.partition(rows, (n - 1) // 2)[:, (n - 1) // 2]``, 7 times faster.

Lower medians of rows with similar medians (2016 to 8128 numbers each). Counting the
numbers below a bound uses vector instructions, and few steps of bisection leave so few
numbers that they are sorted.
"""

import numpy as np

from eigenheads._compile import njit
from eigenheads._typing import FloatArray

# The search starts between these multiples of the previous median.
_NEAR = (0.95, 1.05)
# Bisection stops at this many numbers, or after this many steps if many are equal.
_FEW, _HALVINGS = 16, 60


@njit(error_model="numpy")
def lower_medians(rows: FloatArray, guess: float) -> FloatArray:
    """Return the median of each row of non-negative numbers, the lower of two.

    Parameters
    ----------
    rows
        (count, n). Rows are expected to have similar medians: the search in a row
        starts at the median of the row before.
    guess
        Where the search in the first row starts; infinity if nothing is known.

    Returns
    -------
    medians
        (count,); NaN for a row in which half of the numbers are infinite or NaN.
    """
    count, n = rows.shape
    middle = (n - 1) // 2
    found = np.empty(count)
    near = np.empty(n + 1)
    for index in range(count):
        row = rows[index]
        # Bisection on the value: `n_low` and `n_high` numbers are below the bounds.
        low, high = _NEAR[0] * guess, _NEAR[1] * guess
        n_low, n_high = _count_below(row, low), _count_below(row, high)
        if not (n_low <= middle < n_high):
            low, high, n_low, n_high = 0.0, np.inf, 0, n
        top = row.max() if high == np.inf else high
        for _ in range(_HALVINGS):
            if n_high - n_low <= _FEW:
                break
            bound = (low + min(high, top)) / 2
            n_bound = _count_below(row, bound)
            if n_bound <= middle:
                low, n_low = bound, n_bound
            else:
                high, n_high = bound, n_bound
        n_near = 0
        for i in range(n):
            near[n_near] = row[i]
            # Without a branch: the next number overwrites one that does not count.
            n_near += 1 if (row[i] >= low) & (row[i] < high) else 0
        place = middle - n_low
        # NaN and infinities are never below a bound, so that `place` may not exist.
        if place < n_near:
            _sort(near, n_near)
            found[index] = near[place]
        else:
            found[index] = np.nan
        guess = found[index]
    return found


@njit(error_model="numpy")
def _sort(numbers: FloatArray, n: int) -> None:
    """Sort the first `n` numbers in place, by insertion at falling distances.

    There are few numbers, or many that are almost equal; numpy.sort would take seconds
    to compile.
    """
    gap = 1
    while gap < n // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, n):
            number, j = numbers[i], i
            while j >= gap and numbers[j - gap] > number:
                numbers[j] = numbers[j - gap]
                j -= gap
            numbers[j] = number
        gap //= 3


@njit(error_model="numpy")
def _count_below(numbers: FloatArray, bound: float) -> int:
    count = 0
    for i in range(len(numbers)):
        count += 1 if numbers[i] < bound else 0
    return count
