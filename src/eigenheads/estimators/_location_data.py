"""Targets and weights of bags, checked."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array
from sklearn.utils.validation import column_or_1d

from eigenheads._checks import Got, fail
from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags


def checked_targets(y: ArrayLike | None, bags: Bags, *, owner: str) -> NDArray[Any]:
    """Return the targets, one a bag, or raise."""
    if y is None:
        raise ValueError(f"{owner} requires y to be passed, but the target y is None.")
    targets = np.asarray(column_or_1d(y, warn=True))
    if len(targets) != len(bags):
        hint = ""
        if len(targets) == len(bags.tokens):
            hint = "There is one for each token: `group_bags(...).first_rows` helps."
        got = Got(f"{len(targets)} targets for {len(bags)} bags")
        fail("y", "one target a bag", got, owner=owner, hint=hint)
    return targets


def checked_numbers(targets: NDArray[Any], *, owner: str) -> FloatArray:
    """Return targets as finite numbers, or raise."""
    try:
        numbers = targets.astype(np.float64)
    except (TypeError, ValueError):
        hint = "For classes there is SingleLocationClassifier."
        fail("y", "numbers", targets, owner=owner, hint=hint)
    return np.asarray(check_array(numbers, ensure_2d=False, input_name="y"))


def checked_weights(
    sample_weight: ArrayLike | None, bags: Bags, *, owner: str
) -> FloatArray:
    """Return the weights, one a bag, or raise; ones by default."""
    if sample_weight is None:
        return np.ones(len(bags))
    weights = np.asarray(
        check_array(sample_weight, ensure_2d=False, input_name="sample_weight"),
        dtype=np.float64,
    )
    if weights.shape != (len(bags),):
        contract = f"one weight a bag, of shape ({len(bags)},)"
        fail("sample_weight", contract, weights, owner=owner)
    if weights.min() < 0 or not weights.sum() > 0:
        got = Got(f"numbers from {weights.min():g} to {weights.max():g}")
        contract = "weights >= 0, not all of them zero"
        fail("sample_weight", contract, got, owner=owner)
    return weights
