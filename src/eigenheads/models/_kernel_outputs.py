r"""Template: one sample of a loss with products of token combinations (class B).

The combinations :math:`o_k = \sum_i P_{ki} x_i` have known coordinates inside the
frame. Their parts outside are drawn on K new axes, and then the tokens' own coordinates
on these axes, given what the combinations have fixed of them. So all products
:math:`o_k \cdot o_l` and :math:`x_i \cdot o_k` are known, and the gradient follows.
"""

from typing import Any

import numpy as np

from eigenheads._compile import njit
from eigenheads.dynamics._engine import REORDER, _cholesky, _times_bartlett, reframe
from eigenheads.models._declared import (
    N_AXES,
    N_COMBINATIONS,
    N_TOKENS,
    N_WEIGHTS,
    USES_OVERLAPS,
    _add_gradient,
    _add_outputs,
    _combination_weights,
    _draw_tokens,
    _loss_gradient,
    _project,
    _times_scale,
    _write_meetings,
)
from eigenheads.models._kernel_parts import (
    _add_overlap_gradient,
    _add_products_wide,
    _add_row,
    _clear,
    _project_wide,
    _scale_row,
    _write_gram,
)

# --- template ---------------------------------------------------------------------


@njit()
def _new_outside(n_extra: int) -> Any:
    """Return the sum over a batch that :func:`_add_outside` fills."""
    return np.zeros((N_WEIGHTS, n_extra + N_WEIGHTS))


@njit()
def _new_outputs(n_axes: int) -> Any:
    """Return arrays for the combinations of tokens.

    Tokens with their coordinates on the new axes; weights, unit vectors and products
    with tokens; two square matrices; coordinates; gradient on the new axes and on all.
    """
    return (
        np.empty((n_axes + N_COMBINATIONS, N_TOKENS)),
        np.empty((3, N_COMBINATIONS, N_TOKENS)),
        np.empty((2, N_COMBINATIONS, N_COMBINATIONS)),
        np.empty((N_COMBINATIONS, n_axes + N_COMBINATIONS)),
        np.empty((N_WEIGHTS, N_COMBINATIONS)),
        np.empty((N_WEIGHTS, n_axes + N_COMBINATIONS)),
    )


@njit(fastmath=REORDER, forceinline=True)
def _sample(
    rng: np.random.Generator,
    d: float,
    state: Any,
    law: Any,
    constants: Any,
    parameters: Any,
    mean: Any,
    scale: Any,
    latents: Any,
    fields: Any,
    slopes: Any,
    work: Any,
    overlaps: Any,
    overlap_slopes: Any,
    tokens: Any,
    outputs: Any,
    gradient: Any,
) -> float:
    """Draw a sample, add its gradient inside the frame, and return its loss.

    Leaves the gradient on the axes of the combinations in ``revealed``, and in
    ``slopes`` the tokens' weights outside what the combinations have fixed.
    """
    _, rows, squares, coordinates, revealed, added = outputs
    combinations, units, meetings = rows[0], rows[1], rows[2]
    n_axes = tokens.shape[0] - N_COMBINATIONS
    inside = tokens[:n_axes]
    _draw_tokens(rng, d, law, mean, scale, latents, inside)
    if n_axes == N_AXES:
        _project(state, inside, fields)
    else:
        _project_wide(state, inside, fields)
    # First round: the weights of the combinations need fields and latents, and no
    # products. Given them, the coordinates on K new axes are drawn, and with these all
    # products are known.
    _combination_weights(
        fields, tokens, latents, parameters, constants, overlaps, work, combinations
    )
    _reveal_combinations(rng, d - n_axes, scale, combinations, units, squares, tokens)
    _clear(coordinates)
    if n_axes == N_AXES:
        _add_outputs(combinations, tokens, coordinates)
        _write_meetings(coordinates, tokens, meetings)
    else:
        _write_outputs_wide(combinations, tokens, coordinates, meetings)
    _write_gram(coordinates, squares[1])
    # Second round: the gradient, from fields, products and meetings.
    value = _loss_gradient(
        fields,
        tokens,
        latents,
        parameters,
        constants,
        overlaps,
        work,
        slopes,
        overlap_slopes,
        combinations,
        meetings,
        squares[1],
    )
    _clear(added)
    if n_axes == N_AXES:
        _add_gradient(slopes, tokens, added)
    else:
        _add_products_wide(slopes, tokens, added)
    for a in range(N_WEIGHTS):
        for axis in range(n_axes):
            gradient[a, axis] += added[a, axis]
        for k in range(N_COMBINATIONS):
            revealed[a, k] = added[a, n_axes + k]
    if USES_OVERLAPS:
        _add_overlap_gradient(state, overlap_slopes, gradient)
    _times_scale(scale, slopes)
    # Beyond the new axes the combinations have no part, so the weights of the gradients
    # count there only off the units of the combinations.
    _project_off_units(units, slopes)
    return value


