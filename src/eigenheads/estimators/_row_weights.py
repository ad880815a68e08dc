"""Weights of rows, for estimators that count some rows more than others."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._checks import (
    Got,
    fail,
    without_traps,
)
from eigenheads._typing import FloatArray

# Rows are repeated at most so often on average.
_MOST_REPEATED = 8


def read_row_weights(sample_weight: Any, n: int, *, owner: str) -> FloatArray | None:
    """Return the weights of `n` rows in double precision; None if all are equal.

    Parameters
    ----------
    sample_weight
        None, or `n` numbers that are not negative, at least one of them positive.
    n
        Number of rows.
    owner
        Name of the estimator, for errors.
    """
    if sample_weight is None:
        return None
    sample_weight = without_traps("sample_weight", sample_weight, owner=owner)
    try:
        weights = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError):
        fail("sample_weight", "numbers", sample_weight, owner=owner)
    if weights.shape != (n,):
        contract = f"of shape ({n},), one weight per row"
        fail("sample_weight", contract, Got(weights.shape), owner=owner)
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        fail("sample_weight", "finite numbers >= 0", sample_weight, owner=owner)
    if not weights.any():
        contract = "numbers of which at least one is not zero"
        fail("sample_weight", contract, Got("zeros"), owner=owner)
    return weights


def repeated_rows(
    weights: FloatArray, random: np.random.RandomState
) -> NDArray[np.int64]:
    """Return indices of rows, each about as often as it weighs.

    Integer weights are counts, and the indices are those of :func:`numpy.repeat`.
    Other weights are rounded at random (systematic resampling), so that each row has
    its weight on average. Weights with a sum below their number are scaled to that
    number. There are at most eight times as many indices as positive weights.

    Parameters
    ----------
    weights
        One weight per row.
    random
        Source of the rounding; not used for integer weights.
    """
    count, total = int(np.count_nonzero(weights)), float(weights.sum())
    wanted = min(max(total, count), _MOST_REPEATED * count)
    copies = weights * (wanted / total)
    near = np.round(copies)
    if np.allclose(copies, near, rtol=1e-12, atol=1e-9):
        copies = near
    else:
        ends = np.cumsum(copies) + random.random_sample()
        copies = np.diff(np.floor(ends), prepend=0.0)
    return np.repeat(np.arange(len(weights)), copies.astype(np.int64))


def weighted_quantile(
    values: FloatArray, weights: FloatArray | None, share: float
) -> float:
    """Return a quantile as if values were repeated as often as they weigh.

    Where the share is reached exactly between two values, it is their mean.
    """
    order = np.argsort(values, kind="stable")
    ones = np.ones(len(values)) if weights is None else weights
    order = order[ones[order] > 0]
    mass = np.cumsum(ones[order])
    goal = share * mass[-1]
    ends = np.searchsorted(mass, [goal * (1 - 1e-12), goal * (1 + 1e-12)])
    found = values[order[np.minimum(ends, len(order) - 1)]]
    return float(found.mean())
