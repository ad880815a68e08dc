"""Template: one sample of a loss that reads fields alone (class A)."""

from typing import Any

import numpy as np

from eigenheads._compile import njit
from eigenheads.dynamics._engine import REORDER, _cholesky, _times_bartlett
from eigenheads.models._declared import (
    N_AXES,
    N_TOKENS,
    N_WEIGHTS,
    USES_OVERLAPS,
    _add_gram,
    _add_products,
    _draw_tokens,
    _loss_gradient,
    _project,
    _times_scale,
)
from eigenheads.models._kernel_parts import (
    _add_overlap_gradient,
    _add_products_wide,
    _mirror,
    _project_wide,
)

# --- template ---------------------------------------------------------------------


@njit()
def _new_outside(n_extra: int) -> Any:
    """Return the sum over a batch that :func:`_add_outside` fills."""
    return np.zeros((N_WEIGHTS, N_WEIGHTS))


@njit()
def _new_outputs(n_axes: int) -> Any:
    """Return arrays for combinations of tokens, which this kind of loss has not."""
    return (np.empty((n_axes, N_TOKENS)),)


@njit(forceinline=True)
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

    Leaves the tokens' weights in the gradients, times their scales, in ``slopes``:
    all that the parts outside the frame depend on.
    """
    _draw_tokens(rng, d, law, mean, scale, latents, tokens)
    if tokens.shape[0] == N_AXES:
        _project(state, tokens, fields)
    else:
        _project_wide(state, tokens, fields)
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
    )
    if tokens.shape[0] == N_AXES:
        _add_products(slopes, tokens, gradient)
    else:
        _add_products_wide(slopes, tokens, gradient)
    if USES_OVERLAPS:
        _add_overlap_gradient(state, overlap_slopes, gradient)
    # Outside the frame a token is its scale times standard normals, independent of all
    # that was drawn so far. Given the scaled weights, the law of the gradient there is
    # known, and its draw can wait for the end of the batch.
    _times_scale(scale, slopes)
    return value


@njit(fastmath=REORDER)
def _add_outside(
    rng: np.random.Generator,
    dof: float,
    n_extra: int,
    slopes: Any,
    outputs: Any,
    outside: Any,
) -> None:
    """Add the sample's weights to the Gram matrix of the batch, lower half."""
    # Given their weights, the parts of the samples outside the frame are independent
    # Gaussians, so their covariances add: one draw per batch is enough.
    _add_gram(slopes, outside)


@njit()
def _write_outside(
    rng: np.random.Generator, dof: float, n_extra: int, outside: Any, gradient: Any
) -> None:
    """Draw the batch gradient outside the frame of planted directions and weights.

    Given the weights with Gram matrix K = LLᵀ, these parts are L times a standard
    Gaussian matrix: normals on the axes of auxiliary rows, which have a meaning, and
    Bartlett's factor of the rest on new axes.
    """
    _mirror(outside)
    _cholesky(outside)
    for axis in range(n_extra):
        for b in range(N_WEIGHTS):
            normal = rng.standard_normal()
            for a in range(b, N_WEIGHTS):
                gradient[a, N_AXES + axis] += outside[a, b] * normal
    # The axes of the auxiliary rows are taken from the degrees of freedom.
    _times_bartlett(rng, dof - n_extra, outside)
    for a in range(N_WEIGHTS):
        for b in range(N_WEIGHTS):
            gradient[a, N_AXES + n_extra + b] = outside[a, b]


@njit(fastmath=REORDER)
def _add_outside_moment(dof: float, slopes: Any, outputs: Any, total: Any) -> None:
    """Add the conditional mean of the gradients' products outside the frame."""
    # In the mean, each direction outside contributes the same product.
    for a in range(N_WEIGHTS):
        for b in range(N_WEIGHTS):
            product = 0.0
            for i in range(N_TOKENS):
                product += slopes[a, i] * slopes[b, i]
            total[a, b] += dof * product