@njit(fastmath=REORDER)
def _reveal_combinations(
    rng: np.random.Generator,
    dof: float,
    scale: Any,
    combinations: Any,
    units: Any,
    squares: Any,
    tokens: Any,
) -> None:
    r"""Draw the tokens' coordinates on the axes that the combinations create.

    With :math:`\hat U` an orthonormal basis of the rows :math:`P_k s` and Bartlett's
    factor A, these coordinates are :math:`A^\top \hat U + g (I - \hat U^\top \hat U)`,
    times the tokens' scales.
    """
    n_axes = tokens.shape[0] - N_COMBINATIONS
    factor, bartlett = squares[0], squares[1]
    for k in range(N_COMBINATIONS):
        for i in range(N_TOKENS):
            units[k, i] = combinations[k, i]
    _times_scale(scale, units)
    _write_gram(units, factor)
    _cholesky(factor)
    for k in range(N_COMBINATIONS):
        for b in range(k):
            for i in range(N_TOKENS):
                units[k, i] -= factor[k, b] * units[b, i]
        # A zero pivot: the combination lies in the span of those before it.
        inverse = 1.0 / factor[k, k] if factor[k, k] > 0.0 else 0.0
        for i in range(N_TOKENS):
            units[k, i] *= inverse
    for k in range(N_COMBINATIONS):
        for b in range(N_COMBINATIONS):
            bartlett[k, b] = 1.0 if k == b else 0.0
    _times_bartlett(rng, dof, bartlett)
    for k in range(N_COMBINATIONS):
        for i in range(N_TOKENS):
            tokens[n_axes + k, i] = rng.standard_normal()
        if dof - k <= 0.0:
            for i in range(N_TOKENS):
                tokens[n_axes + k, i] = 0.0
        # Replace the products of a fresh column with the units by the entries of
        # Bartlett: the combinations have fixed these, and nothing else.
        for b in range(N_COMBINATIONS):
            product = 0.0
            for i in range(N_TOKENS):
                product += units[b, i] * tokens[n_axes + k, i]
            missing = bartlett[b, k] - product
            for i in range(N_TOKENS):
                tokens[n_axes + k, i] += missing * units[b, i]
    _times_scale(scale, tokens[n_axes:])


@njit(fastmath=REORDER)
def _write_outputs_wide(
    combinations: Any, tokens: Any, coordinates: Any, meetings: Any
) -> None:
    """Write coordinates of the combinations and their products with all tokens."""
    for k in range(N_COMBINATIONS):
        for i in range(N_TOKENS):
            meetings[k, i] = 0.0
        for axis in range(tokens.shape[0]):
            total = 0.0
            for i in range(N_TOKENS):
                total += combinations[k, i] * tokens[axis, i]
            coordinates[k, axis] = total
            for i in range(N_TOKENS):
                meetings[k, i] += total * tokens[axis, i]


