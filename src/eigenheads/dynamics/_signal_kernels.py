"""Compiled steps of projected stochastic gradient ascent for signal recovery."""

import math
from typing import Any, NamedTuple

import numpy as np

from eigenheads._compile import njit
from eigenheads.dynamics._engine import (
    REORDER,
    chi,
    combine,
    reframe,
    reveal,
    reveal_along,
    sphere_step,
)
from eigenheads.dynamics._vectors import fast_softmax

# The average's weights grow like t³ (see simulate_signal).
_AVERAGE_POWER = 3.0


class SignalProblem(NamedTuple):
    """Constants of a run."""

    d: float
    n_informative: int
    n_nuisance: int
    amplitude: float
    random_signs: bool
    inverse_temperature: float
    batch_size: int


@njit()
def draw_shifts(rng: np.random.Generator, problem: SignalProblem, out: Any) -> None:
    """Write what each informative token is shifted by along u."""
    for token in range(problem.n_informative):
        out[token] = problem.amplitude
        if problem.random_signs and rng.random() < 0.5:
            out[token] = -problem.amplitude


@njit(fastmath=REORDER)
def ascent_weights(weights: Any, meetings: Any, scale: float, out: Any) -> None:
    r"""Write the tokens' weights :math:`c_i` in the ascent direction of one prompt.

    .. math::

        c_i = \text{scale} \cdot p_i (x_i \cdot o - \lVert o \rVert^2), \qquad
        \lVert o \rVert^2 = \textstyle\sum_i p_i\, x_i \cdot o
    """
    n = weights.shape[0]
    squared_norm = 0.0
    for token in range(n):
        squared_norm += weights[token] * meetings[token]
    for token in range(n):
        out[token] = scale * weights[token] * (meetings[token] - squared_norm)


@njit(fastmath=REORDER)
def _project(vector: Any, z: Any, shifts: Any, out: Any) -> None:
    """Write the tokens' inner products with a vector in frame coordinates."""
    rows, n = z.shape
    first, second = vector[0], vector[1]
    third = vector[2] if rows > 2 else 0.0
    if rows > 2:
        for token in range(n):
            out[token] = first * z[0, token] + second * z[1, token]
            out[token] += third * z[2, token]
    else:
        for token in range(n):
            out[token] = first * z[0, token] + second * z[1, token]
    for token in range(shifts.shape[0]):
        out[token] += first * shifts[token]


@njit()
def _shift_of(weights: Any, shifts: Any) -> float:
    total = 0.0
    for token in range(shifts.shape[0]):
        total += weights[token] * shifts[token]
    return total


@njit()
def _add_isotropic(
    rng: np.random.Generator, dof: float, length: float, out: Any
) -> None:
    r"""Add a vector of this length and uniform direction in :math:`\mathbb R^{dof}`.

    ``out`` holds a vector's coordinates along orthonormal directions of that space.
    All but the last have a meaning; the last is turned into the plane of itself and
    of what the new vector has outside the others, so that it takes all of that.
    """
    size = out.shape[0]
    along = np.empty(size)
    squared = 0.0
    # A uniform direction is a Gaussian vector over its length; the chi draw is the
    # length on all directions that have no coordinate here.
    for axis in range(size):
        along[axis] = rng.standard_normal() if dof - axis > 0.0 else 0.0
        squared += along[axis] ** 2
    rest = chi(rng, dof - size)
    squared += rest * rest
    scale = length / math.sqrt(squared) if squared > 0.0 else 0.0
    for axis in range(size):
        out[axis] += scale * along[axis]
    out[size - 1] = math.hypot(out[size - 1], scale * rest)


