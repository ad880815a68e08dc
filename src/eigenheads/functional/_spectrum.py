"""Soft thresholds of numbers and of singular values, and the effective rank."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Float

from eigenheads._checks import (
    Got,
    check_choice,
    check_float_arrays,
    check_number,
    fail,
)
from eigenheads._typing import Array
from eigenheads.functional._kernel import check_floats

_RANK_KINDS = ("entropy", "participation")


def soft_threshold(
    x: Float[Array, "*shape"], threshold: float | Float[Array, "*#shape"]
) -> Float[Array, "*shape"]:
    r"""Move every entry towards zero by at most the threshold (shrinkage).

    .. math::

        \operatorname{shrink}(x, \tau) = \operatorname{sign}(x) \max(|x| - \tau, 0)

    Parameters
    ----------
    x
        Any array.
    threshold
        :math:`\tau \ge 0`, a number or an array that broadcasts; infinity gives 0.

    Returns
    -------
    shrunk
        Zero where :math:`|x| \le \tau`.

    Notes
    -----
    It is the proximal map of :math:`\tau \lVert \cdot \rVert_1`, so it minimises
    :math:`\tfrac12 (s - x)^2 + \tau |s|`; and :math:`x - \operatorname{shrink}(x,
    \tau)` is :math:`x` clipped to :math:`[-\tau, \tau]`.

    Examples
    --------
    >>> import numpy as np
    >>> soft_threshold(np.array([-3.0, 0.5, 2.0]), 1.0)
    array([-2.,  0.,  1.])
    """
    xp = check_float_arrays(x=x, finite=False)
    threshold = _check_threshold(xp, x, threshold)
    return xp.sign(x) * xp.maximum(xp.abs(x) - threshold, xp.zeros_like(x))


def _check_threshold(xp: Array, x: Array, value: Any) -> Any:
    """Return thresholds >= 0 (infinity counts) that broadcast to `x`, or raise."""
    if isinstance(value, int | float | np.number) and not isinstance(value, bool):
        if not value >= 0:
            fail("threshold", "a number >= 0", value)
        return float(value)
    check_float_arrays(x=x, threshold=value, finite=False)
    pairs = zip(reversed(value.shape), reversed(x.shape), strict=False)
    if value.ndim > x.ndim or any(size not in (1, length) for size, length in pairs):
        contract = f"of a shape that broadcasts to {tuple(x.shape)}"
        fail("threshold", contract, Got(tuple(value.shape)))
    if not bool(xp.all(value >= 0)):
        fail("threshold", "numbers >= 0", value)
    return value


def singular_value_threshold(
    x: Float[Array, "*batch rows columns"], threshold: float
) -> Float[Array, "*batch rows columns"]:
    r"""Shrink the singular values of a matrix by a threshold.

    .. math::

        \operatorname{D}_\tau(U \Sigma V^\top) = U \max(\Sigma - \tau, 0)\, V^\top

    Parameters
    ----------
    x
        Matrices, in the last two axes.
    threshold
        :math:`\tau \ge 0`.

    Returns
    -------
    shrunk
        Its rank is the number of singular values above :math:`\tau`.

    Notes
    -----
    It is the proximal map of :math:`\tau \lVert \cdot \rVert_*`, so it minimises
    :math:`\tfrac12 \lVert L - X \rVert_F^2 + \tau \lVert L \rVert_*` ([1]_, Theorem
    2.1), as :func:`soft_threshold` does for the sum of absolute values.

    References
    ----------
    .. [1] Cai, Candès, Shen, A singular value thresholding algorithm for matrix
       completion, SIAM J. Optim. 20 (2010).

    Examples
    --------
    >>> import numpy as np
    >>> singular_value_threshold(np.diag([3.0, 1.0]), 2.0)
    array([[1., 0.],
           [0., 0.]])
    """
    tau = check_number("threshold", threshold, minimum=0.0)
    xp = check_floats(x=x)
    if tau * tau == math.inf:  # above all singular values that there can be
        return xp.zeros_like(x)
    u, s, vt = xp.linalg.svd(x, full_matrices=False)
    shrunk = xp.maximum(s - tau, xp.zeros_like(s))
    return (u * shrunk[..., None, :]) @ vt


def effective_rank(
    spectrum: Float[Array, "*batch n"], *, kind: str = "entropy"
) -> Float[Array, "*batch"]:
    r"""Return the effective rank of a spectrum :math:`s \ge 0`, from 1 to n.

    With :math:`p_i = s_i / \sum_j s_j`,

    .. math::

        \text{entropy: } \exp\Bigl(-\sum_i p_i \log p_i\Bigr), \qquad
        \text{participation: } \frac{(\sum_i s_i)^2}{\sum_i s_i^2}
        = \frac{1}{\sum_i p_i^2} .

    Parameters
    ----------
    spectrum
        Eigenvalues or singular values, in any order; negative ones (rounding) count
        as zero.
    kind
        ``"entropy"`` [1]_ or ``"participation"``, which is never larger.

    Returns
    -------
    rank
        One number per batch entry; NaN for a spectrum of zeros.

    References
    ----------
    .. [1] Roy and Vetterli, The effective rank, 2007.

    Examples
    --------
    >>> import numpy as np
    >>> effective_rank(np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])).round(6)
    array([2., 1.])
    """
    check_choice("kind", kind, _RANK_KINDS)
    xp = check_float_arrays(spectrum=spectrum)
    if spectrum.ndim < 1 or 0 in spectrum.shape:
        fail("spectrum", "an array of shape (..., n)", spectrum)
    s = xp.where(spectrum > 0, spectrum, xp.zeros_like(spectrum))
    total = xp.sum(s, axis=-1, keepdims=True)
    none = total <= 0
    p = s / xp.where(none, xp.ones_like(total), total)
    if kind == "participation":
        squares = xp.sum(p * p, axis=-1)
        rank = 1 / xp.where(none[..., 0], xp.ones_like(squares), squares)
    else:
        # The limit of p log p at 0 is 0, but the logarithm alone is infinite there.
        logs = xp.log(xp.where(p > 0, p, xp.ones_like(p)))
        rank = xp.exp(-xp.sum(p * logs, axis=-1))
    return xp.where(none[..., 0], xp.full_like(rank, xp.nan), rank)
