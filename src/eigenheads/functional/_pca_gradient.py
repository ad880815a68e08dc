"""Loss of a prompt under the heads of attention-based PCA, and its gradient."""

from typing import NamedTuple

from jaxtyping import Float

from eigenheads._checks import Got, check_choice, check_number, fail
from eigenheads._typing import Array
from eigenheads.functional._pca import check_tokens_and_directions

_OWNER = "pca_prompt_loss"


class PromptLoss(NamedTuple):
    """Mean loss of prompts, and its gradient in the directions."""

    loss: Array
    gradient: Array


def pca_prompt_loss(
    tokens: Float[Array, "*batch n_tokens d"],
    directions: Float[Array, "d rank"],
    *,
    inverse_temperature: float,
    head: str = "softmax",
) -> PromptLoss:
    r"""Mean squared error of a head that copies each token of a prompt, with gradient.

    Every token is the query in turn, with all tokens of its prompt as keys and values:
    tokens are exchangeable, so the mean is that of the first token as the only query,
    and the variance is smaller.

    .. math::

        \ell(M) = \frac1L \sum_i \lVert x_i - T_i \rVert^2, \qquad
        T_i = \sum_j p_{ij} x_j, \qquad
        p_i = \operatorname{softmax}(s_i) \text{ or } s_i, \qquad
        s_{ij} = \lambda\, x_i^\top M M^\top x_j

    Parameters
    ----------
    tokens
        Rows :math:`x_j^\top` of each prompt.
    directions
        Columns of :math:`M`.
    inverse_temperature
        :math:`\lambda \ge 0`.
    head
        ``"softmax"``, or ``"linear"`` (a sum, not a mean).

    Returns
    -------
    result
        ``loss``, the mean over tokens and prompts, and ``gradient`` in
        :math:`M`, (d, rank).

    See Also
    --------
    pca_head : the head's output for the first token.

    Notes
    -----
    With the errors :math:`e_i = x_i - T_i` and
    :math:`t_{ij} = \partial(-\ell)/\partial s_{ij} \cdot L/2`, that is
    :math:`e_i \cdot x_j` for the linear head and
    :math:`p_{ij} (e_i \cdot x_j - \sum_m p_{im}\, e_i \cdot x_m)` for softmax,

    .. math::

        \nabla \ell = -\frac{2 \lambda}{L} X^\top (t + t^\top) X M

    A linear head costs O(L d k); softmax O(L² d).

    References
    ----------
    .. [1] maulensoto2026; rank above one is ours.

    Examples
    --------
    >>> import numpy as np
    >>> tokens = np.array([[1.0, 0.0], [-1.0, 0.0]])
    >>> M = np.array([[1.0], [0.0]])
    >>> result = pca_prompt_loss(tokens, M, inverse_temperature=0.5, head="linear")
    >>> float(result.loss), float(np.abs(result.gradient).max())
    (0.0, 0.0)
    """
    check_choice("head", head, ("softmax", "linear"), owner=_OWNER)
    sharpness = check_number(
        "inverse_temperature", inverse_temperature, owner=_OWNER, minimum=0.0
    )
    xp = check_tokens_and_directions(tokens, directions, owner=_OWNER)
    if directions.ndim != 2 or 0 in (*directions.shape, *tokens.shape):
        contract = f"of shape ({tokens.shape[-1]}, rank) without empty axes"
        fail("directions", contract, Got(tuple(directions.shape)), owner=_OWNER)
    projected = xp.matmul(tokens, directions)
    pull = _linear if head == "linear" else _softmax
    errors, by_query, by_key = pull(xp, tokens, projected, sharpness)
    n = 1
    for size in tokens.shape[:-1]:
        n *= size
    d, rank = directions.shape
    flat = xp.reshape(tokens, (-1, d))
    meeting = xp.reshape(by_query + by_key, (-1, rank))
    gradient = (-2 * sharpness / n) * xp.matmul(flat.T, meeting)
    return PromptLoss(xp.sum(errors * errors) / n, gradient)


def _linear(
    xp: Array, tokens: Array, projected: Array, sharpness: float
) -> tuple[Array, Array, Array]:
    """Return the errors, and t Y and t′Y, without a matrix of tokens by tokens."""
    values = xp.matmul(_transposed(xp, tokens), projected)  # X′Y, (d, k)
    errors = tokens - sharpness * xp.matmul(projected, _transposed(xp, values))
    met = xp.matmul(_transposed(xp, errors), projected)
    return errors, xp.matmul(errors, values), xp.matmul(tokens, met)


def _softmax(
    xp: Array, tokens: Array, projected: Array, sharpness: float
) -> tuple[Array, Array, Array]:
    scores = sharpness * xp.matmul(projected, _transposed(xp, projected))
    weights = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    weights = weights / xp.sum(weights, axis=-1, keepdims=True)
    errors = tokens - xp.matmul(weights, tokens)
    meeting = xp.matmul(errors, _transposed(xp, tokens))
    mean = xp.sum(weights * meeting, axis=-1, keepdims=True)
    tangent = weights * (meeting - mean)
    by_query = xp.matmul(tangent, projected)
    return errors, by_query, xp.matmul(_transposed(xp, tangent), projected)


def _transposed(xp: Array, stack: Array) -> Array:
    return xp.matrix_transpose(stack)
