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
    n: int, rate: float, random: np.random.RandomState
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return indices of tokens to fit, and of tokens for a threshold of this rate.

    At least as many are held out as a threshold needs, but no more than half.
    """
    count = min(max(int(_HELD_OUT * n), int(np.ceil(1 / rate))), n // 2)
    order = random.permutation(n)
    return np.sort(order[count:]), np.sort(order[:count])


def robust_scales(projected: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return medians, and median absolute deviations in units of a normal law."""
    centers = np.median(projected, axis=0)
    deviations = np.median(np.abs(projected - centers), axis=0) / _NORMAL_MAD
    # If half of the tokens coincide: the standard deviation, or any scale.
    deviations = np.where(deviations > 0, deviations, projected.std(axis=0))
    return centers, np.where(deviations > 0, deviations, 1.0)


def conformal_threshold(
    scores: NDArray[Any], rate: float, weights: FloatArray | None = None
) -> float:
    """Return the score that a further one exceeds with at most this probability.

    It is the order statistic of rank ``ceil((n + 1) (1 - rate))`` of `n` exchangeable
    scores, and infinite if there are too few. With weights, which are proportional to
    the ratio of the density of further tokens to that of the given ones, the further
    token counts as much as the heaviest given one [Tibshirani et al. 2019].
    """
    ones = np.ones(len(scores)) if weights is None else weights
    order = np.argsort(scores, kind="stable")
    mass = np.cumsum(ones[order])
    goal = (1 - rate) * (mass[-1] + ones.max())
    place = int(np.searchsorted(mass, goal * (1 - 1e-12)))
    return float(scores[order[place]]) if place < len(scores) else float("inf")


def gaussian_threshold(n_directions: int, rate: float) -> float:
    """Return the threshold for the largest of so many independent normal scores."""
    one = -np.expm1(np.log1p(-rate) / n_directions)
    return float(-ndtri(one / 2))
