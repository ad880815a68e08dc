"""Effective rank of a spectrum."""

from jaxtyping import Float

from eigenheads._checks import check_choice, check_float_arrays, fail
from eigenheads._typing import Array

_KINDS = ("entropy", "participation")


def effective_rank(
    spectrum: Float[Array, "*batch n"], *, kind: str = "entropy"
) -> Float[Array, "*batch"]:
    r"""How many directions carry a spectrum :math:`s \ge 0`; from 1 to n.

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
        One number a batch entry; NaN for a spectrum of zeros.

    References
    ----------
    .. [1] Roy and Vetterli, The effective rank, 2007.

    Examples
    --------
    >>> import numpy as np
    >>> effective_rank(np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])).round(6)
    array([2., 1.])
    """
    owner = "effective_rank"
    check_choice("kind", kind, _KINDS, owner=owner)
    xp = check_float_arrays(owner, spectrum=spectrum)
    if spectrum.ndim < 1 or 0 in spectrum.shape:
        fail("spectrum", "an array of shape (..., n)", spectrum, owner=owner)
    s = xp.where(spectrum > 0, spectrum, xp.zeros_like(spectrum))
    total = xp.sum(s, axis=-1, keepdims=True)
    none = total <= 0
    p = s / xp.where(none, xp.ones_like(total), total)
    if kind == "participation":
        squares = xp.sum(p * p, axis=-1)
        rank = 1 / xp.where(none[..., 0], xp.ones_like(squares), squares)
    else:
        logs = xp.log(xp.where(p > 0, p, xp.ones_like(p)))
        rank = xp.exp(-xp.sum(p * logs, axis=-1))
    return xp.where(none[..., 0], xp.full_like(rank, xp.nan), rank)
