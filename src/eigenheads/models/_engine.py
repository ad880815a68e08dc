r"""Primitives of the exact simulation: products with a matrix that is never built.

Online training depends on a new matrix :math:`Z` of standard normals (tokens × d) only
through a few products. At any moment, the known properties of :math:`Z` are

- the columns :math:`Z e_1, …, Z e_r` along an orthonormal frame of :math:`\mathbb R^d`
  (``coordinates``, one row per direction), and
- that :math:`Z^\top \hat c_1, …, Z^\top \hat c_p` lie inside the frame, for
  orthonormal vectors :math:`\hat c_j` over the tokens (``spent``, one row each).

Given this, :math:`Z` is its known part plus
:math:`(I - \sum \hat c_j \hat c_j^\top) G (I - \sum e_j e_j^\top)` with a fresh
Gaussian :math:`G` that is independent of the known part. Each primitive draws the next
product from this conditional distribution, exactly, at a cost that does not depend on
:math:`d`.

All primitives are compiled (Numba), take a NumPy ``Generator``, write into their last
argument and may be called from other compiled functions. They take arrays of float64
with the documented number of axes; other types raise Numba's TypingError, and shapes
that do not fit raise a ValueError.
"""

import math
from typing import Any

import numpy as np

from eigenheads._compile import njit

# Sums may be reordered (SIMD); infinities and NaN keep their meaning.
REORDER = {"reassoc", "contract", "nsz"}
# A squared length below this share of its vector's is rounding, and counts as zero.
_RELATIVE_PIVOT = 1e-14


@njit()
def reveal(rng: np.random.Generator, spent: Any, out: Any) -> None:
    r"""Draw the tokens' coordinates along new frame directions.

    .. math::

        Z e = (I - \textstyle\sum_j \hat c_j \hat c_j^\top) g, \qquad
        g \sim \mathcal N(0, I_n)

    Parameters
    ----------
    rng
        Source of randomness.
    spent
        Unit vectors :math:`\hat c_j` of earlier :func:`reveal_along`, (p, n); mostly
        there are none: ``np.empty((0, n))``.
    out
        One row a new direction, (number of directions, n): written.
    """
    if spent.shape[1] != out.shape[1]:
        raise ValueError(
            "reveal: `spent` must be of shape (p, n) for `out` of shape (directions, "
            "n); got another n."
        )
    for row in range(out.shape[0]):
        for token in range(out.shape[1]):
            out[row, token] = rng.standard_normal()
        _project_off(spent, out[row])


@njit()
def combine(
    rng: np.random.Generator,
    coordinates: Any,
    weights: Any,
    spent: Any,
    dof: float,
    out: Any,
) -> None:
    r"""Draw q linear combinations of the tokens, adding q directions to the frame.

    With weights :math:`c_1, …, c_q` over the tokens,

    .. math::

        Z^\top c_a = \sum_{j \le r} (c_a \cdot Z e_j)\, e_j
                   + \sum_{b \le q} (L A)_{ab}\, e_{r+b}

    where :math:`L L^\top` is the Gram matrix of the weights (off ``spent``) and
    :math:`A` is Bartlett's lower-triangular factor: :math:`A_{bb} \sim \chi_{m-b+1}`,
    standard normals below, :math:`m = d - r`. So the parts outside the frame have a
    Wishart(m, :math:`LL^\top`) Gram matrix.

    Parameters
    ----------
    rng
        Source of randomness.
    coordinates
        Rows :math:`Z e_j`, (r, n).
    weights
        Rows :math:`c_a`, (q, n). Zero or linearly dependent rows are fine.
    spent
        Unit vectors of earlier :func:`reveal_along`, (p, n).
    dof
        :math:`m = d - r`, the dimension that is left outside the frame; if it is
        smaller than q the directions beyond it get coordinate 0.
    out
        Coordinates of the combinations in the enlarged frame, (q, r + q): written.

    Notes
    -----
    Weights within a relative angle of 1e-7 of each other are taken as parallel.
    """
    r, n = coordinates.shape
    q = weights.shape[0]
    if weights.shape[1] != n or spent.shape[1] != n:
        raise ValueError(
            "combine: `weights` and `spent` must be of shape (q, n) and (p, n) for "
            "`coordinates` of shape (r, n); got another n."
        )
    if out.shape[0] != q or out.shape[1] != r + q:
        raise ValueError(
            "combine: `out` must be of shape (q, r + q) for `weights` of shape (q, n) "
            "and `coordinates` of shape (r, n); got another shape."
        )
    if not math.isfinite(dof):
        raise ValueError("combine: `dof` must be a finite number; got nan or infinity.")
    # Inside the frame the combinations are known. Outside they are Gaussian, with the
    # Gram matrix of the weights as covariance, in each of dof directions. The new axes
    # are free, so that only lengths and angles of the combinations are drawn.
    _gram(weights, coordinates, out[:, :r])
    factor = out[:, r:]
    if spent.shape[0] == 0:
        _gram(weights, weights, factor)
    else:
        # Along spent vectors, nothing of Z is left outside the frame.
        remaining = weights.copy()
        for row in range(remaining.shape[0]):
            _project_off(spent, remaining[row])
            _project_off(spent, remaining[row])  # once more, for what rounding left
        _gram(remaining, remaining, factor)
    cholesky(factor)
    times_bartlett(rng, dof, factor)