@njit()
def signal_exact_block(
    rng: np.random.Generator,
    state: Any,
    step_sizes: Any,
    problem: SignalProblem,
    first: int,
    record_every: int,
    records: Any,
) -> int:
    r"""Advance one run by a block of updates, in frame coordinates.

    ``state`` holds q along u, its own residual, and (without an average) one
    direction that a step creates and removes again: (1, 3). With an average, its
    second row, there is one more direction, the average's residual: (2, 4).

    Returns
    -------
    broken
        Index of the update that overflowed, or -1.
    """
    d, n_informative, n_nuisance, _, _, inverse_temperature, batch_size = problem
    n = n_informative + n_nuisance
    size = state.shape[1]
    z, spent = np.empty((3, n)), np.empty((1, n))
    shifts, meetings = np.empty(n_informative), np.empty(n)
    weights, ascent = np.empty((1, n)), np.empty((1, n))
    output, part = np.empty((1, 3)), np.empty((1, 4))
    gradient = np.empty(size)
    for index in range(len(step_sizes)):
        gradient[:] = 0.0
        for _ in range(batch_size):
            draw_shifts(rng, problem, shifts)
            # Attention reads the tokens along u and the residual of q alone.
            reveal(rng, spent[:0], z[:2])
            _project(state[0], z[:2], shifts, meetings)
            for token in range(n):
                meetings[token] *= inverse_temperature
            fast_softmax(meetings, weights[0], ascent[0])
            # The output creates a third direction. The ascent needs the products of all
            # tokens with the output, so their coordinates on it are revealed.
            combine(rng, z[:2], weights, spent[:0], d - 2.0, output)
            reveal_along(rng, weights[0], output[0, 2], spent, z[2])
            output[0, 0] += _shift_of(weights[0], shifts)
            _project(output[0], z, shifts, meetings)
            scale = 2.0 * inverse_temperature / batch_size
            ascent_weights(weights[0], meetings, scale, ascent[0])
            # The second combination: three directions are known, and one unit vector
            # over the tokens (the attention weights) is spent.
            combine(rng, z, ascent, spent, d - 3.0, part)
            gradient[0] += part[0, 0] + _shift_of(ascent[0], shifts)
            gradient[1] += part[0, 1]
            # New directions belong to one prompt. Relative to those of the batch, the
            # part outside u and q points uniformly into d - 2 dimensions.
            outside = math.hypot(part[0, 2], part[0, 3])
            _add_isotropic(rng, d - 2.0, outside, gradient[2:])
        # A negative step size turns descent into ascent.
        if not sphere_step(state[0], gradient, -step_sizes[index]):
            return first + index
        _average(state, first + index + 1)
        reframe(state, 1)
        _record(state, first + index + 1, record_every, records)
    return -1


@njit()
def signal_full_block(
    rng: np.random.Generator,
    state: Any,
    step_sizes: Any,
    problem: SignalProblem,
    first: int,
    record_every: int,
    records: Any,
) -> int:
    """Advance one run by a block of updates, drawing every coordinate.

    ``state`` (1 or 2, d) holds q and, if asked for, the average; u is the first basis
    vector. Returns as :func:`signal_exact_block` does.
    """
    _, n_informative, n_nuisance, _, _, _, batch_size = problem
    n, d = n_informative + n_nuisance, state.shape[1]
    tokens, gradient = np.empty((n, d)), np.empty(d)
    shifts, scratch = np.empty(n_informative), np.empty((3, n))
    output = np.empty(d)
    scale = 2.0 * problem.inverse_temperature / batch_size
    for index in range(len(step_sizes)):
        gradient[:] = 0.0
        for _ in range(batch_size):
            draw_shifts(rng, problem, shifts)
            for token in range(n):
                for axis in range(d):
                    tokens[token, axis] = rng.standard_normal()
            for token in range(n_informative):
                tokens[token, 0] += shifts[token]
            add_signal_gradient(
                tokens,
                state[0],
                problem.inverse_temperature,
                scale,
                scratch,
                output,
                gradient,
            )
        if not sphere_step(state[0], gradient, -step_sizes[index]):
            return first + index
        _average(state, first + index + 1)
        _record(state, first + index + 1, record_every, records)
    return -1


@njit(fastmath=REORDER)
def add_signal_gradient(
    tokens: Any,
    query: Any,
    inverse_temperature: float,
    scale: float,
    scratch: Any,
    output: Any,
    gradient: Any,
) -> None:
    r"""Add scale :math:`\sum_i p_i (x_i \cdot o - \lVert o \rVert^2) x_i`.

    ``tokens`` (n, d); ``scratch`` (3, n) and ``output`` (d,) are overwritten.
    """
    n, d = tokens.shape
    for token in range(n):
        product = 0.0
        for axis in range(d):
            product += tokens[token, axis] * query[axis]
        scratch[0, token] = inverse_temperature * product
    fast_softmax(scratch[0], scratch[1], scratch[2])
    output[:] = 0.0
    for token in range(n):
        weight = scratch[1, token]
        for axis in range(d):
            output[axis] += weight * tokens[token, axis]
    for token in range(n):
        product = 0.0
        for axis in range(d):
            product += tokens[token, axis] * output[axis]
        scratch[0, token] = product
    ascent_weights(scratch[1], scratch[0], scale, scratch[2])
    for token in range(n):
        weight = scratch[2, token]
        for axis in range(d):
            gradient[axis] += weight * tokens[token, axis]


@njit()
def _average(state: Any, step: int) -> None:
    """Move the average, if there is one, towards the new query."""
    if state.shape[0] < 2:
        return
    share = (_AVERAGE_POWER + 1.0) / (_AVERAGE_POWER + step)
    for axis in range(state.shape[1]):
        state[1, axis] += share * (state[0, axis] - state[1, axis])


@njit()
def _record(state: Any, step: int, record_every: int, records: Any) -> None:
    """Write the alignments of the query and the average, if this step is recorded."""
    if step % record_every != 0:
        return
    row = step // record_every
    records[row, 0] = state[0, 0]
    if state.shape[0] > 1:
        squared = 0.0
        for axis in range(state.shape[1]):
            squared += state[1, axis] ** 2
        records[row, 1] = state[1, 0] / math.sqrt(squared) if squared > 0.0 else 0.0
