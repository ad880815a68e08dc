"""Gradient ascent of signal recovery on real vectors, every coordinate drawn."""

import math
from typing import Any, NamedTuple

import numpy as np

from eigenheads._compile import njit
from eigenheads.models._engine import REORDER, sphere_step
from eigenheads.models._softmax import fast_softmax

# The average's weights grow like t³ (see simulate_signal).
_AVERAGE_POWER = 3.0


def average_rate(index: int) -> float:
    """Return how far update `index` moves the average towards the query."""
    return (_AVERAGE_POWER + 1.0) / (_AVERAGE_POWER + index + 1.0)


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
    vector.

    Returns
    -------
    broken
        Index of the update that overflowed, or -1.
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
