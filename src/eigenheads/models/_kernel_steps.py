"""Template: updates of a run, and one-sample moments of the gradient."""

import math
from typing import Any

import numpy as np

from eigenheads._compile import njit
from eigenheads.dynamics._engine import REORDER, reframe
from eigenheads.models._declared import (
    N_AXES,
    N_LATENTS,
    N_PLANTED,
    N_TOKENS,
    N_WEIGHTS,
    ON_SPHERE,
    USES_OVERLAPS,
    WORK_SIZE,
    _fixed_law,
)
from eigenheads.models._kernel_fields import (
    _add_outside,
    _add_outside_moment,
    _new_outputs,
    _new_outside,
    _sample,
    _write_outside,
)
from eigenheads.models._kernel_parts import _clear, _write_overlaps

# --- template ---------------------------------------------------------------------


@njit()
def exact_block(
    rng: np.random.Generator,
    state: Any,
    rules: Any,
    parameters: Any,
    problem: Any,
    first: int,
    record_every: int,
    records: Any,
) -> int:
    """Advance one run by a block of updates; return where it overflowed, or -1.

    ``state`` has one row per weight, then per velocity and average, and columns for
    the planted directions, one residual axis per row, and N_WEIGHTS axes that an
    update creates and removes again. ``rules`` has rows of step size, weight decay,
    momentum and the average's rate.
    """
    d, batch_size, law, constants, is_tangent, has_velocity, has_average, pairs = (
        problem
    )
    # No field reads velocities and averages. So tokens are not drawn along their
    # residual axes; only the gradients are.
    n_extra = state.shape[0] - N_WEIGHTS
    dof, share = d - N_AXES, 1.0 / batch_size
    mean, scale = np.zeros((N_PLANTED, N_TOKENS)), np.ones(N_TOKENS)
    _fixed_law(law, mean, scale)
    latents, work = np.zeros(N_LATENTS), np.empty(WORK_SIZE)
    fields, slopes = np.empty((N_WEIGHTS, N_TOKENS)), np.empty((N_WEIGHTS, N_TOKENS))
    overlaps, overlap_slopes = (
        np.zeros((N_WEIGHTS, N_AXES)),
        np.zeros((N_WEIGHTS, N_AXES)),
    )
    outputs = _new_outputs(N_AXES)
    tokens = outputs[0]
    gradient = np.zeros((N_WEIGHTS, state.shape[1]))
    outside = _new_outside(n_extra)
    # Why the reduced step is exact in law: the loss meets the tokens only inside the
    # frame and, in class B, on the axes of its combinations; given that, the Gram
    # matrix of the gradients outside has a known law, which the chi draws follow; and
    # the update commutes with rotations that fix the frame. So the overlaps are a
    # Markov chain, and this is its transition.
    for index in range(rules.shape[0]):
        _clear(gradient)
        _clear(outside)
        if USES_OVERLAPS:
            _write_overlaps(state, overlaps)
        values = parameters[index]
        for _ in range(batch_size):
            _sample(
                rng,
                d,
                state,
                law,
                constants,
                values,
                mean,
                scale,
                latents,
                fields,
                slopes,
                work,
                overlaps,
                overlap_slopes,
                tokens,
                outputs,
                gradient,
            )
            _add_outside(rng, dof, n_extra, slopes, outputs, outside)
        _write_outside(rng, dof, n_extra, outside, gradient)
        for a in range(N_WEIGHTS):
            for axis in range(gradient.shape[1]):
                gradient[a, axis] *= share
        if not _update(
            state,
            gradient,
            rules[index, 0],
            rules[index, 1],
            rules[index, 2],
            rules[index, 3],
            is_tangent,
            has_velocity,
            has_average,
        ):
            return first + index
        # The update left the frame along N_WEIGHTS new axes. A rotation that fixes the
        # planted directions brings the rows back, and changes no overlap.
        reframe(state, N_PLANTED)
        _record(state, pairs, first + index + 1, record_every, records)
    return -1


