"""Equals ``numpy.linalg.eigvalsh`` on stacks of small matrices, 2 to 4 times faster.

For stacks of 40 matrices or more, of 32 to 128 rows (3.2 times for 64 rows). Each step
of the algorithm is done for 40 matrices at once, so that even its recurrences, which
work on single numbers in LAPACK, use vector instructions: reduction to tridiagonal form
by reflections, then QL iterations without square roots [1]_.

No sum is reordered, and no step of one matrix depends on another: results do not depend
on the processor, nor on the stack that a matrix is in.

References
----------
.. [1] Parlett, The symmetric eigenvalue problem, 1980, section 8.15 (the variant of
   Pal, Walker and Kahan, as in LAPACK's ``dsterf``).
"""

from typing import Any

import numpy as np
from numba.core.compiler import Compiler

from eigenheads._compile import njit
from eigenheads._typing import FloatArray

# Matrices at once: a multiple of the width of vectors, and few enough for the cache.
LANES = 40
# Beyond this number of rows a block of matrices leaves the cache: use LAPACK.
MOST_ROWS = 128
# Turns per eigenvalue; two or three are the rule.
_TURNS = 60
_EPSILON = 2.0**-53
_NUMPY: dict[str, Any] = {"error_model": "numpy"}


def symmetric_eigenvalues(stack: FloatArray) -> FloatArray:
    """Return eigenvalues in ascending order, (count, n), of matrices (count, n, n).

    The upper halves are read. NaN for a matrix with numbers that are not finite.

    Examples
    --------
    >>> symmetric_eigenvalues(np.array([[[0.0, 2.0], [2.0, 0.0]]]))
    array([[-2.,  2.]])
    """
    n = stack.shape[1]
    if n > MOST_ROWS:
        return np.asarray(np.linalg.eigvalsh(stack, UPLO="U"), dtype=np.float64)
    found = _eigenvalues(np.ascontiguousarray(stack))
    found.sort(axis=-1)
    return found


class _DistinctArrays(Compiler):
    """Numba's compiler; arguments of a function do not share memory.

    Otherwise every short loop would begin with a comparison of their addresses, which
    takes as long as the loop.
    """

    def define_pipelines(self) -> list[Any]:
        self.state.flags.noalias = True
        pipelines: list[Any] = super().define_pipelines()  # type: ignore[no-untyped-call]
        return pipelines


@njit(**_NUMPY)
def _eigenvalues(stack: FloatArray) -> FloatArray:
    """Return the eigenvalues of all matrices, block by block, in any order."""
    count, n = stack.shape[0], stack.shape[1]
    a = np.empty((n, n, LANES))
    d, e = np.empty((n, LANES)), np.empty((n, LANES))
    vectors, lanes = np.empty((4, n, LANES)), np.empty((7, LANES))
    sizes = np.empty(LANES)
    found = np.empty((count, n))
    for start in range(0, count, LANES):
        for lane in range(LANES):
            # The last matrix fills lanes that are left over.
            matrix = stack[min(start + lane, count - 1)]
            size = 0.0
            for i in range(n):
                for j in range(i, n):
                    size = max(size, abs(matrix[i, j]))
            # Squares of scaled numbers neither overflow nor vanish.
            sizes[lane] = size if size > 0 else 1.0
            for i in range(n):
                for j in range(i, n):
                    a[i, j, lane] = matrix[i, j] / sizes[lane]
        _tridiagonalise(a, d, e, vectors, lanes)
        _iterate(d, e, lanes)
        for lane in range(min(LANES, count - start)):
            for i in range(n):
                found[start + lane, i] = d[i, lane] * sizes[lane]
    return found


