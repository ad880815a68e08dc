"""Tokens that do not fit the others: distances from a joint Gaussian over positions."""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace
from jaxtyping import Bool, Float

from eigenheads._checks import Got, fail
from eigenheads._typing import Array
from eigenheads.functional._kernel import check_floats

# Conjugate gradients solve for at most this many steps: the systems are well
# conditioned, because covariances have a ridge.
_N_STEPS = 12


def token_distances(
    coordinates: Float[Array, "*batch tokens r"],
    precision: Float[Array, "tokens*r tokens*r"],
    *,
    hidden: Bool[Array, "*batch tokens"] | None = None,
) -> Float[Array, "*batch tokens"]:
    r"""Return the distance of each token from its prediction by all other tokens.

    .. math::

        d_j^2 = e_j^\top P_{jj}\, e_j, \qquad
        e_j = z_j - \operatorname{E}[z_j \mid \text{others}] = P_{jj}^{-1} (P z)_j

    for a Gaussian of mean zero with precision matrix :math:`P` over all tokens. This is
    the leave-one-out Mahalanobis distance.

    Parameters
    ----------
    coordinates
        Centred coordinates :math:`z` of the tokens, `r` numbers per token.
    precision
        :math:`P`, tokens by tokens in blocks of `r`.
    hidden
        Tokens that do not take part in predictions. They are replaced by their
        conditional mean given the visible ones.

    Returns
    -------
    distances
        One per token; under the Gaussian their squares are chi-squared with `r` degrees
        of freedom.

    Examples
    --------
    Two equal tokens: the second does not fit the first.

    >>> import numpy as np
    >>> precision = np.linalg.inv(np.array([[1.0, 0.9], [0.9, 1.0]]))
    >>> token_distances(np.array([[1.0], [1.0]]), precision).round(2)
    array([0.23, 0.23])
    >>> token_distances(np.array([[1.0], [-1.0]]), precision).round(2)
    array([4.36, 4.36])
    """
    xp = check_floats(coordinates=coordinates, precision=precision)
    n_tokens, r = coordinates.shape[-2:]
    if tuple(precision.shape) != (n_tokens * r, n_tokens * r):
        contract = f"of shape {(n_tokens * r, n_tokens * r)}"
        fail("precision", contract, Got(tuple(precision.shape)))
    if not bool(xp.all(xp.linalg.diagonal(precision) > 0)):
        got = Got("diagonal entries that are not positive")
        fail("precision", "a positive definite matrix", got)
    if hidden is not None:
        is_fitting = (
            type(hidden) is type(coordinates)
            and tuple(hidden.shape) == tuple(coordinates.shape[:-1])
            and hidden.dtype == xp.bool
        )
        if not is_fitting:
            shape = tuple(coordinates.shape[:-1])
            contract = f"booleans of shape {shape}, in the library of `coordinates`"
            fail("hidden", contract, hidden)
    return unchecked_distances(coordinates, precision, hidden)


def unchecked_distances(
    coordinates: Array, precision: Array, hidden: Array | None = None
) -> Array:
    """Return :func:`token_distances` of arrays that were checked, for inner loops."""
    xp = array_namespace(coordinates, precision)
    n_tokens, r = coordinates.shape[-2:]
    blocks = _diagonal_blocks(xp, precision, n_tokens, r)
    filled = coordinates
    if hidden is not None:
        filled = conditional_means(coordinates, precision, hidden)
    product = _apply(xp, precision, filled)
    # This is each token minus its conditional mean given all the others.
    error = xp.linalg.solve(blocks, product[..., None])[..., 0]
    # A hidden token is compared with its imputed value.
    error = error + coordinates - filled
    squares = xp.sum((blocks @ error[..., None])[..., 0] * error, axis=-1)
    return xp.sqrt(xp.where(squares > 0, squares, xp.zeros_like(squares)))


