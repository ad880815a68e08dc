"""Softmax, its logarithm and erf: the reference for NumPy and PyTorch arrays.

Compiled code repeats the softmax where a call would cost too much; it names this
module, and a test compares the two.
"""

from __future__ import annotations

from array_api_compat import array_namespace, is_torch_array
from jaxtyping import Float
from scipy.special import erf as scipy_erf

from eigenheads._typing import Array


def stable_softmax(scores: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
    r"""Return the softmax over the last axis, for scores of any size.

    .. math::

        p_i = \frac{e^{s_i - \max s}}{\sum_j e^{s_j - \max s}}

    A row of :math:`-\infty` alone, which sees nothing, has weights 0.

    Examples
    --------
    >>> import numpy as np
    >>> stable_softmax(np.array([[1e4, 1e4], [0.0, -np.inf], [-np.inf, -np.inf]]))
    array([[0.5, 0.5],
           [1. , 0. ],
           [0. , 0. ]])
    """
    xp = array_namespace(scores)
    top = xp.max(scores, axis=-1, keepdims=True)
    # Without the maximum the exponentials would overflow; without this line rows of
    # -inf would become NaN. A row with NaN or inf does become NaN.
    top = xp.where(top == -xp.inf, xp.zeros_like(top), top)
    weights = xp.exp(scores - top)
    total = xp.sum(weights, axis=-1, keepdims=True)
    return weights / xp.where(total == 0, xp.ones_like(total), total)


def log_sum_exp(scores: Float[Array, "*batch n"]) -> Float[Array, "*batch"]:
    """Return the logarithm of the sum of exponentials over the last axis.

    Examples
    --------
    >>> import numpy as np
    >>> round(float(log_sum_exp(np.array([1e4, 1e4]))), 4)
    10000.6931
    """
    xp = array_namespace(scores)
    top = xp.max(scores, axis=-1, keepdims=True)
    return top[..., 0] + xp.log(xp.sum(xp.exp(scores - top), axis=-1))


def erf(array: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return the error function, which the array API lacks."""
    if is_torch_array(array):
        import torch

        return torch.special.erf(array)
    return scipy_erf(array)
