"""One query's attention output, and the gradient of its squared norm."""

from __future__ import annotations

from jaxtyping import Float

from eigenheads._arrays import stable_softmax
from eigenheads._checks import Got, check_float_arrays, check_number, fail
from eigenheads._typing import Array


def signal_output(
    tokens: Float[Array, "*batch n_tokens d"],
    query: Float[Array, " d"],
    *,
    inverse_temperature: float = 1.0,
) -> Float[Array, "*batch d"]:
    r"""Return the attention output of a query; the tokens are keys and values.

    .. math::

        o(q) = \sum_i p_i x_i, \qquad p = \operatorname{softmax}(\beta\, X q)

    Parameters
    ----------
    tokens
        Rows :math:`x_i^\top` of each prompt.
    query
        :math:`q`.
    inverse_temperature
        :math:`\beta \ge 0`.

    Returns
    -------
    output
        One vector per prompt, in the convex hull of its tokens.

    References
    ----------
    .. [1] truong2026.

    Examples
    --------
    >>> import numpy as np
    >>> tokens = np.array([[1e4, 1.0], [-1e4, 5.0]])
    >>> signal_output(tokens, np.array([1.0, 0.0]))
    array([1.e+04, 1.e+00])
    """
    xp, beta = _check(tokens, query, inverse_temperature)
    return unchecked_output(xp, tokens, query, beta)


def signal_output_gradient(
    tokens: Float[Array, "*batch n_tokens d"],
    query: Float[Array, " d"],
    *,
    inverse_temperature: float = 1.0,
) -> Float[Array, "*batch d"]:
    r"""Return the gradient of the squared norm of the output with respect to the query.

    .. math::

        \nabla_q \lVert o \rVert^2
        = 2 \beta \sum_i p_i \bigl(x_i \cdot o - \lVert o \rVert^2\bigr) x_i

    Parameters
    ----------
    tokens
        Rows :math:`x_i^\top` of each prompt.
    query
        :math:`q`.
    inverse_temperature
        :math:`\beta \ge 0`.

    Returns
    -------
    gradient
        One vector per prompt: in :math:`\mathbb R^d`, not projected on the sphere.

    See Also
    --------
    signal_output : the output :math:`o` itself.

    References
    ----------
    .. [1] truong2026.

    Examples
    --------
    >>> import numpy as np
    >>> tokens = np.array([[2.0, 0.0], [0.0, 0.0]])
    >>> signal_output_gradient(tokens, np.array([0.0, 1.0]))
    array([2., 0.])
    """
    xp, beta = _check(tokens, query, inverse_temperature)
    return unchecked_gradient(xp, tokens, query, beta)


def unchecked_output(xp: Array, tokens: Array, query: Array, beta: float) -> Array:
    """Return :func:`signal_output` of arrays that were checked, for inner loops."""
    weights = stable_softmax(beta * xp.matmul(tokens, query))
    return _combined(xp, weights, tokens)


def unchecked_gradient(xp: Array, tokens: Array, query: Array, beta: float) -> Array:
    """Return :func:`signal_output_gradient` of arrays that were checked."""
    weights = stable_softmax(beta * xp.matmul(tokens, query))
    output = _combined(xp, weights, tokens)
    meeting = xp.matmul(tokens, output[..., None])[..., 0]
    # The weights sum to one, so their mean of x·o is ‖o‖².
    excess = meeting - xp.sum(weights * meeting, axis=-1, keepdims=True)
    return 2 * beta * _combined(xp, weights * excess, tokens)


def _combined(xp: Array, weights: Array, tokens: Array) -> Array:
    return xp.matmul(weights[..., None, :], tokens)[..., 0, :]


def _check(
    tokens: Array, query: Array, inverse_temperature: object
) -> tuple[Array, float]:
    scale = check_number("inverse_temperature", inverse_temperature, minimum=0.0)
    xp = check_float_arrays(tokens=tokens, query=query)
    if query.dtype != tokens.dtype:
        contract = f"of the dtype of `tokens`, {tokens.dtype}"
        fail("query", contract, Got(query.dtype), error=TypeError)
    if tokens.ndim < 2 or tokens.shape[-2] < 1:
        contract = "of shape (..., n_tokens, d) with n_tokens >= 1"
        fail("tokens", contract, Got(tuple(tokens.shape)))
    if tuple(query.shape) != (tokens.shape[-1],):
        contract = f"of shape ({tokens.shape[-1]},), the width of `tokens`"
        fail("query", contract, Got(tuple(query.shape)))
    return xp, scale