@njit(**_NUMPY)
def _tridiagonalise(
    a: FloatArray,
    d: FloatArray,
    e: FloatArray,
    vectors: FloatArray,
    lanes: FloatArray,
) -> None:
    """Write the diagonals `d` and squared subdiagonals `e`; overwrites `a`.

    Step k reflects rows and columns k + 1 and following: A becomes A - vwᵀ - wvᵀ. That
    change is made in the next step, in the pass that multiplies A by the next u.
    """
    n = len(a)
    v, w, u, p = vectors[0], vectors[1], vectors[2], vectors[3]
    share, total = lanes[0], lanes[1]
    for i in range(n):
        for lane in range(LANES):
            v[i, lane] = 0.0
            w[i, lane] = 0.0
    for k in range(n):
        _finish_row(a[k], v, w, k, d[k], e[k])
        if k > n - 3:
            continue
        _reflector(a[k], e[k], k + 1, u, p, share)
        for j in range(k + 1, n):
            for lane in range(LANES):
                a[j, j, lane] -= 2 * v[j, lane] * w[j, lane]
                total[lane] = a[j, j, lane] * u[j, lane]
            _change_and_multiply(a[j], v, w, v[j], w[j], u, u[j], p, total, j + 1)
            for lane in range(LANES):
                p[j, lane] += total[lane]
        _next_change(u, p, k + 1, share, total, v, w)


@njit(**_NUMPY)
def _finish_row(
    row: FloatArray, v: FloatArray, w: FloatArray, k: int, d: FloatArray, e: FloatArray
) -> None:
    """Change row k for the last time; write its diagonal and squared length."""
    for i in range(k, len(row)):
        for lane in range(LANES):
            row[i, lane] -= v[k, lane] * w[i, lane] + w[k, lane] * v[i, lane]
    for lane in range(LANES):
        d[lane] = row[k, lane]
        e[lane] = 0.0
    for i in range(k + 1, len(row)):
        for lane in range(LANES):
            e[lane] += row[i, lane] * row[i, lane]


@njit(**_NUMPY)
def _reflector(
    row: FloatArray,
    squares: FloatArray,
    start: int,
    u: FloatArray,
    p: FloatArray,
    share: FloatArray,
) -> None:
    """Write u and `share`: I - share uuᵀ leaves one entry of the row from `start` on.

    The sign is such that nothing cancels. `p` is set to zero.
    """
    for i in range(start, len(row)):
        for lane in range(LANES):
            u[i, lane] = row[i, lane]
            p[i, lane] = 0.0
    for lane in range(LANES):
        first, norm = u[start, lane], np.sqrt(squares[lane])
        pivot = first + (norm if first >= 0 else -norm)
        size = norm * abs(pivot)
        share[lane] = 1 / size if size > 0 else 0.0
        u[start, lane] = pivot


@njit(**_NUMPY)
def _next_change(
    u: FloatArray,
    p: FloatArray,
    start: int,
    share: FloatArray,
    total: FloatArray,
    v: FloatArray,
    w: FloatArray,
) -> None:
    """Write v and w, so that the reflected matrix is A - vwᵀ - wvᵀ; p is A times u."""
    for lane in range(LANES):
        total[lane] = 0.0
    for i in range(start, len(u)):
        for lane in range(LANES):
            p[i, lane] *= share[lane]
            total[lane] += p[i, lane] * u[i, lane]
    for lane in range(LANES):
        share[lane] *= 0.5 * total[lane]
    for i in range(start, len(u)):
        for lane in range(LANES):
            w[i, lane] = p[i, lane] - share[lane] * u[i, lane]
            v[i, lane] = u[i, lane]


@njit(pipeline_class=_DistinctArrays, **_NUMPY)
def _change_and_multiply(  # noqa: PLR0913 -- arrays that do not share memory
    row: FloatArray,
    v: FloatArray,
    w: FloatArray,
    own_v: FloatArray,
    own_w: FloatArray,
    u: FloatArray,
    own_u: FloatArray,
    p: FloatArray,
    total: FloatArray,
    start: int,
) -> None:
    """Change a row of A from `start` on, and add its part of A times u.

    Entries right of the diagonal count in two rows of the product: in that of the
    other, `p`, and in its own, `total`.
    """
    for i in range(start, len(row)):
        for lane in range(LANES):
            changed = row[i, lane] - own_v[lane] * w[i, lane] - own_w[lane] * v[i, lane]
            row[i, lane] = changed
            p[i, lane] += changed * own_u[lane]
            total[lane] += changed * u[i, lane]


