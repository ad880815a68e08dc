"""Compiled parts of an update that do not depend on the loss.

Generated modules call these functions. They take sizes from the shapes of their
arguments, so that one compiled version serves all models.
"""

import math
from typing import Any

import numpy as np

from eigenheads._compile import njit
from eigenheads.models._engine import (
    REORDER,
    combine,
    reveal_along,
)

# These functions are called by compiled code alone.
INSIDE: dict[str, Any] = {
    "fastmath": REORDER,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
}


@njit(**INSIDE)
def drawn_index(rng: np.random.Generator, cumulative: Any) -> int:
    """Draw an index from cumulative probabilities without their last entry, 1."""
    uniform, index = rng.random(), 0
    while index < cumulative.shape[0] and uniform >= cumulative[index]:
        index += 1
    return index


@njit(**INSIDE)
def tilted_index(rng: np.random.Generator, strength: float, scores: Any) -> int:
    """Draw an index with odds exp(strength · score), by Gumbel's maximum."""
    best, index = -math.inf, 0
    for i in range(scores.shape[0]):
        # The negative logarithm of an exponential variable has the law of Gumbel.
        value = strength * scores[i] - math.log(rng.standard_exponential())
        if value > best:
            best, index = value, i
    return index


@njit(**INSIDE)
def write_fields(state: Any, tokens: Any, n_axes: int, fields: Any) -> None:
    """Write the fields of all weights in a frame with any number of axes."""
    # Tokens are the innermost loop, with unit stride, for vector instructions.
    for a in range(fields.shape[0]):
        for i in range(fields.shape[1]):
            fields[a, i] = 0.0
        for axis in range(n_axes):
            coordinate = state[a, axis]
            for i in range(fields.shape[1]):
                fields[a, i] += coordinate * tokens[axis, i]


@njit(**INSIDE)
def add_token_sums(weights: Any, tokens: Any, start: int, stop: int, sums: Any) -> None:
    """Add sums of the tokens with these weights, on axes `start` … ``stop - 1``."""
    for a in range(weights.shape[0]):
        for axis in range(start, stop):
            total = 0.0
            for i in range(weights.shape[1]):
                total += weights[a, i] * tokens[axis, i]
            sums[a, axis - start] += total


@njit(**INSIDE)
def write_overlaps(state: Any, overlaps: Any) -> None:
    """Write the products of weights with planted directions and with each other."""
    n_weights = overlaps.shape[0]
    n_planted = overlaps.shape[1] - n_weights
    for a in range(n_weights):
        for j in range(n_planted):
            overlaps[a, j] = state[a, j]
        for b in range(n_weights):
            total = 0.0
            for axis in range(state.shape[1]):
                total += state[a, axis] * state[b, axis]
            overlaps[a, n_planted + b] = total


@njit(**INSIDE)
def add_overlap_gradient(state: Any, overlap_slopes: Any, gradient: Any) -> None:
    """Add the gradient of a function of the overlaps: w_a · w_b moves both."""
    n_weights = overlap_slopes.shape[0]
    n_planted = overlap_slopes.shape[1] - n_weights
    for a in range(n_weights):
        for j in range(n_planted):
            gradient[a, j] += overlap_slopes[a, j]
        # For b = a both additions meet one row: the derivative of w · w is 2 w.
        for b in range(a + 1):
            slope = overlap_slopes[a, n_planted + b]
            if slope != 0.0:
                for axis in range(min(state.shape[1], gradient.shape[1])):
                    gradient[a, axis] += slope * state[b, axis]
                    gradient[b, axis] += slope * state[a, axis]


@njit(**INSIDE)
def add_auxiliary(
    rng: np.random.Generator, factor: Any, n_axes: int, n_extra: int, gradient: Any
) -> None:
    """Draw the batch gradient on the axes of auxiliary rows: L times normals."""
    n_weights = factor.shape[0]
    for axis in range(n_axes, n_axes + n_extra):
        for b in range(n_weights):
            normal = rng.standard_normal()
            for a in range(b, n_weights):
                gradient[a, axis] += factor[a, b] * normal


