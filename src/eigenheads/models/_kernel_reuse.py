"""Template: updates that use each batch several times (losses of class A)."""

from typing import Any

import numpy as np

from eigenheads._compile import njit
from eigenheads.dynamics._engine import combine, reframe, reveal_along
from eigenheads.models._declared import (
    N_AXES,
    N_LATENTS,
    N_PLANTED,
    N_TOKENS,
    N_WEIGHTS,
    USES_OVERLAPS,
    WORK_SIZE,
    _draw_tokens,
    _fixed_law,
    _loss_gradient,
)
from eigenheads.models._kernel_parts import (
    _add_overlap_gradient,
    _add_products_wide,
    _add_row,
    _clear,
    _project_wide,
    _scale_row,
    _write_overlaps,
)
from eigenheads.models._kernel_steps import _record, _update

# --- template ---------------------------------------------------------------------


@njit()
def reuse_block(
    rng: np.random.Generator,
    state: Any,
    rules: Any,
    parameters: Any,
    problem: Any,
    reuse: int,
    first: int,
    record_every: int,
    records: Any,
) -> int:
    """Advance one run by a block of updates, `reuse` of them per batch.

    As :func:`exact_block`, but the tokens stay: their coordinates along the frame are
    kept, each update adds N_WEIGHTS axes to it, and the frame is turned back only when
    the batch is discarded. ``state`` has room for all these axes.
    """
    d, batch_size, law, constants, is_tangent, has_velocity, has_average, pairs = (
        problem
    )
    n_start, n_columns = N_PLANTED + state.shape[0], state.shape[1]
    n = batch_size * N_TOKENS
    mean, scale = np.zeros((N_PLANTED, N_TOKENS)), np.ones((batch_size, N_TOKENS))
    latents, work = np.zeros((batch_size, N_LATENTS)), np.empty(WORK_SIZE)
    drawn = np.empty((n_start, N_TOKENS))
    tokens = np.zeros((batch_size, n_columns, N_TOKENS))
    fields, slopes = (
        np.empty((N_WEIGHTS, N_TOKENS)),
        np.empty((batch_size, N_WEIGHTS, N_TOKENS)),
    )
    overlaps, overlap_slopes = (
        np.zeros((N_WEIGHTS, N_AXES)),
        np.zeros((N_WEIGHTS, N_AXES)),
    )
    gradient = np.zeros((N_WEIGHTS, n_columns))
    spent = np.zeros((reuse * N_WEIGHTS, n))
    n_axes, n_spent = n_start, 0
    for sample in range(batch_size):
        _fixed_law(law, mean, scale[sample])
    for index in range(rules.shape[0]):
        # A fresh batch is independent of all weights, so its frame is that of the
        # planted directions and the rows. Until it is discarded, each update adds one
        # axis per weight, and the coordinates of all tokens on these axes are kept.
        if (first + index) % reuse == 0:
            n_axes, n_spent = n_start, 0
            for sample in range(batch_size):
                _clear(tokens[sample])
                _draw_tokens(rng, d, law, mean, scale[sample], latents[sample], drawn)
                for axis in range(n_start):
                    _add_row(1.0, drawn[axis], tokens[sample, axis])
        _clear(gradient)
        if USES_OVERLAPS:
            _write_overlaps(state, overlaps)
        for sample in range(batch_size):
            _project_wide(state, tokens[sample], fields)
            _loss_gradient(
                fields,
                tokens[sample],
                latents[sample],
                parameters[index],
                constants,
                overlaps,
                work,
                slopes[sample],
                overlap_slopes,
            )
            if USES_OVERLAPS:
                _add_overlap_gradient(state, overlap_slopes, gradient)
        # Weights are revealed one after the other. Each takes one dimension from the
        # degrees of freedom, and one unit vector over the tokens from what is free in
        # later coordinates.
        for a in range(N_WEIGHTS):
            _reveal_weight(
                rng, d - n_axes, a, slopes, scale, spent[: n_spent + 1], tokens, n_axes
            )
            n_axes += 1
            n_spent += 1
        # All axes that the gradients reach have coordinates now: a plain sum over
        # tokens gives the gradients inside the frame and on the new axes.
        for sample in range(batch_size):
            _add_products_wide(slopes[sample], tokens[sample], gradient)
        for a in range(N_WEIGHTS):
            _scale_row(1.0 / batch_size, gradient[a])
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
        if (first + index + 1) % reuse == 0:
            reframe(state, N_PLANTED)
        _record(state, pairs, first + index + 1, record_every, records)
    return -1


@njit()
def _reveal_weight(
    rng: np.random.Generator,
    dof: float,
    a: int,
    slopes: Any,
    scale: Any,
    spent: Any,
    tokens: Any,
    axis: int,
) -> None:
    """Draw the axis that the gradient of weight a adds, and the tokens' part on it."""
    batch_size = scale.shape[0]
    n = batch_size * N_TOKENS
    weights, along, length = np.empty((1, n)), np.empty(n), np.empty((1, 1))
    for sample in range(batch_size):
        for i in range(N_TOKENS):
            place = sample * N_TOKENS + i
            weights[0, place] = slopes[sample, a, i] * scale[sample, i]
    # Only the length outside the frame is drawn here, so combine gets no coordinates of
    # the frame.
    combine(rng, np.empty((0, n)), weights, spent[:-1], dof, length)
    reveal_along(rng, weights[0], length[0, 0], spent, along)
    for sample in range(batch_size):
        for i in range(N_TOKENS):
            value = along[sample * N_TOKENS + i] * scale[sample, i]
            tokens[sample, axis, i] = value if dof > 0.0 else 0.0