@njit(**_NUMPY)
def _iterate(d: FloatArray, e: FloatArray, lanes: FloatArray) -> None:
    """Overwrite diagonals `d` with eigenvalues; `e` are squared subdiagonals.

    A lane that has found its eigenvalue stands still until all have. NaN is written to
    lanes that do not find it.
    """
    n = len(d)
    floor, is_moving, shift, gamma = lanes[0], lanes[1], lanes[2], lanes[3]
    c, s, q = lanes[4], lanes[5], lanes[6]
    _write_floors(d, e, floor)
    for low in range(n - 1):
        for _ in range(_TURNS):
            if not _start_turn(d, e, low, lanes):
                break
            for i in range(n - 2, low - 1, -1):
                _rotate(
                    d[i], d[i + 1], e[i], e[i + 1], is_moving, shift, gamma, c, s, q
                )
            for lane in range(LANES):
                if is_moving[lane] > 0:
                    e[low, lane] = s[lane] * q[lane]
                    d[low, lane] = shift[lane] + gamma[lane]
        for lane in range(LANES):
            if not e[low, lane] <= floor[lane]:
                d[low, lane] = np.nan


@njit(**_NUMPY)
def _write_floors(d: FloatArray, e: FloatArray, floor: FloatArray) -> None:
    """Write below which size a squared subdiagonal is a rounding error, per lane."""
    for lane in range(LANES):
        floor[lane] = 0.0
    for i in range(len(d)):
        for lane in range(LANES):
            size = max(d[i, lane] * d[i, lane], e[i, lane])
            floor[lane] = max(floor[lane], size * _EPSILON**2)


@njit(**_NUMPY)
def _start_turn(d: FloatArray, e: FloatArray, low: int, lanes: FloatArray) -> bool:
    """Write which lanes move, their shifts and first rotations; return if any moves.

    The shift is the eigenvalue of the first two rows that is closer to the first.
    """
    floor, is_moving, shift, gamma = lanes[0], lanes[1], lanes[2], lanes[3]
    c, s, q = lanes[4], lanes[5], lanes[6]
    last = d[len(d) - 1]
    n_moving = 0.0
    for lane in range(LANES):
        is_moving[lane] = 1.0 if e[low, lane] > floor[lane] else 0.0
        n_moving += is_moving[lane]
    for lane in range(LANES):
        root = np.sqrt(e[low, lane])
        half = (d[low + 1, lane] - d[low, lane]) / (2 * root)
        r = np.sqrt(half * half + 1)
        shift[lane] = d[low, lane] - root / (half + (r if half >= 0 else -r))
        c[lane], s[lane] = 1.0, 0.0
        gamma[lane] = last[lane] - shift[lane]
        q[lane] = gamma[lane] * gamma[lane]
    return n_moving > 0


@njit(pipeline_class=_DistinctArrays, **_NUMPY)
def _rotate(  # noqa: PLR0913 -- arrays that do not share memory
    d: FloatArray,
    next_d: FloatArray,
    e: FloatArray,
    next_e: FloatArray,
    is_moving: FloatArray,
    shift: FloatArray,
    gamma: FloatArray,
    c: FloatArray,
    s: FloatArray,
    q: FloatArray,
) -> None:
    """One rotation of a QL step, in all lanes; the result stays in those that move.

    Where both terms of its length are zero, the rotation is the identity.
    """
    for lane in range(LANES):
        r = q[lane] + e[lane]
        safe = r if r > 0 else 1.0
        cosine = q[lane] / safe if r > 0 else 1.0
        sine = e[lane] / safe
        before = gamma[lane]
        now = cosine * (d[lane] - shift[lane]) - sine * before
        new_d, new_e = before + (d[lane] - now), s[lane] * r
        next_d[lane] = new_d if is_moving[lane] > 0 else next_d[lane]
        next_e[lane] = new_e if is_moving[lane] > 0 else next_e[lane]
        # For a cosine of zero: the limit of the quotient.
        other = c[lane] * e[lane]
        q[lane] = now * now / cosine if cosine != 0 else other
        gamma[lane] = now
        c[lane] = cosine
        s[lane] = sine