@njit(fastmath=REORDER)
def _project_off_units(units: Any, slopes: Any) -> None:
    for a in range(N_WEIGHTS):
        for k in range(N_COMBINATIONS):
            product = 0.0
            for i in range(N_TOKENS):
                product += slopes[a, i] * units[k, i]
            for i in range(N_TOKENS):
                slopes[a, i] -= product * units[k, i]


@njit()
def _add_outside(
    rng: np.random.Generator,
    dof: float,
    n_extra: int,
    slopes: Any,
    outputs: Any,
    outside: Any,
) -> None:
    r"""Add the sample's gradient outside the frame, on axes of the batch.

    Each sample has new axes of its own; relative to those of the batch, they are
    turned by a uniform rotation of :math:`\mathbb R^{dof}`. So the rows become R Q,
    with RRᵀ their Gram matrix and Q uniform orthonormal rows, in coordinates on the
    auxiliary axes, on the batch's axes, and on new ones; the last two are then turned
    into N_WEIGHTS axes again.
    """
    # The gradient of the sample outside the frame: known on the K new axes, and drawn
    # on the others, which have K fewer degrees of freedom.
    revealed = outputs[4]
    factor = np.empty((N_WEIGHTS, N_COMBINATIONS + N_WEIGHTS))
    for a in range(N_WEIGHTS):
        for k in range(N_COMBINATIONS):
            factor[a, k] = revealed[a, k]
    rest = factor[:, N_COMBINATIONS:]
    _write_gram(slopes, rest)
    _cholesky(rest)
    _times_bartlett(rng, dof - N_COMBINATIONS, rest)
    gram = np.empty((N_WEIGHTS, N_WEIGHTS))
    _write_gram(factor, gram)
    _cholesky(gram)

    # The rows of a Gaussian matrix span a uniform subspace. Its entries are drawn on
    # the axes that have a meaning; the factor of Bartlett stands for all others.
    size = n_extra + N_WEIGHTS
    wide = np.zeros((N_WEIGHTS, size + N_WEIGHTS))
    for a in range(N_WEIGHTS):
        for axis in range(size):
            wide[a, axis] = rng.standard_normal() if dof - axis > 0.0 else 0.0
        wide[a, size + a] = 1.0
    _times_bartlett(rng, dof - size, wide[:, size:])
    lengths = np.empty((N_WEIGHTS, N_WEIGHTS))
    _write_gram(wide, lengths)
    _cholesky(lengths)
    for a in range(N_WEIGHTS):
        for b in range(a):
            _add_row(-lengths[a, b], wide[b], wide[a])
        _scale_row(1.0 / lengths[a, a] if lengths[a, a] > 0.0 else 0.0, wide[a])
    # From the last row upwards: row a of the product with a lower factor needs the
    # orthonormal rows before it as they were.
    for a in range(N_WEIGHTS - 1, -1, -1):
        _scale_row(gram[a, a], wide[a])
        for b in range(a):
            _add_row(gram[a, b], wide[b], wide[a])
        _add_row(1.0, outside[a], wide[a])
    reframe(wide, n_extra)
    for a in range(N_WEIGHTS):
        for axis in range(size):
            outside[a, axis] = wide[a, axis]


@njit()
def _write_outside(
    rng: np.random.Generator, dof: float, n_extra: int, outside: Any, gradient: Any
) -> None:
    """Copy the batch gradient outside the frame."""
    for a in range(N_WEIGHTS):
        for axis in range(n_extra + N_WEIGHTS):
            gradient[a, N_AXES + axis] = outside[a, axis]


@njit(fastmath=REORDER)
def _add_outside_moment(dof: float, slopes: Any, outputs: Any, total: Any) -> None:
    """Add the conditional mean of the gradients' products outside the frame."""
    revealed = outputs[4]
    for a in range(N_WEIGHTS):
        for b in range(N_WEIGHTS):
            product = 0.0
            for i in range(N_TOKENS):
                product += slopes[a, i] * slopes[b, i]
            product *= max(dof - N_COMBINATIONS, 0.0)
            for k in range(N_COMBINATIONS):
                product += revealed[a, k] * revealed[b, k]
            total[a, b] += product
