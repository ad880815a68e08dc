r"""Training of a PCA head on prompts of finite length, in blocks of steps.

Tokens are :math:`x = Fz` with standard normal z; a factor F is the diagonal of a
covariance in its eigenbasis (one axis) or any matrix (two). With one direction the head
depends on z only through :math:`q = F^\top\mu / \lVert F^\top\mu \rVert` and through
what the error reveals, so the exact prompt draws two normals per token and two vectors.
With k directions the head depends on the k-dimensional span of :math:`F^\top M = QR`,
and the gradient :math:`-2\lambda [x_1 (\sum_j t_j y_j)^\top + (\sum_j t_j x_j)
y_1^\top]`, :math:`y = M^\top x`, needs two combinations of tokens.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from eigenheads._compile import njit
from eigenheads.models._vectors import (
    REORDER,
    add_combination,
    add_scaled,
    attend,
    dot,
    draw_gaussian_factor,
    draw_normals,
    draw_off,
    draw_wishart_factor,
    orthonormalise,
    products,
    residual_length,
    tangent,
    times_factor,
    times_transposed,
)

# --- Blocks of steps -----------------------------------------------------------------


class PCAProblem(NamedTuple):
    """Constants of a run.

    ``roots`` are the square roots of the eigenvalues of the covariance, or of the
    Wishart law's scale matrix; ``dof`` is 0 for a fixed covariance. The leading
    ``n_certain`` coordinates span the principal subspace, together with a part of the
    next ones up to ``n_candidates`` if eigenvalues coincide there.
    """

    roots: Any
    dof: int
    n_tokens: int
    inverse_temperature: float
    is_softmax: bool
    batch_size: int
    prompts_per_covariance: int
    n_certain: int
    n_candidates: int


class _Workspace(NamedTuple):
    """Memory that a block overwrites."""

    tokens: Any
    z: Any
    space: Any
    vectors: Any
    on_z: Any
    basis: Any
    mixing: Any
    in_z: Any


@njit()
def pca_block(
    rng: np.random.Generator,
    run: Any,
    step_sizes: Any,
    problem: PCAProblem,
    is_exact: bool,
    first: int,
    record_every: int,
    records: Any,
) -> int:
    """Advance one run by a block of updates.

    ``run`` is a pair of arrays. The first, (k, d), holds the directions of the head in
    the eigenbasis of the covariance. The second is the factor: (d,) for a fixed
    covariance, or (d, columns), redrawn for each covariance. Records are made before
    an update, with the loss of that update's prompts.

    Returns
    -------
    broken
        Index of the update that overflowed, or -1.
    """
    state, factor = run
    k, d = state.shape
    size = factor.shape[factor.ndim - 1]
    n_tokens = problem.n_tokens
    work = _Workspace(
        np.empty((2, n_tokens, k)),
        np.empty((0 if is_exact else n_tokens, size)),
        np.empty((4, n_tokens)),
        np.empty((6, max(d, size))),
        np.empty((k, size)),
        np.empty((k, size)),
        np.empty((k, k)),
        np.empty((k, size)),
    )
    gradient = np.empty((k, d))
    group = problem.prompts_per_covariance if problem.dof else problem.batch_size
    for index in range(len(step_sizes)):
        gradient[:] = 0.0
        loss = 0.0
        for begin in range(0, problem.batch_size, group):
            size_of_group = min(group, problem.batch_size - begin)
            loss += _add_group(
                rng, state, factor, problem, is_exact, size_of_group, work, gradient
            )
        if not math.isfinite(loss):
            return first + index
        if (first + index) % record_every == 0:
            record = records[(first + index) // record_every]
            record[0] = _alignment(state, problem.n_certain, problem.n_candidates)
            record[1] = math.sqrt(np.sum(state * state))
            record[2] = loss / problem.batch_size
        for axis in range(k):
            scale = -step_sizes[index] / problem.batch_size
            add_scaled(scale, gradient[axis], state[axis])
    return -1


@njit()
def _add_group(
    rng: np.random.Generator,
    state: Any,
    factor: Any,
    problem: PCAProblem,
    is_exact: bool,
    n_prompts: int,
    work: _Workspace,
    gradient: Any,
) -> float:
    """Add the gradients of prompts with one covariance; return their losses' sum."""
    if factor.ndim == 2:
        if is_exact:
            draw_wishart_factor(rng, problem.roots, problem.dof, factor)
        else:
            draw_gaussian_factor(rng, problem.roots, factor)
    for axis in range(len(state)):
        times_transposed(factor, state[axis], work.on_z[axis])
    if is_exact:
        orthonormalise(work.on_z, work.basis, work.mixing)
    # Prompts of one covariance share the factor: gradients are summed before it, and
    # multiplied by it once.
    work.in_z[:] = 0.0
    loss = 0.0
    for _ in range(n_prompts):
        loss += _add_prompt(rng, factor, problem, is_exact, work)
    moved = work.vectors[5, : gradient.shape[1]]
    for axis in range(len(state)):
        times_factor(factor, work.in_z[axis], moved)
        add_scaled(1.0, moved, gradient[axis])
    return loss