@njit(fastmath=REORDER)
def reveal_along(
    rng: np.random.Generator, weights: Any, length: float, spent: Any, out: Any
) -> None:
    r"""Draw the tokens' coordinates along the direction that a combination created.

    A combination :math:`Z^\top c` with coordinate ``length`` on its new direction
    :math:`e` has fixed one thing about the column :math:`Z e`, and no more:

    .. math::

        Z e = \frac{\ell}{\lVert c' \rVert}\, \hat c
            + (I - \hat c \hat c^\top - \textstyle\sum_j \hat c_j \hat c_j^\top) g,
        \qquad c' = (I - \textstyle\sum_j \hat c_j \hat c_j^\top) c

    Parameters
    ----------
    rng
        Source of randomness.
    weights
        :math:`c`, the weights given to :func:`combine` with q = 1, (n,).
    length
        :math:`\ell`, the last coordinate that it returned.
    spent
        (p + 1, n): the first p rows are the :math:`\hat c_j` of earlier calls; the
        last row is written: :math:`\hat c = c' / \lVert c' \rVert`, or 0 if
        :math:`c' = 0`. Pass all rows to all later draws.
    out
        :math:`Z e`, (n,): written.
    """
    n = weights.shape[0]
    if spent.shape[0] < 1 or spent.shape[1] != n or out.shape[0] != n:
        raise ValueError(
            "reveal_along: `spent` and `out` must be of shape (p + 1, n) and (n,) for "
            "`weights` of shape (n,); got another shape."
        )
    earlier, unit = spent[:-1], spent[-1]
    full = 0.0
    for token in range(n):
        unit[token] = weights[token]
        full += weights[token] ** 2
    _project_off(earlier, unit)
    _project_off(earlier, unit)
    squared = 0.0
    for token in range(n):
        squared += unit[token] ** 2
    norm = math.sqrt(squared) if squared > _RELATIVE_PIVOT * full else 0.0
    inverse = 1.0 / norm if norm > 0.0 else 0.0
    for token in range(n):
        unit[token] *= inverse
        out[token] = rng.standard_normal()
    # The rows of spent now include the new unit vector. The product with it was fixed
    # by the combination and replaces the one that was drawn.
    _project_off(spent, out)
    for token in range(n):
        out[token] += length * inverse * unit[token]


@njit(error_model="numpy")
def reframe(vectors: Any, n_planted: int) -> None:
    r"""Rotate the frame so that m vectors need n_planted + m coordinates again.

    The planted directions stay; the others are turned by Householder reflections
    until vector a has coordinates on the planted ones and on a + 1 more. Lengths
    and angles do not change: with :math:`P` the planted part,
    :math:`V \mapsto (P, L)` where :math:`L` is lower triangular with a diagonal
    >= 0 and :math:`P P^\top + L L^\top = V V^\top`.

    Parameters
    ----------
    vectors
        One vector per row, coordinates in the current frame, (m, >= n_planted + m):
        rewritten; the columns after n_planted + m become 0. A vector inside the span
        of those before it (k = ±k*) is fine: its diagonal entry is 0, and the new
        direction is any.
    n_planted
        Number of leading coordinates that must not change.
    """
    m, size = vectors.shape
    if n_planted < 0 or n_planted > size - m:
        raise ValueError(
            "reframe: `vectors` must be of shape (m, >= n_planted + m) for an "
            "`n_planted` >= 0; got fewer columns, or n_planted < 0."
        )
    for row in range(m):
        first = n_planted + row
        squared = 0.0
        for column in range(first, size):
            squared += vectors[row, column] * vectors[row, column]
        norm = math.sqrt(squared)
        if norm == 0.0:
            continue
        # Reflect the residual on the axis of opposite sign: no cancellation.
        sign = -1.0 if vectors[row, first] > 0.0 else 1.0
        vectors[row, first] -= sign * norm
        scale = -1.0 / (sign * norm * vectors[row, first])
        # Rows below are reflected too. If this row fell on the negative axis, the axis
        # is turned round (sign), so that the diagonal is never negative.
        for below in range(row + 1, m):
            product = 0.0
            for column in range(first, size):
                product += vectors[row, column] * vectors[below, column]
            for column in range(first, size):
                vectors[below, column] -= scale * product * vectors[row, column]
            vectors[below, first] *= sign
        vectors[row, first] = norm
        for column in range(first + 1, size):
            vectors[row, column] = 0.0


