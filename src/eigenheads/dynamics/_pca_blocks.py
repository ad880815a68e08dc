"""Compiled blocks of SGD updates for attention-based PCA."""

import math
from typing import Any, NamedTuple

import numpy as np

from eigenheads._compile import njit
from eigenheads.dynamics._pca_prompts import (
    exact_prompt,
    exact_prompt_k,
    full_prompt,
    full_prompt_k,
)
from eigenheads.dynamics._vectors import (
    add_scaled,
    draw_gaussian_factor,
    draw_wishart_factor,
    orthonormalise,
    times_factor,
    times_transposed,
)


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
