"""The heads of attention-based PCA, of rank one and of rank k."""

from array_api_compat import is_torch_array
from jaxtyping import Float
from scipy.special import erf as scipy_erf

from eigenheads._checks import Got, check_choice, check_float_arrays, check_number, fail
from eigenheads._typing import Array

_OWNER = "pca_head"
HEADS = ("softmax", "linear", "sigmoid", "erf", "relu")


def pca_head(
    tokens: Float[Array, "*batch n_tokens d"],
    directions: Float[Array, "d *rank"],
    *,
    inverse_temperature: float,
    head: str = "softmax",
) -> Float[Array, "*batch d"]:
    r"""Output of an attention head whose query is the first token of a prompt.

    The scores are :math:`s_k = \lambda\, x_1^\top M M^\top x_k` with one direction
    :math:`M = \mu` or several, and the values are the tokens themselves:

    .. math::

        T(X) = \sum_k \operatorname{softmax}_k(s)\, x_k, \qquad
        T_{\mathrm{linear}}(X) = \sum_k s_k\, x_k, \qquad
        T_\varphi(X) = \frac1L \sum_k \varphi(s_k)\, x_k

    Parameters
    ----------
    tokens
        Rows :math:`x_k^\top` of each prompt; all of them are keys and values, the
        first one too.
    directions
        :math:`\mu`, (d,), or the columns of :math:`M`, (d, k).
    inverse_temperature
        :math:`\lambda \ge 0`.
    head
        ``"softmax"``; ``"linear"`` (a sum, not a mean); or one activation a score,
        averaged: ``"sigmoid"``, ``"erf"``, ``"relu"``.

    Returns
    -------
    output
        One vector a prompt.

    Notes
    -----
    Permuting tokens 2 … L changes nothing, nor does a rotation
    :math:`M \to MQ`. As :math:`\lambda \to 0` softmax attends to all alike and
    returns the mean of the tokens.

    References
    ----------
    .. [1] maulensoto2026.

    Examples
    --------
    >>> import numpy as np
    >>> tokens = np.array([[1.0, 2.0], [3.0, -4.0]])
    >>> pca_head(tokens, np.array([1.0, 0.0]), inverse_temperature=1.0, head="linear")
    array([ 10., -10.])
    """
    check_choice("head", head, HEADS, owner=_OWNER)
    sharpness = check_number(
        "inverse_temperature", inverse_temperature, owner=_OWNER, minimum=0.0
    )
    xp = check_tokens_and_directions(tokens, directions, owner=_OWNER)
    matrix = directions if directions.ndim == 2 else directions[:, None]
    projected = xp.matmul(tokens, matrix)
    scores = sharpness * xp.sum(projected * projected[..., :1, :], axis=-1)
    weights = _weights(xp, scores, head)
    return xp.sum(weights[..., None] * tokens, axis=-2)


def _weights(xp: Array, scores: Array, head: str) -> Array:
    if head == "linear":
        return scores
    if head == "softmax":
        weights = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
        return weights / xp.sum(weights, axis=-1, keepdims=True)
    return _activation(xp, scores, head) / scores.shape[-1]


def _activation(xp: Array, scores: Array, head: str) -> Array:
    if head == "relu":
        return (scores + xp.abs(scores)) / 2
    if head == "sigmoid":  # this form cannot overflow
        return (1 + xp.tanh(scores / 2)) / 2
    # The array API has no erf.
    if is_torch_array(scores):
        import torch

        return torch.special.erf(scores)
    return scipy_erf(scores)


def check_tokens_and_directions(
    tokens: Array, directions: Array, *, owner: str
) -> Array:
    """Return the arrays' library, or raise unless they are prompts and M."""
    xp = check_float_arrays(owner, tokens=tokens, directions=directions)
    if directions.dtype != tokens.dtype:
        contract = f"of the dtype of `tokens`, {tokens.dtype}"
        got = Got(directions.dtype)
        fail("directions", contract, got, owner=owner, error=TypeError)
    if tokens.ndim < 2 or tokens.shape[-2] < 1:
        contract = "of shape (..., n_tokens, d) with n_tokens >= 1"
        fail("tokens", contract, Got(tuple(tokens.shape)), owner=owner)
    if directions.ndim not in (1, 2) or directions.shape[0] != tokens.shape[-1]:
        d = tokens.shape[-1]
        contract = f"of shape ({d},) or ({d}, k), the width of `tokens` first"
        fail("directions", contract, Got(tuple(directions.shape)), owner=owner)
    return xp
