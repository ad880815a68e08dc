"""Data and settings of one single-location fit, and its solution."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location_loss import HeadLoss

# Starts are compared on at most this many tokens, or on this many bags a feature.
_SCREEN_TOKENS = 50_000
_SCREEN_BAGS_A_FEATURE = 20

_SETTINGS = (
    "head",
    "kind",
    "alpha",
    "l1_ratio",
    "coherence",
    "shrinkage",
    "has_intercept",
    "max_iter",
    "tol",
)


@dataclass(frozen=True)
class Problem:
    """Data and settings of one fit; targets are standardised by the caller."""

    bags: Bags
    targets: FloatArray
    responses: FloatArray
    weights: FloatArray
    head: str
    kind: int
    alpha: float
    l1_ratio: float
    coherence: float
    shrinkage: float | None
    has_intercept: bool
    max_iter: int
    tol: float

    @property
    def n_outputs(self) -> int:
        """Number of value vectors."""
        return self.responses.shape[1]

    def on(self, chosen: NDArray[np.int64]) -> "Problem":
        """Return the problem on some of its bags."""
        return replace(
            self,
            bags=self.bags.take(chosen),
            targets=self.targets[chosen],
            responses=self.responses[chosen],
            weights=self.weights[chosen],
        )

    def mapped(self, change: Callable[[Bags], Bags]) -> "Problem":
        """Return the problem with other features of its tokens."""
        return replace(self, bags=change(self.bags))

    def parts(self) -> "Iterator[Problem]":
        """Yield the problem in the parts in which its bags are read: here, one."""
        yield self

    @property
    def weight(self) -> float:
        """Total weight of the bags."""
        return float(self.weights.sum())

    @property
    def size(self) -> float:
        """Number of bags, repeated as often as their weights say."""
        return max(self.weight, float(len(self.bags)))

    def screen(self) -> "Problem":
        """Return the problem on the bags on which starts are compared."""
        bags = self.bags
        return self.on(screened_bags(len(bags), *bags.tokens.shape))

    def loss(self, total: float | None = None) -> Any:
        """Return the mean loss, or this part of it when `total` is the whole weight."""
        return HeadLoss(
            self.bags,
            self.targets,
            self.weights,
            head=self.head,
            kind=self.kind,
            total=total,
        )

    def settings(self) -> dict[str, Any]:
        """Return all that is not data."""
        return {name: getattr(self, name) for name in _SETTINGS}


@dataclass(frozen=True)
class Solution:
    """Coefficients in the features as given, and how they were found."""

    key: FloatArray
    values: FloatArray
    intercepts: FloatArray
    objective: float
    n_iter: int
    converged: bool
    start: str
    center: FloatArray
    precision: FloatArray | None


def screened_bags(n: int, n_tokens: int, n_features: int) -> NDArray[np.int64]:
    """Choose bags, evenly spaced, on which starts are compared."""
    enough = max(
        int(n * _SCREEN_TOKENS / n_tokens), _SCREEN_BAGS_A_FEATURE * n_features
    )
    if enough >= n:
        return np.arange(n)
    return np.linspace(0, n - 1, enough).astype(np.int64)
