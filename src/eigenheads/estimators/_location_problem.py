"""Data and settings of one single-location fit, and its solution."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location_head import token_scores
from eigenheads.estimators._location_loss import HeadLoss

# Starts are compared on at most this many tokens, or on this many bags a feature.
_SCREEN_TOKENS = 50_000
_SCREEN_BAGS_A_FEATURE = 10
# Tokens that count are gathered where they are at most this share of all, and at most
# this many numbers (32 MB): a stream stays a stream, and its fit that in memory.
_MOST_GATHERED = 0.5
_MOST_NUMBERS = 2**22

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

    def attentive(self, key: FloatArray, margin: float) -> "Problem | None":
        """Return the problem on the tokens whose weights count, or None if most do.

        Of each bag these are the tokens with a score of at least the largest minus
        `margin`: weights of the others are below ``exp(-margin)``.
        """
        if self.head == "erf":
            return None
        taken: list[Problem] = []
        n_numbers, n_tokens = 0, 0
        for part in self.parts():
            scores = token_scores(part.bags, key)
            tops = np.maximum.reduceat(scores, part.bags.starts)
            kept = scores >= np.repeat(tops - margin, part.bags.lengths)
            n_tokens += len(kept)
            n_numbers += int(np.count_nonzero(kept)) * part.bags.tokens.shape[1]
            if n_numbers > _MOST_NUMBERS:
                return None
            taken.append(replace(part, bags=part.bags.keep(kept)))
        whole = taken[0] if len(taken) == 1 else joined(taken)
        is_small = len(whole.bags.tokens) <= _MOST_GATHERED * n_tokens
        return whole if is_small else None

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


def joined(parts: list[Problem]) -> Problem:
    """Return the bags of several problems as one."""
    bags = [part.bags for part in parts]
    lengths: NDArray[Any] = np.concatenate([some.lengths for some in bags])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    radii = None
    if bags[0].radii is not None:
        radii = np.concatenate([np.asarray(some.radii) for some in bags])
    tokens = np.concatenate([some.tokens for some in bags])
    return Problem(
        bags=Bags(tokens, offsets, radii),
        targets=np.concatenate([part.targets for part in parts]),
        responses=np.concatenate([part.responses for part in parts]),
        weights=np.concatenate([part.weights for part in parts]),
        **parts[0].settings(),
    )


def screened_bags(n: int, n_tokens: int, n_features: int) -> NDArray[np.int64]:
    """Choose bags, evenly spaced, on which starts are compared."""
    enough = max(
        int(n * _SCREEN_TOKENS / n_tokens), _SCREEN_BAGS_A_FEATURE * n_features
    )
    if enough >= n:
        return np.arange(n)
    return np.linspace(0, n - 1, enough).astype(np.int64)
