r"""Compiled prompts of attention-based PCA with one direction.

Tokens are :math:`x = Fz` with standard normal z; a factor F is the diagonal of a
covariance in its eigenbasis (one axis) or any matrix (two). The head meets z only along
:math:`q = F^\top\mu / \lVert F^\top\mu \rVert` and along what the error reveals, so the
exact prompt draws two normals a token and two vectors.
"""

import math
from typing import Any

import numpy as np

from eigenheads._compile import njit
from eigenheads.dynamics._engine import REORDER
from eigenheads.dynamics._pca_vectors import (
    add_combination,
    add_scaled,
    attend,
    dot,
    draw_normals,
    draw_off,
    products,
    residual_length,
    tangent,
    times_factor,
    times_transposed,
)


@njit(fastmath=REORDER)
def exact_prompt(
    rng: np.random.Generator,
    factor: Any,
    basis: Any,
    length: float,
    sharpness: float,
    is_softmax: bool,
    space: Any,
    vectors: Any,
    gradient: Any,
) -> float:
    r"""Add one prompt's gradient in z, drawing 2 L + 2 r normals; return its loss.

    The row of ``basis`` is q, and ``length`` is :math:`\lVert F^\top\mu \rVert`;
    ``space`` (4, L) and ``vectors`` (6, r or d) are overwritten. With coordinates u
    along q, error :math:`e = F \sum_k c_k z_k` and :math:`v = F^\top e`, the products
    :math:`h_k = z_k \cdot v` have one known combination, along c, and are otherwise
    fresh normals; and so has the gradient :math:`\sum_k g_k z_k`.
    """
    u, p, eta, t = space[0], space[1], space[2], space[3]
    unit = basis[0]
    size = len(unit)
    zeta, v, fresh = vectors[0, :size], vectors[2, :size], vectors[3, :size]
    draw_normals(rng, 1.0, u)
    attend(u, sharpness * length * length * u[0], is_softmax, p)
    # The error's weights are c = δ_1 - p.
    on_u = u[0] - dot(p, u)
    norm = math.sqrt(max(1.0 - 2.0 * p[0] + dot(p, p), 0.0))
    inverse = 1.0 / norm if norm > 0.0 else 0.0
    draw_off(rng, basis, zeta)
    for index in range(size):
        fresh[index] = on_u * unit[index] + norm * zeta[index]
    e = vectors[1, : factor.shape[0]]
    times_factor(factor, fresh, e)
    times_transposed(factor, e, v)
    on_v, whole = dot(v, unit), dot(v, v)
    add_scaled(-on_v, unit, v)
    sigma = residual_length(v, whole)
    draw_normals(rng, sigma, eta)
    c_eta = (eta[0] - dot(p, eta)) * inverse
    shift = (dot(v, zeta) - c_eta) * inverse
    for token in range(len(t)):
        t[token] = on_v * u[token] - shift * p[token] + eta[token]
    t[0] += shift
    tangent(p, t, is_softmax)
    t_u, t_p, t_eta, t_t = _moments(t, u, p, eta)
    # g = -2 λ (s_1 t + δ_1 t·s), s = length · u.
    weight = -2.0 * sharpness * length
    g_c = weight * inverse * (u[0] * (t[0] - t_p) + (1.0 - p[0]) * t_u)
    g_eta = weight * (u[0] * t_eta + eta[0] * t_u)
    g_g = weight**2 * (u[0] * (u[0] * t_t + 2.0 * t[0] * t_u) + t_u * t_u)
    rest = math.sqrt(max(g_g - g_c * g_c, 0.0))
    draw_off(rng, basis, fresh)
    along = 0.0
    if sigma > 0.0:
        along = (g_eta - c_eta * g_c - rest * dot(fresh, v)) / sigma**2
    g_u = 2.0 * weight * u[0] * t_u
    for index in range(size):
        gradient[index] += (
            g_u * unit[index]
            + g_c * zeta[index]
            + along * v[index]
            + rest * fresh[index]
        )
    return dot(e, e)


@njit(fastmath=REORDER)
def _moments(t: Any, u: Any, p: Any, eta: Any) -> tuple[float, float, float, float]:
    """Return the products of t with u, p, η and itself, in one pass."""
    t_u, t_p, t_eta, t_t = 0.0, 0.0, 0.0, 0.0
    for token in range(len(t)):
        t_u += t[token] * u[token]
        t_p += t[token] * p[token]
        t_eta += t[token] * eta[token]
        t_t += t[token] * t[token]
    return t_u, t_p, t_eta, t_t


@njit(fastmath=REORDER)
def full_prompt(
    rng: np.random.Generator,
    factor: Any,
    on_z: Any,
    sharpness: float,
    is_softmax: bool,
    z: Any,
    space: Any,
    vectors: Any,
    gradient: Any,
) -> float:
    r"""Add one prompt's gradient in z, drawing every coordinate; return its loss.

    ``on_z`` is :math:`F^\top\mu`; ``z`` (L, r), ``space`` (4, L) and ``vectors``
    (6, r or d) are overwritten.
    """
    s, p, t = space[0], space[1], space[3]
    n_tokens, size = z.shape
    v, combined = vectors[2, :size], vectors[3, :size]
    e = vectors[1, : factor.shape[0]]
    for token in range(n_tokens):
        draw_normals(rng, 1.0, z[token])
        s[token] = dot(z[token], on_z)
    attend(s, sharpness * s[0], is_softmax, p)
    combined[:] = 0.0
    add_combination(p, z, combined)
    for index in range(size):
        combined[index] = z[0, index] - combined[index]
    times_factor(factor, combined, e)
    times_transposed(factor, e, v)
    products(z, v, t)
    tangent(p, t, is_softmax)
    first = dot(t, s)
    for token in range(n_tokens):
        t[token] *= s[0]
    t[0] += first
    combined[:] = 0.0
    add_combination(t, z, combined)
    add_scaled(-2.0 * sharpness, combined, gradient)
    return dot(e, e)
