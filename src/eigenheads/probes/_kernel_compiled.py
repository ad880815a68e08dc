"""Compiled inner loops of the kernel-PCA probe: one pass over the draws each.

They compute the formulas of ``functional`` for many draws of values in one pass; NumPy
would write and read arrays of all draws several times, and a whole probe would take
1.25 times as long. Tests compare them with ``functional``. A loop either sums or
writes, never both: the compiler vectorises a loop that does both only if arrays are
aligned in memory, so that the last digit would depend on their addresses.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._compile import njit
from eigenheads._typing import FloatArray

# Division by zero gives infinity or NaN, as in NumPy: no check interrupts the loops.
_NUMPY: dict[str, Any] = {"error_model": "numpy"}
# Sums may be reordered, so that the processor adds several numbers at once.
_SUMS: dict[str, Any] = {"fastmath": {"reassoc", "contract"}, **_NUMPY}


@njit(**_SUMS)
def norms_and_ratios(
    drawn: FloatArray,
    normaliser: FloatArray,
    read: FloatArray,
    outputs: FloatArray,
    crosses: FloatArray,
    residuals: FloatArray,
    ratios: NDArray[np.uint64],
) -> None:
    r"""Write norms, residuals and ratios from the products of the values.

    Parameters
    ----------
    drawn
        Values (d, draws, n).
    normaliser
        :math:`g`, (draws, n), or (1, n) for all draws.
    read
        (d, draws, n_queries + d_target + n): outputs, products with the target, and
        :math:`\tilde K \hat a`.
    outputs
        Written: squared norms of outputs, (draws, n_queries).
    crosses
        Written: squared Frobenius norms of the products with the target, (draws,).
    residuals
        Written: sine of the angle of :math:`\tilde K \hat a` and :math:`\hat a`, mean
        over columns, (draws,).
    ratios
        Written: :math:`\gamma`, (d, draws, n), as integers whose order is that of
        :math:`|\gamma|`: its bits, the sign last.
    """
    tiny = 2.2250738585072014e-308
    width, count, n = drawn.shape
    n_queries = outputs.shape[1]
    behind = read.shape[2] - n
    step = 1 if len(normaliser) == count else 0
    a, buffer = np.empty(n), np.empty(n)
    bits = buffer.view(np.uint64)
    outputs[:] = 0.0
    crosses[:] = 0.0
    residuals[:] = 0.0
    for column in range(width):
        for draw in range(count):
            row = read[column, draw]
            for i in range(n_queries):
                outputs[draw, i] += row[i] * row[i]
            cross = 0.0
            for i in range(n_queries, behind):
                cross += row[i] * row[i]
            crosses[draw] += cross
            _coefficients(drawn[column, draw], normaliser[step * draw], a)
            inner, squares, lengths = 0.0, 0.0, 0.0
            for i in range(n):
                product = row[behind + i]
                inner += a[i] * product
                squares += a[i] * a[i]
                lengths += product * product
            for i in range(n):
                buffer[i] = row[behind + i] / (a[i] if abs(a[i]) >= tiny else tiny)
            whole = squares * lengths
            sine = 1 - inner * inner / whole if whole > 0 else 1.0
            residuals[draw] += np.sqrt(max(0.0, sine)) / width
            for i in range(n):
                ratios[column, draw, i] = (bits[i] << np.uint64(1)) | (
                    bits[i] >> np.uint64(63)
                )


@njit(**_SUMS)
def _coefficients(values: FloatArray, normaliser: FloatArray, a: FloatArray) -> None:
    """Write the coefficients of one column: times the normalisers, centred."""
    n = len(a)
    total = 0.0
    for i in range(n):
        a[i] = values[i] * normaliser[i]
    for i in range(n):
        total += a[i]
    for i in range(n):
        a[i] -= total / n


@njit(**_NUMPY)
def differences_of_sorted(ratios: NDArray[np.uint64]) -> FloatArray:
    """Return the mean over columns of `relative_differences`, per draw.

    `ratios` as :func:`norms_and_ratios` writes them, sorted along n.
    """
    width, count, n = ratios.shape
    buffer = np.empty(n)
    bits = buffer.view(np.uint64)
    pairs = n * (n - 1) / 2
    differences = np.zeros(count)
    for column in range(width):
        for draw in range(count):
            for i in range(n):
                key = ratios[column, draw, i]
                bits[i] = (key >> np.uint64(1)) | (key << np.uint64(63))
            before, shares = 0.0, 0.0
            for i in range(n):
                # A zero has only zeros before it, which are no difference.
                shares += before / buffer[i] if buffer[i] != 0 else float(i)
                before += buffer[i]
            differences[draw] += (1 - shares / pairs) / width
    return differences


@njit(**_SUMS)
def pair_distances(inner: FloatArray) -> FloatArray:
    """Return squared distances of pairs (draws, pairs) from inner products."""
    count, n = inner.shape[0], inner.shape[1]
    pairs = np.empty((count, n * (n - 1) // 2))
    for draw in range(count):
        place = 0
        for i in range(n - 1):
            square_i = inner[draw, i, i]
            for j in range(i + 1, n):
                square = square_i + inner[draw, j, j] - 2 * inner[draw, i, j]
                pairs[draw, place + j - i - 1] = max(0.0, square)
            place += n - 1 - i
    return pairs


@njit(**_SUMS)
def alignments(pairs: FloatArray, target: FloatArray) -> FloatArray:
    r"""Return the cosines of centred Gram matrices with a centred one of norm 1.

    Parameters
    ----------
    pairs
        (draws, pairs): entries above the diagonal, which is 1.
    target
        (n, n), centred, Frobenius norm 1.

    Returns
    -------
    cosines
        Per draw; NaN for a constant Gram matrix.
    """
    count, n = pairs.shape[0], len(target)
    cosines = np.empty(count)
    means = np.empty(n)
    for draw in range(count):
        means[:] = 1.0
        place = 0
        inner = 0.0
        for i in range(n):
            inner += target[i, i]
        for i in range(n - 1):
            total = 0.0
            for j in range(i + 1, n):
                entry = pairs[draw, place + j - i - 1]
                total += entry
                inner += 2 * entry * target[i, j]
            for j in range(i + 1, n):
                means[j] += pairs[draw, place + j - i - 1]
            means[i] += total
            place += n - 1 - i
        mean = 0.0
        for i in range(n):
            means[i] /= n
            mean += means[i]
        mean /= n
        squares = 0.0
        place = 0
        for i in range(n):
            entry = 1.0 - 2 * means[i] + mean
            squares += entry * entry
            for j in range(i + 1, n):
                entry = pairs[draw, place + j - i - 1] - means[i] - means[j] + mean
                squares += 2 * entry * entry
            place += n - 1 - i
        cosines[draw] = inner / np.sqrt(squares) if squares > 0 else np.nan
    return cosines
