"""Checks and links that all estimators share."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, metadata
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from eigenheads._checks import (
    Got,
    fail,
    without_traps,
)
from eigenheads._typing import FloatArray


def check_verbose(value: object) -> None:
    """Raise unless this is True, False, or an integer >= 0.

    Examples
    --------
    >>> check_verbose(1)
    """
    is_whole = isinstance(value, Integral | np.bool_)
    if not is_whole or value < 0:  # type: ignore[operator]
        fail("verbose", "True, False or an integer >= 0", value)


def check_has_fit(name: str, value: Any) -> None:
    """Raise unless this is an estimator.

    Examples
    --------
    >>> from sklearn.linear_model import Ridge
    >>> check_has_fit("estimator", Ridge())
    """
    if not hasattr(value, "fit") or isinstance(value, type):
        fail(name, "an estimator", value, error=TypeError)


# --- Weights of rows -----------------------------------------------------------------


# Rows are repeated at most so often on average.
_MOST_REPEATED = 8


def read_row_weights(sample_weight: Any, n: int) -> FloatArray | None:
    """Return the weights of `n` rows in double precision; None if all are equal.

    Parameters
    ----------
    sample_weight
        None, or `n` numbers that are not negative, at least one of them positive.
    n
        Number of rows.
    """
    if sample_weight is None:
        return None
    sample_weight = without_traps("sample_weight", sample_weight)
    try:
        weights = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError):
        fail("sample_weight", "numbers", sample_weight)
    if weights.shape != (n,):
        contract = f"of shape ({n},), one weight per row"
        fail("sample_weight", contract, Got(weights.shape))
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        fail("sample_weight", "finite numbers >= 0", sample_weight)
    if not weights.any():
        contract = "numbers of which at least one is not zero"
        fail("sample_weight", contract, Got("zeros"))
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
    target = min(max(total, count), _MOST_REPEATED * count)
    copies = weights * (target / total)
    near = np.round(copies)
    if np.allclose(copies, near, rtol=1e-12, atol=1e-9):
        copies = near
    else:
        ends = np.cumsum(copies) + random.random_sample()
        copies = np.diff(np.floor(ends), prepend=0.0)
    return np.repeat(np.arange(len(weights)), copies.astype(np.int64))


# --- Links to the documentation ------------------------------------------------------


_PAGE = "api/generated/{estimator_module}.{estimator_name}.html"
# Stands in addresses of the project until it has a home.
_PLACEHOLDER = "OWNER"


def documentation_address(urls: Iterable[str]) -> str:
    """Return the address of the documentation among the URLs of a package, or nothing.

    Examples
    --------
    >>> documentation_address(["Source, https://a.org", "Documentation, https://b.org"])
    'https://b.org'
    >>> documentation_address(["Documentation, https://OWNER.github.io"])
    ''
    """
    for url in urls:
        label, _, address = url.partition(", ")
        if label == "Documentation" and _PLACEHOLDER not in address:
            return address.rstrip("/")
    return ""


def link_to_documentation(names: Iterable[object], address: str | None = None) -> None:
    """Let the HTML view of every estimator among these objects link to its page.

    Parameters
    ----------
    names
        Public objects of the package; those that are no estimators are left alone.
    address
        Address of the documentation; None means that of the package's metadata.
    """
    if address is None:
        try:
            address = documentation_address(
                metadata("eigenheads").get_all("Project-URL", [])
            )
        except PackageNotFoundError:
            address = ""
    for item in names:
        if isinstance(item, type) and issubclass(item, BaseEstimator):
            # scikit-learn links its own pages unless these names are set.
            cls: Any = item
            cls._doc_link_module = "eigenheads" if address else ""
            cls._doc_link_template = f"{address}/{_PAGE}"