def conditional_means(
    coordinates: Float[Array, "*batch tokens r"],
    precision: Float[Array, "tokens*r tokens*r"],
    hidden: Bool[Array, "*batch tokens"],
) -> Float[Array, "*batch tokens r"]:
    r"""Replace hidden tokens by their mean given the others, for a Gaussian.

    Solves :math:`P_{HH} z_H = -P_{HV} z_V` for the hidden tokens :math:`H` by conjugate
    gradients, for all rows at once.

    Parameters
    ----------
    coordinates, precision, hidden
        As in :func:`token_distances`.

    Returns
    -------
    imputed
        The coordinates, changed where `hidden`.
    """
    xp = array_namespace(coordinates, precision)
    inside = xp.astype(hidden, coordinates.dtype)[..., None]
    visible = coordinates * (1 - inside)
    residual = -inside * _apply(xp, precision, visible)
    means, direction = xp.zeros_like(residual), residual
    size = xp.sum(residual**2, axis=(-2, -1), keepdims=True)
    ones = xp.ones_like(size)
    # A row that has converged has a direction of zero. Divisors of 1 keep its solution
    # as it is, where 0/0 would give NaN.
    for _ in range(_N_STEPS):
        image = inside * _apply(xp, precision, direction)
        curvature = xp.sum(direction * image, axis=(-2, -1), keepdims=True)
        step = size / xp.where(curvature > 0, curvature, ones)
        means = means + step * direction
        residual = residual - step * image
        after = xp.sum(residual**2, axis=(-2, -1), keepdims=True)
        direction = residual + after / xp.where(size > 0, size, ones) * direction
        size = after
    return visible + means


def flag_tokens(
    coordinates: Float[Array, "*batch tokens r"],
    precision: Float[Array, "tokens*r tokens*r"],
    thresholds: Float[Array, " tokens"],
    *,
    max_share: float = 0.5,
    absent: Bool[Array, "*batch tokens"] | None = None,
) -> Bool[Array, "*batch tokens"]:
    """Tokens whose distance exceeds their threshold, in two rounds, with a guard.

    An odd token disturbs the predictions of the others. So the worse half of the tokens
    flagged in the first round is imputed, and all distances are taken again. Where more
    than `max_share` of the tokens are still flagged, none is: then the whole input is
    unusual (dense noise), and hiding some tokens only loses information.

    Parameters
    ----------
    coordinates, precision
        As in :func:`token_distances`.
    thresholds
        One per token; infinity never flags.
    max_share
        Largest share of tokens that may be flagged.
    absent
        Tokens that are padding: they are never flagged, and what they hold has no
        influence on the others.

    Returns
    -------
    flagged
        True for tokens that do not fit.
    """
    xp = array_namespace(coordinates, precision)
    n_tokens = coordinates.shape[-2]
    if absent is not None:
        never = xp.asarray(xp.inf, dtype=thresholds.dtype)
        thresholds = xp.where(absent, never, thresholds)
    ratio = unchecked_distances(coordinates, precision, absent) / thresholds
    first = ratio > 1
    count = xp.sum(xp.astype(first, xp.int64), axis=-1, keepdims=True)
    # Rank 0 is the worst token. Half of the flagged ones, rounded up, are imputed.
    rank = xp.argsort(xp.argsort(ratio, axis=-1, descending=True), axis=-1)
    worst = first & (rank < (count + 1) // 2)
    hidden = worst if absent is None else worst | absent
    again = unchecked_distances(coordinates, precision, hidden) / thresholds
    flagged = again > 1
    count = xp.sum(xp.astype(flagged, xp.int64), axis=-1, keepdims=True)
    return flagged & (count <= int(max_share * n_tokens))


def imputed_tokens(
    tokens: Float[Array, "*batch tokens d"],
    mean: Float[Array, "tokens d"],
    components: Float[Array, "d r"],
    precision: Float[Array, "tokens*r tokens*r"],
    flagged: Bool[Array, "*batch tokens"],
) -> Float[Array, "*batch tokens d"]:
    """Replace flagged tokens by their conditional mean given the others.

    Parameters
    ----------
    tokens
        Tokens at fixed positions.
    mean, components
        Mean of each position, and orthogonal directions of any length that map centred
        tokens to coordinates. What lies outside of them has conditional mean zero.
    precision
        Inverse covariance of the coordinates of all positions.
    flagged
        Tokens to replace.

    Returns
    -------
    imputed
        The tokens, changed where `flagged`.
    """
    xp = array_namespace(tokens, precision)
    codes = conditional_means((tokens - mean) @ components, precision, flagged)
    # The columns are orthogonal, so that the pseudo-inverse is a scaled transpose.
    back = xp.matrix_transpose(components / xp.sum(components**2, axis=0))
    return xp.where(flagged[..., None], mean + codes @ back, tokens)


def _diagonal_blocks(xp: Any, precision: Array, n_tokens: int, r: int) -> Array:
    cut = xp.reshape(precision, (n_tokens, r, n_tokens, r))
    index = xp.arange(n_tokens)
    return cut[index, :, index, :]


def _apply(xp: Any, precision: Array, coordinates: Array) -> Array:
    flat = xp.reshape(coordinates, (*coordinates.shape[:-2], -1))
    return xp.reshape(flat @ precision, coordinates.shape)
