"""Weights of rows, for estimators that count some rows more than others."""

from typing import Any

import numpy as np

from eigenheads._checks import (
    Got,
    fail,
    without_traps,
)
from eigenheads._typing import FloatArray


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
