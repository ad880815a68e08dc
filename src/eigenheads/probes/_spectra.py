"""Eigenvalues of many small symmetric matrices: tridiagonal form, then QL steps.

LAPACK's routine, called once a matrix, is made for larger ones; here a reflection is
applied to the matrix, and the next one prepared, in one pass over its lower half.

References
----------
.. [1] Parlett, The Symmetric Eigenvalue Problem, 1998, sections 7.4 and 8.14-8.15.
"""

from typing import Any

import numpy as np

from eigenheads._compile import njit
from eigenheads._typing import FloatArray

# A quotient by zero is infinite or NaN: no check breaks the loops.
_NUMPY: dict[str, Any] = {"error_model": "numpy"}
# Sums in another order, so that the processor adds several numbers at once.
_SUMS: dict[str, Any] = {"fastmath": {"reassoc", "contract", "nsz"}, **_NUMPY}
_EPSILON = float(np.finfo(np.float64).eps)
# QL needs about two steps an eigenvalue; this many say that entries are not finite.
_MAX_STEPS = 60


@njit(**_NUMPY)
def symmetric_eigenvalues(matrices: FloatArray) -> FloatArray:
    """Return the eigenvalues (count, n), unsorted; overwrites the matrices."""
    count, n = matrices.shape[0], matrices.shape[1]
    found = np.empty((count, n))
    beside, axis, image = np.empty(n), np.empty(n), np.empty(n)
    for index in range(count):
        top = _to_unit_size(matrices[index])
        _tridiagonal(matrices[index], found[index], beside, axis, image)
        for i in range(n):
            beside[i] *= beside[i]
        _implicit_ql(found[index], beside)
        for i in range(n):
            found[index, i] *= top
    return found


@njit(**_NUMPY)
def _to_unit_size(matrix: FloatArray) -> float:
    """Divide by the largest entry, and return it: squares of small ones are zero."""
    n = len(matrix)
    top = 0.0
    for i in range(n):
        for j in range(i + 1):
            top = max(top, abs(matrix[i, j]))
    if top > 0:
        for i in range(n):
            for j in range(i + 1):
                matrix[i, j] /= top
    return top


@njit(**_SUMS)
def _tridiagonal(
    matrix: FloatArray,
    diagonal: FloatArray,
    beside: FloatArray,
    axis: FloatArray,
    image: FloatArray,
) -> None:
    r"""Write the diagonal and the entries beside it of an orthogonally similar matrix.

    Rows are taken from the last to the first. With the reflection along :math:`v`,
    :math:`A \to A - vw^\top - wv^\top`; `axis` holds :math:`v`, `image` :math:`w`.
    """
    n = len(diagonal)
    for last in range(n - 1, -1, -1):
        diagonal[last] = matrix[last, last]
        if last == 0:
            break
        row = matrix[last]
        squares = 0.0
        for j in range(last):
            squares += row[j] * row[j]
        size = np.sqrt(squares)
        tip = row[last - 1]
        beside[last - 1] = -size if tip > 0 else size
        if size == 0:
            continue
        # v/|v| times the square root of 2, so that the reflection is I - v vᵀ.
        scale = 1 / np.sqrt(size * (size + abs(tip)))
        for j in range(last):
            axis[j] = row[j] * scale
            image[j] = 0.0
        axis[last - 1] = (tip - beside[last - 1]) * scale
        _apply(matrix, axis, image, last)
        inner = 0.0
        for j in range(last):
            inner += axis[j] * image[j]
        for j in range(last):
            image[j] -= inner / 2 * axis[j]
        for i in range(last):
            for j in range(i + 1):
                matrix[i, j] -= axis[i] * image[j] + image[i] * axis[j]


@njit(**_SUMS)
def _apply(matrix: FloatArray, axis: FloatArray, image: FloatArray, n: int) -> None:
    """Add the product of the leading block, known by its lower half, and `axis`."""
    for i in range(n):
        total = 0.0
        for j in range(i):
            total += matrix[i, j] * axis[j]
            image[j] += matrix[i, j] * axis[i]
        image[i] += total + matrix[i, i] * axis[i]


@njit(**_NUMPY)
def _implicit_ql(diagonal: FloatArray, squares: FloatArray) -> None:
    """Overwrite the diagonal of a tridiagonal matrix by its eigenvalues.

    `squares` are those of the entries beside it: QL without square roots [1]_.
    """
    n = len(diagonal)
    for start in range(n):
        for _ in range(_MAX_STEPS):
            end = start
            while end < n - 1:
                size = abs(diagonal[end] * diagonal[end + 1])
                if squares[end] <= _EPSILON * _EPSILON * size:
                    squares[end] = 0.0
                    break
                end += 1
            if end == start:
                break
            _ql_step(diagonal, squares, start, end)


@njit(**_NUMPY)
def _ql_step(diagonal: FloatArray, squares: FloatArray, start: int, end: int) -> None:
    """Chase one shifted rotation from `end` up to `start`.

    `kept` and `turned` are the squared cosine and sine of the last rotation.
    """
    root = np.sqrt(squares[start])
    gap = (diagonal[start + 1] - diagonal[start]) / (2 * root)
    far = np.sqrt(gap * gap + 1)
    shift = diagonal[start] - root / (gap + (far if gap > 0 else -far))
    kept, turned = 1.0, 0.0
    level = diagonal[end] - shift
    rest = level * level
    for i in range(end - 1, start - 1, -1):
        whole = rest + squares[i]
        if i + 1 < end:
            squares[i + 1] = turned * whole
        before, last_level = kept, level
        kept = rest / whole
        # Beside the quotient above, not after it: the divisions overlap.
        growth = whole / rest if rest > 0 else 0.0
        turned = squares[i] / whole
        level = kept * (diagonal[i] - shift) - turned * last_level
        diagonal[i + 1] = last_level + (diagonal[i] - level)
        rest = level * level * growth if rest > 0 else before * squares[i]
    squares[start] = turned * rest
    diagonal[start] = shift + level
