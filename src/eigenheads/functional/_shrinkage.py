"""Shrinkage, the proximal map of the sum of absolute values."""

from jaxtyping import Float

from eigenheads._checks import check_float_arrays, fail
from eigenheads._typing import Array


def soft_threshold(
    x: Float[Array, "*shape"], threshold: float | Float[Array, "*#shape"]
) -> Float[Array, "*shape"]:
    r"""Shrinkage: move every entry towards zero, at most by the threshold.

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
    xp = check_float_arrays("soft_threshold", x=x, finite=False)
    if isinstance(threshold, int | float):
        threshold = _check_threshold(threshold)
    return xp.sign(x) * xp.maximum(xp.abs(x) - threshold, xp.zeros_like(x))


def _check_threshold(value: float) -> float:
    """Return a threshold >= 0 (infinity counts), or raise."""
    if not value >= 0:
        fail("threshold", "a number >= 0", value, owner="soft_threshold")
    return float(value)
