"""The single-location head on ragged bags: weights of tokens, outputs of bags.

On bags of one length this is :func:`eigenheads.functional.location_predictor`.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from eigenheads.estimators._bags import Bags

HEADS = ("softmax", "radial", "erf")
# Rows of a chunk of radii: a few hundred kB, so that it stays in the cache.
_CHUNK = 1_024


def attention_weights(
    bags: Bags, scores: NDArray[Any], *, head: str
) -> NDArray[np.floating]:
    r"""Return the weight of each token in its bag.

    .. math::

        p_l = \frac{e^{s_l}}{\sum_m e^{s_m}} \ (\text{softmax}), \qquad
        p_l = \operatorname{erf}(s_l) \ (\text{erf}).

    Examples
    --------
    >>> bags = Bags(np.zeros((3, 1)), np.array([0, 2, 3]))
    >>> attention_weights(bags, np.array([5.0, 5.0, 1.0]), head="softmax")
    array([0.5, 0.5, 1. ])
    """
    if head == "erf":
        return np.asarray(erf(scores))
    peaks = np.maximum.reduceat(scores, bags.starts)
    weights = np.exp(scores - np.repeat(peaks, bags.lengths))
    weights /= np.repeat(np.add.reduceat(weights, bags.starts), bags.lengths)
    return np.asarray(weights)


def token_scores(bags: Bags, key: NDArray[Any]) -> NDArray[np.floating]:
    """Return the score of each token; a key with one entry more reads the radii."""
    d = bags.tokens.shape[1]
    scores = bags.tokens @ key[:d]
    if bags.radii is not None:
        scores += key[d] * bags.radii
    return np.asarray(scores)


def head_outputs(
    bags: Bags, key: NDArray[Any], values: NDArray[Any], *, head: str
) -> NDArray[np.floating]:
    r"""Return :math:`\sum_l p_l \, x_l \cdot v_c` of each bag (row) and value (column).

    `values` has one row :math:`v_c` an output; the score of a token is `key` times it.
    """
    weights = attention_weights(bags, bags.tokens @ key, head=head)
    return attended_readouts(bags, weights, values)


def attended_readouts(
    bags: Bags, weights: NDArray[Any], values: NDArray[Any]
) -> NDArray[np.floating]:
    """Return the weighted sum of the readouts of each bag, one column a value."""
    readouts = bags.tokens @ values.T
    return np.add.reduceat(weights[:, None] * readouts, bags.starts, axis=0)


def squared_radii(
    tokens: NDArray[Any], center: NDArray[Any], precision: NDArray[Any]
) -> NDArray[np.floating]:
    r"""Return :math:`(x - m)^\top P (x - m)` of each token, in its floating type.

    A `precision` with one axis is a diagonal.

    Examples
    --------
    >>> squared_radii(np.array([[3.0, 0.0], [1.0, 2.0]]), np.ones(2), np.eye(2))
    array([5., 1.])
    """
    center, precision = center.astype(tokens.dtype), precision.astype(tokens.dtype)
    radii = np.empty(len(tokens), dtype=tokens.dtype)
    for start in range(0, len(tokens), _CHUNK):
        rows = tokens[start : start + _CHUNK] - center
        moved = rows * precision if precision.ndim == 1 else rows @ precision
        radii[start : start + _CHUNK] = np.einsum("ij,ij->i", rows, moved)
    return radii


def deciding_tokens(
    bags: Bags, scores: NDArray[Any], *, head: str
) -> NDArray[np.int64]:
    """Return the index, within each bag, of the token with the largest weight.

    For ``erf`` the largest in absolute value: read from the scores, since distinct
    large scores share the weight 1 in floating point. Ties go to the first token.
    """
    size = np.abs(scores) if head == "erf" else scores
    peaks = np.maximum.reduceat(size, bags.starts)
    is_peak = size == np.repeat(peaks, bags.lengths)
    rows = np.where(is_peak, np.arange(len(size)), len(size))
    return np.minimum.reduceat(rows, bags.starts) - bags.starts
