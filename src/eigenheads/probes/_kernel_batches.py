"""Compiled inner loops of the kernel-PCA probe: one pass over the draws each.

They compute the formulas of ``functional`` for many draws of values; the tests
compare them with these. Every pass is one in which NumPy would write and read arrays
of all draws several times.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._compile import njit
from eigenheads._typing import FloatArray

# Sums in another order, so that the processor adds several numbers at once.
_SUMS: dict[str, Any] = {"fastmath": {"reassoc", "contract"}}
# A pivot below this share of its row's square: too little is left after
# cancellation, and the basis has to be computed in another way.
_PIVOT = 1e-8


@njit(**_SUMS)
def coefficients_and_ratios(
    drawn: FloatArray,
    normaliser: FloatArray,
    products: FloatArray,
    stack: FloatArray,
    ratios: NDArray[np.uint64],
    residuals: FloatArray,
) -> None:
    r"""Write coefficients, products, eigen residuals and the keys of the gamma ratios.

    Parameters
    ----------
    drawn
        Values (d, draws, n).
    normaliser
        :math:`g`, (n,).
    products
        :math:`\tilde K \hat a`, (d, draws, n).
    stack
        Written: coefficients :math:`\hat a` and products, (d, 2, draws, n).
    ratios
        Written: :math:`\gamma`, (d, draws, n), as integers whose order is that of
        :math:`|\gamma|`: its bits, the sign last.
    residuals
        Written: sine of the angle of product and coefficients, (d, draws).
    """
    tiny = 2.2250738585072014e-308
    width, count, n = drawn.shape
    buffer = np.empty(n)
    bits = buffer.view(np.uint64)
    for column in range(width):
        for draw in range(count):
            a, product = stack[column, 0, draw], stack[column, 1, draw]
            total = 0.0
            for i in range(n):
                a[i] = drawn[column, draw, i] * normaliser[i]
                total += a[i]
            mean = total / n
            inner, squares, lengths = 0.0, 0.0, 0.0
            for i in range(n):
                a[i] -= mean
                product[i] = products[column, draw, i]
                inner += a[i] * product[i]
                squares += a[i] * a[i]
                lengths += product[i] * product[i]
            whole = squares * lengths
            sine = 1 - inner * inner / whole if whole > 0 else 1.0
            residuals[column, draw] = np.sqrt(max(0.0, sine))
            for i in range(n):
                buffer[i] = product[i] / (a[i] if abs(a[i]) >= tiny else tiny)
            for i in range(n):
                ratios[column, draw, i] = (bits[i] << np.uint64(1)) | (
                    bits[i] >> np.uint64(63)
                )


@njit()
def differences_of_sorted(ratios: NDArray[np.uint64]) -> FloatArray:
    """Return the means over columns of `relative_differences`, one a draw.

    `ratios` as :func:`coefficients_and_ratios` writes them, sorted along n.
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
def captured_traces(forms: FloatArray, ridge: float) -> FloatArray:
    r"""Return :math:`\operatorname{tr} (A^{-1} F)` of symmetric pairs, one a draw.

    Parameters
    ----------
    forms
        (draws, r, r, 2): :math:`A`, positive, and :math:`F`. Overwritten.
    ridge
        Added to :math:`A`, relative to its mean eigenvalue.

    Returns
    -------
    traces
        NaN where :math:`A` is too close to singular (never with a ridge).
    """
    count, r = forms.shape[0], forms.shape[1]
    traces = np.empty(count)
    lower, form = np.empty((r, r)), np.empty((r, r))
    for draw in range(count):
        trace = 0.0
        for i in range(r):
            trace += forms[draw, i, i, 0]
            for j in range(r):
                lower[i, j] = forms[draw, i, j, 0]
                form[i, j] = forms[draw, i, j, 1]
        for i in range(r):
            lower[i, i] += ridge * trace / r
        floor = 0.0 if ridge > 0 else _PIVOT
        if _factor(lower, floor):
            traces[draw] = _reduced_trace(lower, form)
        else:
            traces[draw] = np.nan
    return traces


@njit(**_SUMS)
def _factor(matrix: FloatArray, floor: float) -> bool:
    """Write the Cholesky factor into the lower triangle; False if a pivot is small."""
    r = len(matrix)
    for j in range(r):
        pivot = matrix[j, j]
        own = pivot
        for k in range(j):
            pivot -= matrix[j, k] * matrix[j, k]
        if not pivot > floor * own:
            return False
        root = np.sqrt(pivot)
        matrix[j, j] = root
        for i in range(j + 1, r):
            total = matrix[i, j]
            for k in range(j):
                total -= matrix[i, k] * matrix[j, k]
            matrix[i, j] = total / root
    return True


@njit(**_SUMS)
def _reduced_trace(lower: FloatArray, form: FloatArray) -> float:
    r"""Return the trace of :math:`L^{-1} F L^{-\top}`; overwrites the form."""
    r = len(lower)
    _eliminate(lower, form, False)
    for i in range(r):
        for j in range(i):
            form[j, i] = form[i, j]
    # Rows of the transpose; the trace needs what is right of the diagonal.
    _eliminate(lower, form, True)
    trace = 0.0
    for i in range(r):
        trace += form[i, i]
    return trace


@njit(**_SUMS)
def _eliminate(lower: FloatArray, rows: FloatArray, is_half: bool) -> None:
    """Overwrite rows, or their upper halves, with the triangle's inverse times them."""
    r = len(lower)
    for i in range(r):
        start = i if is_half else 0
        for k in range(i):
            factor = lower[i, k]
            for j in range(start, r):
                rows[i, j] -= factor * rows[k, j]
        for j in range(start, r):
            rows[i, j] /= lower[i, i]


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
                means[j] += entry
                inner += 2 * entry * target[i, j]
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
