"""Orders of columns, tokens and bags that only their content decides.

A fit that sorts by them does the same operations on the same numbers in whichever order
the data are given, and in whichever unit.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._typing import FloatArray
from eigenheads.estimators._bag_targets import columns
from eigenheads.estimators._bags import Bags

# Data with more numbers are kept in single precision.
MANY_NUMBERS = 2**18


def rounded(tokens: NDArray[Any], mean: FloatArray, scale: FloatArray) -> NDArray[Any]:
    """Return standardised tokens, rounded to single precision.

    What another unit or order changes are the last digits of double precision: they are
    gone, so that the fit sees the same numbers.
    """
    rows = np.asarray((tokens - mean) / scale, dtype=np.float32)
    return rows if rows.size > MANY_NUMBERS else rows.astype(np.float64)


def column_order(tokens: NDArray[Any]) -> NDArray[np.int64]:
    """Return the columns in an order that only their content decides."""
    sizes = np.einsum("ij,ij->i", tokens, tokens)
    moments = np.round(sizes @ tokens / max(float(sizes.sum()), 1e-300), 9)
    return np.lexsort([moments, tokens.min(axis=0), tokens.max(axis=0)])


def orders_by_content(
    bags: Bags, targets: NDArray[Any], mean: FloatArray, scale: FloatArray
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return orders of tokens within their bags, and of bags, that content decides.

    They are sorted by a fixed combination of the standardised columns. So a fit does
    the same operations on the same numbers in whichever order they are given.
    """
    tokens = rounded(bags.tokens, mean, scale)
    factors = np.sqrt(2.0 + np.arange(tokens.shape[1])) % 1.0 + 0.5
    keys = np.zeros(len(tokens))
    for column, factor in zip(column_order(tokens), factors, strict=True):
        keys += factor * tokens[:, column]  # the same operations for every token
    within = np.lexsort([keys, bags.spread(np.arange(len(bags)))])
    sums = bags.sums(keys[within])
    return within, np.lexsort([*columns(targets).T, sums, bags.lengths])
