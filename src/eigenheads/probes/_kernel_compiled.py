"""Compiled inner loops of the kernel-PCA probe: one pass over the draws each.

They compute the formulas of ``functional`` for many draws of values, 1.9 to 4.7 times
faster than the same in NumPy, which would write and read arrays of all draws several
times; tests compare them with ``functional``. A loop either sums or writes, never both:
the compiler vectorises a loop that does both only if arrays are aligned in memory, so
that the last digit would depend on their addresses.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._compile import njit
from eigenheads._numerics._quotient_trace import quotient_trace
from eigenheads._typing import FloatArray

# Division by zero gives infinity or NaN, as in NumPy: no check interrupts the loops.
_NUMPY: dict[str, Any] = {"error_model": "numpy"}
# Sums may be reordered, so that the processor adds several numbers at once.
_SUMS: dict[str, Any] = {"fastmath": {"reassoc", "contract"}, **_NUMPY}
# Without NaN and signed zeros the compiler compares several numbers at once.
_LANES: dict[str, Any] = {"fastmath": {"nnan", "nsz"}, **_NUMPY}
# With a smaller pivot, relative to its diagonal entry, too few digits are left after
# cancellation, and an orthonormal basis is computed instead.
_PIVOT = 1e-8


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
    found = np.zeros(count)
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
            found[draw] += (1 - shares / pairs) / width
    return found


@njit(**_SUMS)
def captured_traces(
    drawn: FloatArray, normaliser: FloatArray, products: FloatArray, ridge: float
) -> FloatArray:
    r"""Return :math:`\operatorname{tr} ((A^\top A)^{-1} A^\top \tilde K A)` of draws.

    Parameters
    ----------
    drawn
        Values (d, draws, n).
    normaliser
        :math:`g`, (draws, n), or (1, n) for all draws: :math:`A` is the values times
        it, centred.
    products
        :math:`\tilde K A`, (d, draws, n).
    ridge
        Added to :math:`A^\top A`, relative to its mean eigenvalue.

    Returns
    -------
    traces
        NaN where :math:`A^\top A` is too close to singular (never with a ridge).
    """
    width, count, n = drawn.shape
    # Pairs of columns at once: a column of zeros makes their number even.
    even = width + width % 2
    a, image = np.zeros((even, n)), np.zeros((even, n))
    gram, form, pivot_row = (
        np.empty((even, even)),
        np.empty((even, even)),
        np.empty(even),
    )
    traces = np.empty(count)
    floor = 0.0 if ridge > 0 else _PIVOT
    step = 1 if len(normaliser) == count else 0
    for draw in range(count):
        for column in range(width):
            _coefficients(drawn[column, draw], normaliser[step * draw], a[column])
            # Assigning a whole row would compile code for errors of shape, for seconds.
            for i in range(n):
                image[column, i] = products[column, draw, i]
        _inner_products(a, image, gram, form)
        trace = 0.0
        for i in range(width):
            trace += gram[i, i]
        for i in range(width):
            gram[i, i] += ridge * trace / width
        traces[draw] = quotient_trace(gram, form, width, pivot_row, floor)
    return traces


@njit(**_SUMS)
def _inner_products(
    a: FloatArray, image: FloatArray, gram: FloatArray, form: FloatArray
) -> None:
    """Write the lower halves of A Aᵀ and A Bᵀ, rows of A by rows of A and B.

    Two rows by two rows: each number read serves four sums.
    """
    r, n = a.shape
    for i in range(0, r, 2):
        for j in range(0, i + 1, 2):
            g00, g01, g10, g11 = 0.0, 0.0, 0.0, 0.0
            f00, f01, f10, f11 = 0.0, 0.0, 0.0, 0.0
            for m in range(n):
                g00 += a[i, m] * a[j, m]
                g01 += a[i, m] * a[j + 1, m]
                g10 += a[i + 1, m] * a[j, m]
                g11 += a[i + 1, m] * a[j + 1, m]
                f00 += a[i, m] * image[j, m]
                f01 += a[i, m] * image[j + 1, m]
                f10 += a[i + 1, m] * image[j, m]
                f11 += a[i + 1, m] * image[j + 1, m]
            gram[i, j], gram[i, j + 1] = g00, g01
            gram[i + 1, j], gram[i + 1, j + 1] = g10, g11
            form[i, j], form[i, j + 1] = f00, f01
            form[i + 1, j], form[i + 1, j + 1] = f10, f11


@njit(**_SUMS)
def pair_distances(inner: FloatArray) -> FloatArray:
    """Return squared distances of pairs (draws, pairs) from inner products."""
    count, n = inner.shape[0], inner.shape[1]
    pairs = np.empty((count, n * (n - 1) // 2))
    for draw in range(count):
        place = 0
        for i in range(n - 1):
            own = inner[draw, i, i]
            for j in range(i + 1, n):
                square = own + inner[draw, j, j] - 2 * inner[draw, i, j]
                pairs[draw, place + j - i - 1] = max(0.0, square)
            place += n - 1 - i
    return pairs


@njit(**_SUMS)
def _centre(gram: FloatArray, means: FloatArray) -> None:
    """Centre rows and columns of a symmetric matrix; `means` is scratch."""
    n = len(gram)
    mean = 0.0
    for i in range(n):
        total = 0.0
        for j in range(n):
            total += gram[i, j]
        means[i] = total / n
    for i in range(n):
        mean += means[i]
    # In this order the entries of a matrix of ones become exactly zero.
    for i in range(n):
        for j in range(n):
            gram[i, j] -= means[i] + means[j] - mean / n


@njit(**_SUMS)
def unit_grams(pairs: FloatArray, n: int) -> FloatArray:
    """Return centred Gram matrices of Frobenius norm 1, (draws, n, n).

    `pairs` are the entries above the diagonal, (draws, pairs); the diagonal is 1. NaN
    for a constant Gram matrix.
    """
    count = len(pairs)
    grams = np.empty((count, n, n))
    means = np.empty(n)
    for draw in range(count):
        gram = grams[draw]
        place = 0
        for i in range(n):
            gram[i, i] = 1.0
            for j in range(i + 1, n):
                gram[i, j] = pairs[draw, place + j - i - 1]
            for j in range(i + 1, n):
                gram[j, i] = pairs[draw, place + j - i - 1]
            place += n - 1 - i
        _centre(gram, means)
        squares = 0.0
        for i in range(n):
            for j in range(n):
                squares += gram[i, j] * gram[i, j]
        share = 1 / np.sqrt(squares) if squares > 0 else np.nan
        for i in range(n):
            for j in range(n):
                gram[i, j] *= share
    return grams


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
    found = np.empty(count)
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
        found[draw] = inner / np.sqrt(squares) if squares > 0 else np.nan
    return found


@njit(**_LANES)
def subtract_tops(scores: FloatArray) -> FloatArray:
    """Subtract from each row of (draws, n, m) its largest number; return these."""
    count, n, m = scores.shape
    tops = np.empty((count, n))
    for draw in range(count):
        for i in range(n):
            row = scores[draw, i]
            top = -np.inf
            for j in range(m):
                top = max(top, row[j])
            for j in range(m):
                row[j] -= top
            tops[draw, i] = top
    return tops


@njit(**_SUMS)
def centred_features(weights: FloatArray, tops: FloatArray) -> FloatArray:
    r"""Overwrite exponentials with the centred Gram matrix of the keys' features.

    With :math:`g(k_i) = e^{t_i} s_i`, where :math:`s_i` is the sum of row i, an entry
    of :math:`K_\varphi` is :math:`w_{ij} e^{-t_j} / (s_i s_j)`: no factor exceeds 1.

    Parameters
    ----------
    weights
        :math:`w_{ij} = e^{c k_i \cdot k_j - t_i}`, (draws, n, n); overwritten.
    tops
        :math:`t_i`, the largest score of each row, (draws, n).

    Returns
    -------
    traces
        Of :math:`K_\varphi`, before it is centred, (draws,).
    """
    count, n = tops.shape
    shares, means, traces = np.empty(n), np.empty(n), np.empty(count)
    for draw in range(count):
        rows = weights[draw]
        for i in range(n):
            total = 0.0
            for j in range(n):
                total += rows[i, j]
            shares[i] = 1 / total
        for j in range(n):
            means[j] = np.exp(-tops[draw, j]) * shares[j]
        for i in range(n):
            for j in range(n):
                rows[i, j] *= shares[i] * means[j]
        trace = 0.0
        for i in range(n):
            trace += rows[i, i]
        traces[draw] = trace
        _centre(rows, means)
    return traces
