"""Template: sums over tokens and small matrices that both kinds of sample use."""

import math
from typing import Any

import numpy as np

from eigenheads._compile import njit
from eigenheads.dynamics._engine import REORDER
from eigenheads.models._declared import (
    N_PLANTED,
    N_TOKENS,
    N_WEIGHTS,
)

# --- template ---------------------------------------------------------------------


@njit()
def _drawn_index(rng: np.random.Generator, cumulative: Any) -> int:
    """Draw an index from cumulative probabilities without their last entry, 1."""
    uniform, index = rng.random(), 0
    while index < cumulative.shape[0] and uniform >= cumulative[index]:
        index += 1
    return index


@njit()
def _tilted_index(rng: np.random.Generator, strength: float, scores: Any) -> int:
    """Draw an index with odds exp(strength · score), by Gumbel's maximum."""
    best, index = -math.inf, 0
    for i in range(scores.shape[0]):
        # The negative logarithm of an exponential variable has the law of Gumbel.
        value = strength * scores[i] - math.log(rng.standard_exponential())
        if value > best:
            best, index = value, i
    return index


@njit(fastmath=REORDER)
def _project_wide(state: Any, tokens: Any, fields: Any) -> None:
    """Write the fields of all weights in a frame with any number of axes."""
    # Tokens are the innermost loop, with unit stride, for vector instructions.
    for a in range(N_WEIGHTS):
        for i in range(N_TOKENS):
            fields[a, i] = 0.0
        for axis in range(tokens.shape[0]):
            coordinate = state[a, axis]
            for i in range(N_TOKENS):
                fields[a, i] += coordinate * tokens[axis, i]


@njit(fastmath=REORDER)
def _add_products_wide(slopes: Any, tokens: Any, gradient: Any) -> None:
    """Add sums of the tokens with these weights, in frame coordinates."""
    for a in range(N_WEIGHTS):
        for axis in range(tokens.shape[0]):
            total = 0.0
            for i in range(N_TOKENS):
                total += slopes[a, i] * tokens[axis, i]
            gradient[a, axis] += total


@njit()
def _write_overlaps(state: Any, overlaps: Any) -> None:
    """Write the products of weights with planted directions and with each other."""
    for a in range(N_WEIGHTS):
        for j in range(N_PLANTED):
            overlaps[a, j] = state[a, j]
        for b in range(N_WEIGHTS):
            total = 0.0
            for axis in range(state.shape[1]):
                total += state[a, axis] * state[b, axis]
            overlaps[a, N_PLANTED + b] = total


@njit()
def _add_overlap_gradient(state: Any, overlap_slopes: Any, gradient: Any) -> None:
    """Add the gradient of a function of the overlaps: w_a · w_b moves both."""
    for a in range(N_WEIGHTS):
        for j in range(N_PLANTED):
            gradient[a, j] += overlap_slopes[a, j]
        # For b = a both additions meet one row: the derivative of w · w is 2 w.
        for b in range(a + 1):
            slope = overlap_slopes[a, N_PLANTED + b]
            if slope != 0.0:
                for axis in range(min(state.shape[1], gradient.shape[1])):
                    gradient[a, axis] += slope * state[b, axis]
                    gradient[b, axis] += slope * state[a, axis]


@njit()
def _mirror(matrix: Any) -> None:
    """Copy the lower half of a square matrix to the upper half."""
    for a in range(matrix.shape[0]):
        for b in range(a):
            matrix[b, a] = matrix[a, b]


@njit(fastmath=REORDER)
def _write_gram(rows: Any, out: Any) -> None:
    """Write the inner products of rows."""
    for a in range(rows.shape[0]):
        for b in range(a + 1):
            total = 0.0
            for i in range(rows.shape[1]):
                total += rows[a, i] * rows[b, i]
            out[a, b] = total
            out[b, a] = total


@njit()
def _add_row(factor: float, row: Any, out: Any) -> None:
    """Add a multiple of a row to a row that is at least as long."""
    for i in range(row.shape[0]):
        out[i] += factor * row[i]


@njit()
def _scale_row(factor: float, row: Any) -> None:
    for i in range(row.shape[0]):
        row[i] *= factor


@njit()
def _clear(matrix: Any) -> None:
    """Write zeros."""
    for a in range(matrix.shape[0]):
        for b in range(matrix.shape[1]):
            matrix[a, b] = 0.0