@njit(**INSIDE)
def move(  # noqa: C901 -- plain loops
    state: Any,
    gradient: Any,
    rule: Any,
    share: float,
    on_sphere: Any,
    is_tangent: bool,
    has_velocity: bool,
    has_average: bool,
) -> bool:
    """Move weights, velocities and averages; return False after an overflow.

    ``rule`` holds step size, weight decay, momentum and rate of the average; the
    gradient is `share` times the sum over the batch, and is overwritten.
    """
    n_weights, size = gradient.shape
    step_size, decay, momentum, rate = rule[0], rule[1], rule[2], rule[3]
    finite = True
    for a in range(n_weights):
        radial = 0.0
        for axis in range(size):
            gradient[a, axis] = share * gradient[a, axis] + decay * state[a, axis]
            radial += state[a, axis] * gradient[a, axis]
        if not (on_sphere[a] and is_tangent):
            radial = 0.0
        squared = 0.0
        for axis in range(size):
            slope = gradient[a, axis] - radial * state[a, axis]
            if has_velocity:
                slope += momentum * state[n_weights + a, axis]
                state[n_weights + a, axis] = slope
            state[a, axis] -= step_size * slope
            squared += state[a, axis] * state[a, axis]
        if on_sphere[a]:
            # NaN, infinity and zero all give the inverse 0, which counts as an
            # overflow.
            inverse = 1.0 / math.sqrt(squared) if squared > 0.0 else 0.0
            for axis in range(size):
                state[a, axis] *= inverse
            finite &= inverse > 0.0
        else:
            finite &= squared < math.inf
    if has_average:
        start = state.shape[0] - n_weights
        for a in range(n_weights):
            for axis in range(size):
                step = state[a, axis] - state[start + a, axis]
                state[start + a, axis] += rate * step
    return finite


@njit(**INSIDE)
def write_record(state: Any, pairs: Any, out: Any) -> None:
    """Write the overlaps of pairs of rows; planted direction j is -1 - j."""
    for curve in range(pairs.shape[0]):
        a, b = pairs[curve, 0], pairs[curve, 1]
        if b < 0:
            out[curve] = state[a, -1 - b]
            continue
        total = 0.0
        for axis in range(state.shape[1]):
            total += state[a, axis] * state[b, axis]
        out[curve] = total


@njit(**INSIDE)
def write_gram(rows: Any, out: Any) -> None:
    """Write the inner products of rows."""
    for a in range(rows.shape[0]):
        for b in range(a + 1):
            total = 0.0
            for i in range(rows.shape[1]):
                total += rows[a, i] * rows[b, i]
            out[a, b] = total
            out[b, a] = total


@njit(**INSIDE)
def write_units(rows: Any, factor: Any, units: Any, identity: Any) -> None:
    """Write an orthonormal basis of rows, from the Cholesky factor of their products.

    `units` may be `rows`. ``identity`` gets the matrix of that name.
    """
    n_rows, n_tokens = units.shape
    for k in range(n_rows):
        # A zero pivot: the combination lies in the span of those before it.
        inverse = 1.0 / factor[k, k] if factor[k, k] > 0.0 else 0.0
        for i in range(n_tokens):
            units[k, i] = inverse * rows[k, i]
        for b in range(k):
            share = inverse * factor[k, b]
            for i in range(n_tokens):
                units[k, i] -= share * units[b, i]
        for b in range(n_rows):
            identity[k, b] = 1.0 if k == b else 0.0


@njit(**INSIDE)
def reveal_combinations(
    rng: np.random.Generator, dof: float, units: Any, bartlett: Any, tokens: Any
) -> None:
    r"""Draw the tokens' coordinates on the axes that their combinations create.

    With :math:`\hat U` an orthonormal basis of the rows :math:`P_k s` and Bartlett's
    factor A, these coordinates are :math:`A^\top \hat U + g (I - \hat U^\top \hat U)`,
    times the tokens' scales. ``tokens`` gets its last K rows.
    """
    n_combinations, n_tokens = units.shape
    first = tokens.shape[0] - n_combinations
    for k in range(n_combinations):
        if dof > k:
            for i in range(n_tokens):
                tokens[first + k, i] = rng.standard_normal()
        else:
            for i in range(n_tokens):
                tokens[first + k, i] = 0.0
        # Replace the products of a fresh column with the units by the entries of
        # Bartlett: the combinations have fixed these, and nothing else.
        for b in range(n_combinations):
            missing = bartlett[b, k]
            for i in range(n_tokens):
                missing -= units[b, i] * tokens[first + k, i]
            for i in range(n_tokens):
                tokens[first + k, i] += missing * units[b, i]


@njit(**INSIDE)
def project_off_units(units: Any, slopes: Any) -> None:
    """Take from each row its part along orthonormal rows."""
    for a in range(slopes.shape[0]):
        for k in range(units.shape[0]):
            product = 0.0
            for i in range(slopes.shape[1]):
                product += slopes[a, i] * units[k, i]
            for i in range(slopes.shape[1]):
                slopes[a, i] -= product * units[k, i]


