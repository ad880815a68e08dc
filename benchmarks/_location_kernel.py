"""The yardstick of the engine: exact updates of single-location regression, by hand.

Written for this one model before models could be declared, and not used elsewhere.
"""

import math
from typing import Any

import numpy as np

from eigenheads._compile import njit
from eigenheads.models._engine import (
    REORDER,
    combine,
    reframe,
    reveal,
    sphere_step,
)
from eigenheads.models._location import (
    LocationProblem,
    gradient_weights,
    record_state,
)


@njit()
def location_exact_block(
    rng: np.random.Generator,
    state: Any,
    inverse_temperatures: Any,
    step_sizes: Any,
    problem: LocationProblem,
    first: int,
    record_every: int,
    records: Any,
) -> int:
    r"""Advance one run by a block of updates, in frame coordinates.

    ``state`` (2, 6) holds k and v along k*, v*, the residual of k, the residual of v,
    and two directions that a step creates and removes again. The deciding token
    stands first in its prompt: the sums over tokens do not see the order.

    Returns
    -------
    broken
        Index of the update that overflowed, or -1.
    """
    d, n_tokens, gamma, noise, batch_size = problem
    n = batch_size * n_tokens
    shift, share = math.sqrt(0.5 * d), 1.0 / batch_size
    z, weights = np.empty((4, n)), np.empty((2, n))
    on_key, on_value = np.empty(n), np.empty(n)
    gradient, spent = np.empty((2, 6)), np.empty((0, n))
    for index in range(len(step_sizes)):
        # The loss meets the tokens only along k*, v* and the residuals of k and v.
        reveal(rng, spent, z)
        _project(state[0], z, on_key)
        _project(state[1], z, on_value)
        key_shift, value_shift = 0.0, 0.0
        for start in range(0, n, n_tokens):
            stop = start + n_tokens
            on_key[start] = gamma * on_key[start] + shift * state[0, 0]
            on_value[start] = gamma * on_value[start] + shift * state[1, 0]
            target = gamma * z[1, start] + noise * rng.standard_normal()
            gradient_weights(
                on_key[start:stop],
                on_value[start:stop],
                target,
                inverse_temperatures[index],
                share,
                weights[0, start:stop],
                weights[1, start:stop],
            )
            # The deciding token is gamma z plus a known vector along k*: the vector is
            # added to the gradients apart, and the weight of z has the factor gamma.
            key_shift += shift * weights[0, start]
            value_shift += shift * weights[1, start]
            weights[0, start] *= gamma
            weights[1, start] *= gamma
        # Four directions are known, so that d - 4 degrees of freedom are left.
        combine(rng, z, weights, spent, d - 4.0, gradient)
        gradient[0, 0] += key_shift
        gradient[1, 0] += value_shift
        finite = sphere_step(state[0], gradient[0], step_sizes[index])
        finite &= sphere_step(state[1], gradient[1], step_sizes[index])
        if not finite:
            return first + index
        reframe(state, 2)
        record_state(state, first + index + 1, record_every, records)
    return -1


@njit(fastmath=REORDER)
def _project(vector: Any, z: Any, out: Any) -> None:
    """Write the tokens' inner products with a vector of four frame coordinates."""
    for token in range(out.shape[0]):
        total = 0.0
        for axis in range(4):
            total += vector[axis] * z[axis, token]
        out[token] = total
