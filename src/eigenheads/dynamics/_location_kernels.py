"""Online SGD of single-location regression on real vectors, every coordinate drawn."""

import math
from typing import Any, NamedTuple

import numpy as np

from eigenheads._compile import njit
from eigenheads.models._engine import REORDER, sphere_step

_ERF_SLOPE = 2.0 / math.sqrt(math.pi)


class LocationProblem(NamedTuple):
    """Constants of a run."""

    d: float
    n_tokens: int
    gamma: float
    noise: float
    batch_size: int


@njit(fastmath=REORDER)
def gradient_weights(
    on_key: Any,
    on_value: Any,
    target: float,
    inverse_temperature: float,
    share: float,
    key_weights: Any,
    value_weights: Any,
) -> None:
    r"""Write the weights of a prompt's tokens in the two gradients.

    The gradients of ``share`` times :math:`(T - y)^2`, with
    :math:`T = \sum_l \mathrm{erf}(\lambda X_l \cdot k)(X_l \cdot v)`, are sums
    :math:`\sum_l a_l X_l` (for k) and :math:`\sum_l c_l X_l` (for v):

    .. math::

        a_l = 2 (T - y) \lambda\, \mathrm{erf}'(\lambda X_l \cdot k)(X_l \cdot v),
        \qquad c_l = 2 (T - y)\, \mathrm{erf}(\lambda X_l \cdot k)
    """
    n_tokens = on_key.shape[0]
    error = -target
    for token in range(n_tokens):
        argument = inverse_temperature * on_key[token]
        attention = math.erf(argument)
        value_weights[token] = attention
        # The slope of erf up to a constant, which is part of for_key.
        key_weights[token] = math.exp(-argument * argument) * on_value[token]
        error += attention * on_value[token]
    for_value = 2.0 * share * error
    for_key = for_value * inverse_temperature * _ERF_SLOPE
    for token in range(n_tokens):
        value_weights[token] *= for_value
        key_weights[token] *= for_key


@njit()
def location_full_block(
    rng: np.random.Generator,
    state: Any,
    inverse_temperatures: Any,
    step_sizes: Any,
    problem: LocationProblem,
    first: int,
    record_every: int,
    records: Any,
) -> int:
    """Advance one run by a block of updates, drawing every coordinate.

    ``state`` (2, d) holds k and v; k* and v* are the first two basis vectors.

    Returns
    -------
    broken
        Index of the update that overflowed, or -1.
    """
    _, n_tokens, gamma, noise, batch_size = problem
    d = state.shape[1]
    shift, share = math.sqrt(0.5 * d), 1.0 / batch_size
    tokens, gradient = np.empty((n_tokens, d)), np.empty((2, d))
    scratch = np.empty((4, n_tokens))
    for index in range(len(step_sizes)):
        gradient[:] = 0.0
        for _ in range(batch_size):
            decides = rng.integers(0, n_tokens)
            for token in range(n_tokens):
                for axis in range(d):
                    tokens[token, axis] = rng.standard_normal()
            for axis in range(d):
                tokens[decides, axis] *= gamma
            tokens[decides, 0] += shift
            target = tokens[decides, 1] + noise * rng.standard_normal()
            add_location_gradient(
                tokens,
                target,
                state,
                inverse_temperatures[index],
                share,
                scratch,
                gradient,
            )
        finite = sphere_step(state[0], gradient[0], step_sizes[index])
        finite &= sphere_step(state[1], gradient[1], step_sizes[index])
        if not finite:
            return first + index
        record_state(state, first + index + 1, record_every, records)
    return -1


@njit(fastmath=REORDER)
def add_location_gradient(
    tokens: Any,
    target: float,
    state: Any,
    inverse_temperature: float,
    share: float,
    scratch: Any,
    gradient: Any,
) -> None:
    """Add the gradient of ``share`` times one prompt's squared error.

    ``tokens`` (n_tokens, d), ``state`` and ``gradient`` (2, d): k and v;
    ``scratch`` (4, n_tokens) is overwritten.
    """
    n_tokens, d = tokens.shape
    for token in range(n_tokens):
        on_key, on_value = 0.0, 0.0
        for axis in range(d):
            on_key += tokens[token, axis] * state[0, axis]
            on_value += tokens[token, axis] * state[1, axis]
        scratch[0, token] = on_key
        scratch[1, token] = on_value
    gradient_weights(
        scratch[0],
        scratch[1],
        target,
        inverse_temperature,
        share,
        scratch[2],
        scratch[3],
    )
    for token in range(n_tokens):
        for_key, for_value = scratch[2, token], scratch[3, token]
        for axis in range(d):
            gradient[0, axis] += for_key * tokens[token, axis]
            gradient[1, axis] += for_value * tokens[token, axis]


@njit()
def record_state(state: Any, step: int, record_every: int, records: Any) -> None:
    """Write kappa, nu, theta, eta, rho if this step is to be recorded."""
    if step % record_every != 0:
        return
    row = step // record_every
    rho = 0.0
    for axis in range(state.shape[1]):
        rho += state[0, axis] * state[1, axis]
    records[row, 0] = state[0, 0]
    records[row, 1] = state[1, 1]
    records[row, 2] = state[1, 0]
    records[row, 3] = state[0, 1]
    records[row, 4] = rho