@njit()
def _add_prompt(
    rng: np.random.Generator,
    factor: Any,
    problem: PCAProblem,
    is_exact: bool,
    work: _Workspace,
) -> float:
    tokens, z, space, vectors, on_z, basis, mixing, in_z = work
    inverse_temperature, is_softmax = problem.inverse_temperature, problem.is_softmax
    if len(in_z) == 1:
        if is_exact:
            return exact_prompt(
                rng,
                factor,
                basis,
                mixing[0, 0],
                inverse_temperature,
                is_softmax,
                space,
                vectors,
                in_z[0],
            )
        return full_prompt(
            rng,
            factor,
            on_z[0],
            inverse_temperature,
            is_softmax,
            z,
            space,
            vectors,
            in_z[0],
        )
    if is_exact:
        return exact_prompt_k(
            rng,
            factor,
            basis,
            mixing,
            inverse_temperature,
            is_softmax,
            tokens,
            space,
            vectors,
            in_z,
        )
    return full_prompt_k(
        rng,
        factor,
        on_z,
        inverse_temperature,
        is_softmax,
        z,
        tokens[1],
        space,
        vectors,
        in_z,
    )


@njit()
def _alignment(state: Any, n_certain: int, n_candidates: int) -> float:
    """Return the root mean square cosine with the leading coordinates."""
    k = state.shape[0]
    basis, mixing = np.empty_like(state), np.empty((k, k))
    orthonormalise(state, basis, mixing)
    certain = np.sum(basis[:, :n_certain] ** 2)
    # If eigenvalues coincide at the edge, any k - n_certain directions of their
    # eigenspace are principal: not more than that many count.
    tied = np.sum(basis[:, n_certain:n_candidates] ** 2)
    share = (certain + min(tied, float(k - n_certain))) / k
    return math.sqrt(min(1.0, share))


# --- The training --------------------------------------------------------------------


