"""Scales of nuisance tokens along directions, and thresholds that keep a rate."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from eigenheads._typing import FloatArray

# Median absolute deviation of a standard normal.
_NORMAL_MAD = float(ndtri(0.75))
# Share of the tokens held out for a conformal threshold.
_HELD_OUT = 0.2


def hold_out(
    tokens: NDArray[Any], rate: float, random: np.random.RandomState
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return tokens to fit, and tokens for a threshold of this rate.

    At least as many are held out as a threshold needs, but no more than half.
    """
    n = len(tokens)
    count = min(max(int(_HELD_OUT * n), int(np.ceil(1 / rate))), n // 2)
    order = random.permutation(n)
    return tokens[np.sort(order[count:])], tokens[np.sort(order[:count])]


def robust_scales(projected: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return medians, and median absolute deviations in units of a normal law."""
    centers = np.median(projected, axis=0)
    deviations = np.median(np.abs(projected - centers), axis=0) / _NORMAL_MAD
    # If half of the tokens coincide: the standard deviation, or any scale.
    deviations = np.where(deviations > 0, deviations, projected.std(axis=0))
    return centers, np.where(deviations > 0, deviations, 1.0)


def conformal_threshold(scores: NDArray[Any], rate: float) -> float:
    """Return the score that a further one exceeds with at most this probability.

    It is the order statistic of rank ``ceil((n + 1) (1 - rate))`` of `n` exchangeable
    scores, and infinite if there are too few.
    """
    rank = int(np.ceil((len(scores) + 1) * (1 - rate) - 1e-9))
    if rank > len(scores):
        return float("inf")
    return float(np.partition(scores, rank - 1)[rank - 1])
