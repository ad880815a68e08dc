"""Checks of parameters that several estimators have."""

from numbers import Integral
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from eigenheads._checks import fail


def check_verbose(value: object, *, owner: str) -> None:
    """Raise unless this is True, False, or an integer >= 0.

    Examples
    --------
    >>> check_verbose(1, owner="RobustPCA")
    """
    is_whole = isinstance(value, Integral | np.bool_)
    if not is_whole or value < 0:  # type: ignore[operator]
        fail("verbose", "True, False or an integer >= 0", value, owner=owner)


def random_source(random_state: Any, *, owner: str) -> np.random.RandomState:
    """Return the generator that a `random_state` stands for, or raise.

    Examples
    --------
    >>> random_source(0, owner="RobustPCA").randint(10)
    5
    """
    try:
        return check_random_state(random_state)
    except (ValueError, TypeError):
        contract = "None, an integer from 0 to 2**32 - 1, or a RandomState"
        fail("random_state", contract, random_state, owner=owner)


def check_has_fit(name: str, value: Any, *, owner: str) -> None:
    """Raise unless this is an estimator.

    Examples
    --------
    >>> from sklearn.linear_model import Ridge
    >>> check_has_fit("estimator", Ridge(), owner="PooledBagRegressor")
    """
    if not hasattr(value, "fit") or isinstance(value, type):
        fail(name, "an estimator", value, owner=owner, error=TypeError)