@njit(fastmath=REORDER)
def exact_prompt(
    rng: np.random.Generator,
    factor: Any,
    basis: Any,
    length: float,
    inverse_temperature: float,
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
    attend(u, inverse_temperature * length * length * u[0], is_softmax, p)
    # The error's weights are c = δ_1 - p.
    on_u = u[0] - dot(p, u)
    norm = math.sqrt(max(1.0 - 2.0 * p[0] + dot(p, p), 0.0))
    inverse = 1.0 / norm if norm > 0.0 else 0.0
    # Off q, the combination of tokens with weights c is its norm times a standard
    # normal vector: attention has read the tokens along q alone.
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
    # Off q, the products of the tokens with v are normals of deviation sigma, but for
    # their combination along c: ζ is known, so that it must be v · ζ. The shift puts
    # that value in the place of the drawn one.
    c_eta = (eta[0] - dot(p, eta)) * inverse
    shift = (dot(v, zeta) - c_eta) * inverse
    for token in range(len(t)):
        t[token] = on_v * u[token] - shift * p[token] + eta[token]
    t[0] += shift
    tangent(p, t, is_softmax)
    t_u, t_p, t_eta, t_t = _moments(t, u, p, eta)
    # g = -2 λ (s_1 t + δ_1 t·s), s = length · u.
    weight = -2.0 * inverse_temperature * length
    g_c = weight * inverse * (u[0] * (t[0] - t_p) + (1.0 - p[0]) * t_u)
    g_eta = weight * (u[0] * t_eta + eta[0] * t_u)
    g_g = weight**2 * (u[0] * (u[0] * t_t + 2.0 * t[0] * t_u) + t_u * t_u)
    # The gradient is a third combination of tokens. It is known along q, along c and
    # along v; what is left of its weights meets a fresh vector.
    outside = math.sqrt(max(g_g - g_c * g_c, 0.0))
    draw_off(rng, basis, fresh)
    # The part of the fresh vector along v is taken off, because the products with v
    # were drawn before.
    along = 0.0
    if sigma > 0.0:
        along = (g_eta - c_eta * g_c - outside * dot(fresh, v)) / sigma**2
    g_u = 2.0 * weight * u[0] * t_u
    for index in range(size):
        gradient[index] += (
            g_u * unit[index]
            + g_c * zeta[index]
            + along * v[index]
            + outside * fresh[index]
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
    inverse_temperature: float,
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
    attend(s, inverse_temperature * s[0], is_softmax, p)
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
    add_scaled(-2.0 * inverse_temperature, combined, gradient)
    return dot(e, e)


@njit(fastmath=REORDER)
def exact_prompt_k(
    rng: np.random.Generator,
    factor: Any,
    basis: Any,
    mixing: Any,
    inverse_temperature: float,
    is_softmax: bool,
    tokens: Any,
    space: Any,
    vectors: Any,
    gradient: Any,
) -> float:
    """Add one prompt's gradient in z, drawing (k + 1) L + 3 r normals.

    ``basis`` (k, r) and ``mixing`` (k, k) are Q and R; ``tokens`` (2, L, k), ``space``
    (4, L) and ``vectors`` (6, r or d) are overwritten.
    """
    u, y = tokens[0], tokens[1]
    p, eta, t = space[1], space[2], space[3]
    size = basis.shape[1]
    zeta, v = vectors[0, :size], vectors[2, :size]
    combined, first = vectors[3, :size], vectors[4, :size]
    e = vectors[1, : factor.shape[0]]
    for token in range(len(u)):
        draw_normals(rng, 1.0, u[token])
        y[token] = 0.0
        add_combination(u[token], mixing, y[token])
    products(y, y[0], t)
    attend(t, inverse_temperature, is_softmax, p)
    # The error's weights are c = δ_1 - p.
    norm = math.sqrt(max(1.0 - 2.0 * p[0] + dot(p, p), 0.0))
    inverse = 1.0 / norm if norm > 0.0 else 0.0
    draw_off(rng, basis, zeta)
    _error_in_z(u, p, norm, zeta, basis, combined)
    times_factor(factor, combined, e)
    times_transposed(factor, e, v)
    # As with one direction: the products with v are known on the basis, and are normals
    # for what v has outside it, but for one combination.
    whole = dot(v, v)
    t[:] = 0.0
    for axis in range(len(basis)):
        on_v = dot(v, basis[axis])
        add_scaled(-on_v, basis[axis], v)
        add_scaled(on_v, u[:, axis], t)
    sigma = residual_length(v, whole)
    draw_normals(rng, sigma, eta)
    c_eta = (eta[0] - dot(p, eta)) * inverse
    shift = (dot(v, zeta) - c_eta) * inverse
    add_scaled(1.0, eta, t)
    add_scaled(-shift, p, t)
    t[0] += shift
    tangent(p, t, is_softmax)
    _draw_combinations(
        rng, basis, t, p, eta, sigma, inverse, c_eta, zeta, v, combined, first
    )
    for axis in range(len(basis)):
        add_scaled(dot(t, u[:, axis]), basis[axis], combined)
        add_scaled(u[0, axis], basis[axis], first)
    _add_outer(combined, first, t, y, inverse_temperature, gradient)
    return dot(e, e)


@njit(fastmath=REORDER)
def _error_in_z(u: Any, p: Any, norm: float, zeta: Any, basis: Any, out: Any) -> None:
    """Write the error before the factor: its known part, and the fresh one."""
    for index in range(len(out)):
        out[index] = norm * zeta[index]
    for axis in range(len(basis)):
        add_scaled(u[0, axis] - dot(p, u[:, axis]), basis[axis], out)


@njit(fastmath=REORDER)
def _draw_combinations(
    rng: np.random.Generator,
    basis: Any,
    t: Any,
    p: Any,
    eta: Any,
    sigma: float,
    inverse: float,
    c_eta: float,
    zeta: Any,
    v: Any,
    combined: Any,
    first: Any,
) -> None:
    """Write what lies off the basis of the sum of t_j z_j, and of the first token.

    Both are known along ζ (the direction c of the tokens) and along v; what is left
    has a 2 × 2 Gram matrix, whose Cholesky factor mixes two fresh vectors.
    """
    t_c = (t[0] - dot(t, p)) * inverse
    first_c = (1.0 - p[0]) * inverse
    rest_t = math.sqrt(max(dot(t, t) - t_c * t_c, 0.0))
    cross = (t[0] - t_c * first_c) / rest_t if rest_t > 0.0 else 0.0
    outside = math.sqrt(max(1.0 - first_c * first_c - cross * cross, 0.0))
    draw_off(rng, basis, combined)
    draw_off(rng, basis, first)
    along_t, along_first, scale = 0.0, 0.0, 0.0
    if sigma > 0.0:
        scale = 1.0 / sigma**2
        along_t = (dot(t, eta) - c_eta * t_c) * scale
        along_first = (eta[0] - c_eta * first_c) * scale
    add_scaled(-dot(combined, v) * scale, v, combined)
    add_scaled(-dot(first, v) * scale, v, first)
    for index in range(len(v)):
        one, two = combined[index], first[index]
        combined[index] = t_c * zeta[index] + along_t * v[index] + rest_t * one
        first[index] = first_c * zeta[index] + along_first * v[index]
        first[index] += cross * one + outside * two


@njit(fastmath=REORDER)
def _add_outer(
    combined: Any, first: Any, t: Any, y: Any, inverse_temperature: float, gradient: Any
) -> None:
    """Add -2 λ [z_1 (Σ t_j y_j)' + (Σ t_j z_j) y_1'] to the gradient, (k, r)."""
    for axis in range(len(gradient)):
        add_scaled(
            -2.0 * inverse_temperature * dot(t, y[:, axis]), first, gradient[axis]
        )
        add_scaled(-2.0 * inverse_temperature * y[0, axis], combined, gradient[axis])


@njit(fastmath=REORDER)
def full_prompt_k(
    rng: np.random.Generator,
    factor: Any,
    on_z: Any,
    inverse_temperature: float,
    is_softmax: bool,
    z: Any,
    y: Any,
    space: Any,
    vectors: Any,
    gradient: Any,
) -> float:
    """Add one prompt's gradient in z, drawing every coordinate; return its loss.

    ``on_z`` (k, r) is M'F; ``z`` (L, r), ``y`` (L, k), ``space`` and ``vectors`` are
    overwritten.
    """
    p, t = space[1], space[3]
    n_tokens, size = z.shape
    v, combined = vectors[2, :size], vectors[3, :size]
    e = vectors[1, : factor.shape[0]]
    for token in range(n_tokens):
        draw_normals(rng, 1.0, z[token])
        products(on_z, z[token], y[token])
    products(y, y[0], t)
    attend(t, inverse_temperature, is_softmax, p)
    combined[:] = 0.0
    add_combination(p, z, combined)
    for index in range(size):
        combined[index] = z[0, index] - combined[index]
    times_factor(factor, combined, e)
    times_transposed(factor, e, v)
    products(z, v, t)
    tangent(p, t, is_softmax)
    combined[:] = 0.0
    add_combination(t, z, combined)
    _add_outer(combined, z[0], t, y, inverse_temperature, gradient)
    return dot(e, e)