@njit(fastmath=REORDER)
def sphere_step(vector: Any, gradient: Any, step_size: float) -> bool:
    r"""Make one projected gradient step on the unit sphere, in place.

    .. math::

        w \leftarrow \frac{w - \alpha (I - w w^\top) g}
                          {\lVert w - \alpha (I - w w^\top) g \rVert}

    Parameters
    ----------
    vector
        :math:`w`, of length 1: rewritten.
    gradient
        :math:`g`, in the same coordinates.
    step_size
        :math:`\alpha`.

    Returns
    -------
    finite
        False if the step overflowed, or ended at 0 (no unit vector does); the vector
        is then meaningless.
    """
    size = vector.shape[0]
    if gradient.shape[0] != size:
        raise ValueError(
            "sphere_step: `gradient` must be of the shape of `vector`; got another."
        )
    radial = 0.0
    for index in range(size):
        radial += vector[index] * gradient[index]
    squared = 0.0
    for index in range(size):
        tangent = gradient[index] - radial * vector[index]
        vector[index] -= step_size * tangent
        squared += vector[index] * vector[index]
    inverse = 1.0 / math.sqrt(squared) if squared > 0.0 else 0.0
    for index in range(size):
        vector[index] *= inverse
    return inverse > 0.0


@njit(fastmath=REORDER)
def _project_off(units: Any, vector: Any) -> None:
    for row in range(units.shape[0]):
        product = 0.0
        for index in range(vector.shape[0]):
            product += units[row, index] * vector[index]
        for index in range(vector.shape[0]):
            vector[index] -= product * units[row, index]


@njit(fastmath=REORDER)
def _gram(left: Any, right: Any, out: Any) -> None:
    for a in range(left.shape[0]):
        for b in range(right.shape[0]):
            total = 0.0
            for index in range(left.shape[1]):
                total += left[a, index] * right[b, index]
            out[a, b] = total


@njit(error_model="numpy", no_cpython_wrapper=True)
def cholesky(matrix: Any) -> None:
    """Replace a positive semi-definite matrix by its lower factor, 0 above."""
    q = matrix.shape[0]
    for b in range(q):
        pivot = matrix[b, b]
        for c in range(b):
            pivot -= matrix[b, c] * matrix[b, c]
        # A pivot of the size of rounding is zero: the row depends on earlier ones.
        root = math.sqrt(pivot) if pivot > _RELATIVE_PIVOT * matrix[b, b] else 0.0
        for a in range(b + 1, q):
            entry = matrix[a, b]
            for c in range(b):
                entry -= matrix[a, c] * matrix[b, c]
            matrix[a, b] = entry / root if root > 0.0 else 0.0
            matrix[b, a] = 0.0
        matrix[b, b] = root


@njit(error_model="numpy", no_cpython_wrapper=True)
def times_bartlett(rng: np.random.Generator, dof: float, factor: Any) -> None:
    """Replace the lower factor L by L A, column by column, A never stored."""
    q = factor.shape[0]
    for b in range(q):
        # The b columns before have taken b dimensions: dof - b are left for the length.
        # Columns after b still hold L, which the normals of A multiply.
        freedom, length = dof - b, 0.0
        if freedom > 0.0:
            # Half the squared length of a Gaussian vector is a gamma variable, drawn by
            # the rejection of Marsaglia and Tsang. For shapes above 1 the numbers are
            # those of rng.standard_gamma, whose other branches take long to compile.
            shape, less = 0.5 * freedom, 1.0
            if shape < 1.0:
                less = rng.random() ** (1.0 / shape)
                shape += 1.0
            shape -= 1.0 / 3.0
            scale = 1.0 / math.sqrt(9.0 * shape)
            cube, is_drawn = 1.0, False
            while not is_drawn:
                normal = rng.standard_normal()
                root = 1.0 + scale * normal
                if root > 0.0:
                    cube, square = root * root * root, normal * normal
                    uniform = rng.random()
                    above = 0.5 * square + shape * (1.0 - cube + math.log(cube))
                    is_drawn = (
                        uniform < 1.0 - 0.0331 * square * square
                        or math.log(uniform) < above
                    )
            length = math.sqrt(2.0 * (less * (shape * cube)))
        for a in range(b, q):
            factor[a, b] *= length
        if freedom > 0.0:
            for c in range(b + 1, q):
                normal = rng.standard_normal()
                for a in range(c, q):
                    factor[a, b] += factor[a, c] * normal