@njit(fastmath=REORDER)
def _update(
    state: Any,
    gradient: Any,
    step_size: float,
    decay: float,
    momentum: float,
    rate: float,
    is_tangent: bool,
    has_velocity: bool,
    has_average: bool,
) -> bool:
    """Move weights, velocities and averages; return False after an overflow."""
    size, finite = state.shape[1], True
    for a in range(N_WEIGHTS):
        vector, slope = state[a], gradient[a]
        if decay != 0.0:
            for axis in range(size):
                slope[axis] += decay * vector[axis]
        if ON_SPHERE[a] and is_tangent:
            radial = 0.0
            for axis in range(size):
                radial += vector[axis] * slope[axis]
            for axis in range(size):
                slope[axis] -= radial * vector[axis]
        if has_velocity:
            velocity = state[N_WEIGHTS + a]
            for axis in range(size):
                velocity[axis] = momentum * velocity[axis] + slope[axis]
                slope[axis] = velocity[axis]
        squared = 0.0
        for axis in range(size):
            vector[axis] -= step_size * slope[axis]
            squared += vector[axis] * vector[axis]
        if ON_SPHERE[a]:
            # NaN, infinity and zero all give the inverse 0, which counts as an
            # overflow.
            inverse = 1.0 / math.sqrt(squared) if squared > 0.0 else 0.0
            for axis in range(size):
                vector[axis] *= inverse
            finite &= inverse > 0.0
        else:
            finite &= squared < math.inf
    if has_average:
        start = state.shape[0] - N_WEIGHTS
        for a in range(N_WEIGHTS):
            for axis in range(size):
                state[start + a, axis] += rate * (
                    state[a, axis] - state[start + a, axis]
                )
    return finite


@njit()
def _record(state: Any, pairs: Any, step: int, record_every: int, records: Any) -> None:
    """Write the overlaps of pairs of rows; planted direction j is -1 - j."""
    if step % record_every != 0:
        return
    row = step // record_every
    for curve in range(pairs.shape[0]):
        a, b = pairs[curve, 0], pairs[curve, 1]
        if b < 0:
            records[row, curve] = state[a, -1 - b]
            continue
        total = 0.0
        for axis in range(state.shape[1]):
            total += state[a, axis] * state[b, axis]
        records[row, curve] = total


@njit()
def gradient_moments(
    rng: np.random.Generator,
    state: Any,
    parameters: Any,
    d: float,
    law: Any,
    constants: Any,
    n_samples: int,
    mean: Any,
    second: Any,
    outside: Any,
) -> float:
    """Add one-sample moments of the gradient over fresh samples; return the losses.

    ``state`` (N_WEIGHTS, m) holds the weights on m >= N_AXES axes, the planted ones
    first. A sample's features are its gradient inside the frame (N_WEIGHTS m numbers)
    and the products of the gradients of all pairs of weights, with their conditional
    mean outside the frame. Added are the features (mean), their products (second) and
    the part of the gradients' products outside the frame (outside).
    """
    m = state.shape[1]
    means, scale = np.zeros((N_PLANTED, N_TOKENS)), np.ones(N_TOKENS)
    _fixed_law(law, means, scale)
    latents, work = np.zeros(N_LATENTS), np.empty(WORK_SIZE)
    fields, slopes = np.empty((N_WEIGHTS, N_TOKENS)), np.empty((N_WEIGHTS, N_TOKENS))
    overlaps, overlap_slopes = (
        np.zeros((N_WEIGHTS, N_AXES)),
        np.zeros((N_WEIGHTS, N_AXES)),
    )
    outputs = _new_outputs(m)
    tokens = outputs[0]
    if USES_OVERLAPS:
        _write_overlaps(state, overlaps)
    size = N_WEIGHTS * m
    features = np.empty(size + N_WEIGHTS * N_WEIGHTS)
    gradient = features[:size].reshape((N_WEIGHTS, m))
    products = features[size:].reshape((N_WEIGHTS, N_WEIGHTS))
    total = 0.0
    for _ in range(n_samples):
        _clear(gradient)
        _clear(products)
        total += _sample(
            rng,
            d,
            state,
            law,
            constants,
            parameters,
            means,
            scale,
            latents,
            fields,
            slopes,
            work,
            overlaps,
            overlap_slopes,
            tokens,
            outputs,
            gradient,
        )
        # Products outside the frame are not drawn: their mean given the weights takes
        # their place, with the same expectation and a smaller variance.
        _add_outside_moment(d - m, slopes, outputs, products)
        for a in range(N_WEIGHTS):
            for b in range(N_WEIGHTS):
                outside[a, b] += products[a, b]
                for axis in range(m):
                    products[a, b] += gradient[a, axis] * gradient[b, axis]
        for one in range(features.shape[0]):
            mean[one] += features[one]
            for other in range(one + 1):
                second[one, other] += features[one] * features[other]
    return total
