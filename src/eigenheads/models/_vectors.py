"""Training with real vectors, for checks of the exact simulation."""

import math
from typing import Any

import numpy as np

from eigenheads._compile import njit

# Sums may be reordered (SIMD); infinities and NaN keep their meaning.
REORDER = {"reassoc", "contract", "nsz"}


@njit()
def chi(rng: np.random.Generator, dof: float) -> float:
    r"""Draw the length of a standard Gaussian vector in :math:`\mathbb R^{dof}`.

    .. math::

        \chi_m = \sqrt{2 \Gamma_{m/2}}, \qquad \chi_0 = 0

    Parameters
    ----------
    rng
        Source of randomness.
    dof
        :math:`m`, finite; nothing is drawn, and 0 returned, if it is <= 0.
    """
    if not math.isfinite(dof):
        raise ValueError("chi: `dof` must be a finite number; got nan or infinity.")
    if dof <= 0.0:
        return 0.0
    # Half the squared length is a gamma variable: one draw for any dimension.
    return math.sqrt(2.0 * rng.standard_gamma(0.5 * dof))


@njit()
def draw_normals(rng: np.random.Generator, scale: float, out: Any) -> None:
    """Write independent normals of standard deviation `scale`."""
    for index in range(len(out)):
        out[index] = scale * rng.standard_normal()


@njit(fastmath=REORDER)
def dot(left: Any, right: Any) -> float:
    """Return the inner product."""
    total = 0.0
    for index in range(len(left)):
        total += left[index] * right[index]
    return total


@njit(fastmath=REORDER)
def add_scaled(scale: float, vector: Any, out: Any) -> None:
    """Add a multiple of a vector."""
    for index in range(len(out)):
        out[index] += scale * vector[index]


@njit(fastmath=REORDER)
def add_combination(weights: Any, rows: Any, out: Any) -> None:
    """Add the combination of rows with these weights."""
    for row in range(len(weights)):
        for index in range(len(out)):
            out[index] += weights[row] * rows[row, index]


@njit(fastmath=REORDER)
def products(rows: Any, vector: Any, out: Any) -> None:
    """Write the inner product of each row with a vector."""
    for row in range(len(out)):
        total = 0.0
        for index in range(len(vector)):
            total += rows[row, index] * vector[index]
        out[row] = total


@njit()
def draw_off(rng: np.random.Generator, basis: Any, out: Any) -> None:
    """Write a standard normal vector projected off orthonormal (or zero) rows."""
    draw_normals(rng, 1.0, out)
    for row in range(basis.shape[0]):
        add_scaled(-dot(out, basis[row]), basis[row], out)


@njit()
def draw_wishart_factor(
    rng: np.random.Generator, roots: Any, dof: int, factor: Any
) -> None:
    r"""Write F with :math:`FF^\top \sim` Wishart(V, n), V diagonal, by Bartlett.

    A Gaussian d × n matrix is a lower trapezoid times an orthogonal matrix, which
    standard normal tokens do not see: :math:`\chi_{n-i}` on the diagonal, i = 0, 1, …,
    and normals below.
    """
    d, columns = factor.shape
    for row in range(d):
        for column in range(columns):
            if column < row:
                factor[row, column] = roots[row] * rng.standard_normal()
            elif column == row:
                factor[row, column] = roots[row] * chi(rng, float(dof - row))
            else:
                factor[row, column] = 0.0


@njit()
def draw_gaussian_factor(rng: np.random.Generator, roots: Any, factor: Any) -> None:
    """Write F of independent columns from N(0, V), V diagonal."""
    for row in range(factor.shape[0]):
        draw_normals(rng, roots[row], factor[row])


@njit(fastmath=REORDER)
def times_factor(factor: Any, z: Any, out: Any) -> None:
    """Write F z; a factor with one axis is a diagonal."""
    if factor.ndim == 1:
        for row in range(len(out)):
            out[row] = factor[row] * z[row]
    else:
        products(factor, z, out)


@njit(fastmath=REORDER)
def times_transposed(factor: Any, x: Any, out: Any) -> None:
    """Write F' x."""
    if factor.ndim == 1:
        for row in range(len(out)):
            out[row] = factor[row] * x[row]
    else:
        out[:] = 0.0
        add_combination(x, factor, out)


@njit(fastmath=REORDER)
def attend(products_: Any, scale: float, is_softmax: bool, weights: Any) -> None:
    """Write the weights of scores that are `scale` times these products.

    The softmax is that of :func:`eigenheads._arrays.stable_softmax`.
    """
    n_tokens = len(weights)
    if not is_softmax:
        for token in range(n_tokens):
            weights[token] = scale * products_[token]
        return
    # No exponent is above 0: take off the largest, or the least if λ s_1 < 0.
    sign = 1.0 if scale >= 0.0 else -1.0
    largest = sign * products_[0]
    for token in range(n_tokens):
        largest = max(largest, sign * products_[token])
    largest *= sign
    total = 0.0
    for token in range(n_tokens):
        weights[token] = math.exp(scale * (products_[token] - largest))
        total += weights[token]
    inverse = 1.0 / total
    for token in range(n_tokens):
        weights[token] *= inverse


@njit(fastmath=REORDER)
def tangent(p: Any, h: Any, is_softmax: bool) -> None:
    """Replace h by t: p (h - p·h) for softmax, h itself for a linear head."""
    if not is_softmax:
        return
    mean = dot(p, h)
    for token in range(len(h)):
        h[token] = p[token] * (h[token] - mean)


@njit()
def orthonormalise(columns: Any, basis: Any, mixing: Any) -> None:
    """Write Q and R with columns = Q R; a dependent column has 0 in Q.

    ``columns`` and ``basis`` are (k, size): one column per row.
    """
    mixing[:] = 0.0
    for i in range(len(columns)):
        basis[i] = columns[i]
        for _ in range(2):  # twice is enough for rounding
            for j in range(i):
                product = dot(basis[i], basis[j])
                mixing[j, i] += product
                add_scaled(-product, basis[j], basis[i])
        norm = residual_length(basis[i], dot(columns[i], columns[i]))
        mixing[i, i] = norm
        basis[i] *= 1.0 / norm if norm > 0.0 else 0.0


@njit()
def residual_length(residual: Any, whole: float) -> float:
    """Return the length of what projections left, or 0 if it is rounding.

    ``whole`` is the squared length before; a share of 1e-24 of it counts as nothing.
    """
    squared = dot(residual, residual)
    return math.sqrt(squared) if squared > 1e-24 * whole else 0.0
