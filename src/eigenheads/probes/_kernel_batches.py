"""Compiled inner loops of the kernel-PCA probe: one pass over the draws each.

They compute the formulas of ``functional`` for many draws of values; the tests
compare them with these. A loop sums or writes, never both: whether the compiler's fast
version of one that does both is taken depends on where arrays lie in memory, and with
it the last digit. Every pass is one in which NumPy would write and read arrays
of all draws several times.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._compile import njit
from eigenheads._typing import FloatArray

# A quotient by zero is infinite or NaN: no check breaks the loops.
_NUMPY: dict[str, Any] = {"error_model": "numpy"}
# Sums in another order, so that the processor adds several numbers at once.
_SUMS: dict[str, Any] = {"fastmath": {"reassoc", "contract"}, **_NUMPY}
# A pivot below this share of its row's square: too little is left after
# cancellation, and the basis has to be computed in another way.
_PIVOT = 1e-8
# Shares of a median between which the next one is looked for.
_NEAR = (0.95, 1.05)
# So many numbers are sorted; equal ones may be more, after so many halvings.
_FEW, _HALVINGS = 16, 60


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
    r"""Write what the products of the values say, column by column.

    Parameters
    ----------
    drawn
        Values (d, draws, n).
    normaliser
        :math:`g`, (n,).
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
            _coefficients(drawn[column, draw], normaliser, a)
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
    """Return the means over columns of `relative_differences`, one a draw.

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
        :math:`g`, (n,): :math:`A` is the values times it, centred.
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
    for draw in range(count):
        for column in range(width):
            _coefficients(drawn[column, draw], normaliser, a[column])
            image[column] = products[column, draw]
        _inner_products(a, image, gram, form)
        trace = 0.0
        for i in range(width):
            trace += gram[i, i]
        for i in range(width):
            gram[i, i] += ridge * trace / width
        traces[draw] = np.nan
        if _invert(gram, width, pivot_row, floor):
            traces[draw] = _inner_of_symmetric(gram, form, width)
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
def _invert(matrix: FloatArray, r: int, row: FloatArray, floor: float) -> bool:
    """Overwrite the lower half by that of minus the inverse; False: a small pivot.

    Gauss-Jordan steps (the sweep operator of regression); the pivots are those of
    Cholesky's factor. `row` is room for one row.
    """
    own = np.empty(r)
    for k in range(r):
        own[k] = matrix[k, k]
    for k in range(r):
        pivot = matrix[k, k]
        if not pivot > floor * own[k]:
            return False
        for j in range(k + 1):
            row[j] = matrix[k, j]
        for j in range(k + 1, r):
            row[j] = matrix[j, k]
        share = 1 / pivot
        for i in range(r):
            factor = row[i] * share
            for j in range(i + 1):
                matrix[i, j] -= factor * row[j]
        for j in range(k):
            matrix[k, j] = row[j] * share
        for j in range(k + 1, r):
            matrix[j, k] = row[j] * share
        matrix[k, k] = -share
    return True


@njit(**_SUMS)
def _inner_of_symmetric(minus: FloatArray, form: FloatArray, r: int) -> float:
    """Return the trace of the product of two symmetric matrices, the first negated."""
    total = 0.0
    for i in range(r):
        part = 0.0
        for j in range(i):
            part += minus[i, j] * form[i, j]
        total -= 2 * part + minus[i, i] * form[i, i]
    return total


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


@njit(**_NUMPY)
def lower_medians(rows: FloatArray, guess: float) -> FloatArray:
    """Return the lower one of the middle two numbers of each row, or the middle one.

    Numbers below a bound are counted, many at once, and the bounds are moved together
    until few are left to be sorted. Draws of equal covariance have medians close to
    each other, so the search starts at the one before; at `guess` for the first, or
    anywhere if that is infinite. Numbers are not negative; NaN where too many are
    infinite or NaN.
    """
    count, n = rows.shape
    middle = (n - 1) // 2
    found = np.empty(count)
    near = np.empty(n + 1)
    for index in range(count):
        row = rows[index]
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
            # Written over by the next number unless it counts.
            n_near += 1 if (row[i] >= low) & (row[i] < high) else 0
        place = middle - n_low
        # NaN and infinities are not counted: a row of many has no median.
        found[index] = np.sort(near[:n_near])[place] if place < n_near else np.nan
        guess = found[index]
    return found


@njit(**_NUMPY)
def _count_below(numbers: FloatArray, bound: float) -> int:
    count = 0
    for i in range(len(numbers)):
        count += 1 if numbers[i] < bound else 0
    return count


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
        One a draw; NaN for a constant Gram matrix.
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
