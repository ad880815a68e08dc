"""The predictor of single-location regression."""

from __future__ import annotations

from jaxtyping import Float

from eigenheads._arrays import erf, stable_softmax
from eigenheads._checks import Got, check_choice, check_float_arrays, check_number, fail
from eigenheads._typing import Array


def location_predictor(
    tokens: Float[Array, "*batch n_tokens d"],
    key: Float[Array, " d"],
    value: Float[Array, " d"],
    *,
    inverse_temperature: float,
    head: str = "erf",
) -> Float[Array, "*batch"]:
    r"""Return the sum of the values of the tokens, weighted by their attention.

    .. math::

        T(X) = \sum_l \operatorname{erf}(\lambda X_l \cdot k) \, X_l \cdot v,
        \qquad
        T_{\mathrm{softmax}}(X)
        = \sum_l \operatorname{softmax}_l(\lambda X k) \, X_l \cdot v

    Parameters
    ----------
    tokens
        Rows :math:`X_l^\top` of each prompt.
    key
        :math:`k`, which determines the weights of the tokens.
    value
        :math:`v`, which is read from each token.
    inverse_temperature
        :math:`\lambda \ge 0`.
    head
        ``"erf"``, one weight per token, or ``"softmax"``, weights that sum to one.

    Returns
    -------
    predictions
        One number per prompt.

    Notes
    -----
    Both heads are invariant under a permutation of the tokens. For ``"softmax"``,
    :math:`\gamma = 1`, :math:`k = k^*`, :math:`v = v^*` and
    :math:`\lambda = \sqrt{d/2}` the prediction is the Bayes predictor of
    single-location regression.

    References
    ----------
    .. [1] marion2025.

    Examples
    --------
    >>> import numpy as np
    >>> tokens = np.array([[9.0, 2.0], [-9.0, 5.0]])
    >>> key, value = np.eye(2)
    >>> float(location_predictor(tokens, key, value, inverse_temperature=1.0))
    -3.0
    """
    check_choice("head", head, ("erf", "softmax"))
    scale = check_number("inverse_temperature", inverse_temperature, minimum=0.0)
    xp = _check_arrays(tokens, key, value)
    logits = scale * xp.matmul(tokens, key)
    values = xp.matmul(tokens, value)
    if head == "erf":
        return xp.sum(erf(logits) * values, axis=-1)
    return xp.sum(stable_softmax(logits) * values, axis=-1)


def _check_arrays(tokens: Array, key: Array, value: Array) -> Array:
    arrays = {"tokens": tokens, "key": key, "value": value}
    xp = check_float_arrays(tokens=tokens, key=key, value=value)
    for name, array in arrays.items():
        if array.dtype != tokens.dtype:
            contract = f"of the dtype of `tokens`, {tokens.dtype}"
            fail(name, contract, Got(array.dtype), error=TypeError)
    if tokens.ndim < 2 or tokens.shape[-2] < 1:
        contract = "of shape (..., n_tokens, d) with n_tokens >= 1"
        fail("tokens", contract, Got(tuple(tokens.shape)))
    for name in ("key", "value"):
        if tuple(arrays[name].shape) != (tokens.shape[-1],):
            contract = f"of shape ({tokens.shape[-1]},), the width of `tokens`"
            fail(name, contract, Got(tuple(arrays[name].shape)))
    return xp