@njit(**INSIDE)
def write_outside_gram(revealed: Any, factor: Any, gram: Any) -> None:
    """Write the products of a sample's gradients outside the frame.

    They are known on K new axes (`revealed`) and drawn on the others (`factor`), which
    becomes the identity.
    """
    n_weights, n_combinations = revealed.shape
    for a in range(n_weights):
        for b in range(a + 1):
            total = 0.0
            for k in range(n_combinations):
                total += revealed[a, k] * revealed[b, k]
            for k in range(n_weights):
                total += factor[a, k] * factor[b, k]
            gram[a, b] = total
    for a in range(n_weights):
        for b in range(n_weights):
            factor[a, b] = 1.0 if a == b else 0.0


@njit(**INSIDE)
def add_rotated(  # noqa: C901 -- plain loops
    rng: np.random.Generator,
    dof: float,
    n_extra: int,
    gram: Any,
    factor: Any,
    outside: Any,
    wide: Any,
) -> None:
    r"""Add the sample's gradient outside the frame, on axes of the batch.

    Each sample has new axes of its own; relative to those of the batch, they are
    turned by a uniform rotation of :math:`\mathbb R^{dof}`. So the rows become R Q,
    with RRᵀ their Gram matrix and Q uniform orthonormal rows, in coordinates on the
    auxiliary axes, on the batch's axes, and on new ones, all in ``wide``
    (r, n_extra + 2 r).

    ``gram`` (r, r) holds R, and ``factor`` (r, r) Bartlett's factor of the new axes.
    """
    # The rows of a Gaussian matrix span a uniform subspace. Its entries are drawn on
    # the axes that have a meaning; the factor of Bartlett stands for all others.
    n_weights = gram.shape[0]
    size = n_extra + n_weights
    for a in range(n_weights):
        for axis in range(size):
            wide[a, axis] = rng.standard_normal() if dof - axis > 0.0 else 0.0
        for b in range(n_weights):
            wide[a, size + b] = factor[a, b]
        # Orthonormal rows by Gram and Schmidt.
        for b in range(a):
            product = 0.0
            for axis in range(wide.shape[1]):
                product += wide[a, axis] * wide[b, axis]
            for axis in range(wide.shape[1]):
                wide[a, axis] -= product * wide[b, axis]
        squared = 0.0
        for axis in range(wide.shape[1]):
            squared += wide[a, axis] * wide[a, axis]
        inverse = 1.0 / math.sqrt(squared) if squared > 0.0 else 0.0
        for axis in range(wide.shape[1]):
            wide[a, axis] *= inverse
    # From the last row upwards: row a of the product with a lower factor needs the
    # orthonormal rows before it as they were.
    for a in range(n_weights - 1, -1, -1):
        for axis in range(wide.shape[1]):
            total = outside[a, axis] if axis < size else 0.0
            for b in range(a + 1):
                total += gram[a, b] * wide[b, axis]
            wide[a, axis] = total


@njit(**INSIDE)
def write_columns(rows: Any, first: int, out: Any) -> None:
    """Copy rows to the columns of `out` from `first` on."""
    for a in range(rows.shape[0]):
        for column in range(rows.shape[1]):
            out[a, first + column] = rows[a, column]


@njit(**INSIDE)
def reveal_weight(
    rng: np.random.Generator,
    dof: float,
    a: int,
    slopes: Any,
    scale: Any,
    spent: Any,
    axis: int,
    tokens: Any,
) -> None:
    """Draw the axis that the gradient of weight a adds, and the tokens' part on it."""
    batch_size, n_tokens = scale.shape
    n = batch_size * n_tokens
    weights, along, length = np.empty((1, n)), np.empty(n), np.empty((1, 1))
    for sample in range(batch_size):
        for i in range(n_tokens):
            place = sample * n_tokens + i
            weights[0, place] = slopes[sample, a, i] * scale[sample, i]
    # Only the length outside the frame is drawn here, so combine gets no coordinates of
    # the frame.
    combine(rng, np.empty((0, n)), weights, spent[:-1], dof, length)
    reveal_along(rng, weights[0], length[0, 0], spent, along)
    for sample in range(batch_size):
        for i in range(n_tokens):
            value = along[sample * n_tokens + i] * scale[sample, i]
            tokens[sample, axis, i] = value if dof > 0.0 else 0.0
