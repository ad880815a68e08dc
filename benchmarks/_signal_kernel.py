"""The yardstick of the engine: exact updates of signal recovery, by hand.

Written for this one model before models could be declared, and not used elsewhere.
"""

import math
from typing import Any

import numpy as np

from eigenheads._compile import njit
from eigenheads.models._emit import fast_softmax
from eigenheads.models._engine import (
    REORDER,
    combine,
    reframe,
    reveal,
    reveal_along,
    sphere_step,
)
from eigenheads.models._signal import (
    SignalProblem,
    ascent_weights,
    draw_shifts,
)
from eigenheads.models._vectors import chi


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
    All but the last have a meaning; the last is turned so that it takes the rest.
    """
    size = out.shape[0]
    along = np.empty(size)
    squared = 0.0
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
    """Advance one run by a block of updates, in frame coordinates.

    ``state`` (1, 3) holds q along u, its own residual, and one direction that a step
    creates and removes again. Returns the index of the update that overflowed, or -1.
    """
    d, n_informative, n_nuisance, _, _, inverse_temperature, batch_size = problem
    n = n_informative + n_nuisance
    z, spent = np.empty((3, n)), np.empty((1, n))
    shifts, meetings = np.empty(n_informative), np.empty(n)
    weights, ascent = np.empty((1, n)), np.empty((1, n))
    output, part = np.empty((1, 3)), np.empty((1, 4))
    gradient = np.empty(state.shape[1])
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
            outside = math.hypot(part[0, 2], part[0, 3])
            _add_isotropic(rng, d - 2.0, outside, gradient[2:])
        # A negative step size turns descent into ascent.
        if not sphere_step(state[0], gradient, -step_sizes[index]):
            return first + index
        reframe(state, 1)
        if (first + index + 1) % record_every == 0:
            records[(first + index + 1) // record_every, 0] = state[0, 0]
    return -1
