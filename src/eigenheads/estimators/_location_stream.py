"""The single-location fit over batches: the same sums, read in several passes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._checks import Got, fail
from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location_loss import HeadLoss
from eigenheads.estimators._location_problem import Problem, screened_bags

# Bags, targets and weights, checked.
Read = Callable[[], Iterator[tuple[Bags, FloatArray, FloatArray]]]


@dataclass(frozen=True)
class Totals:
    """What one pass over the batches says of the bags that have weight.

    `tokens` is an empty array of their width and type.
    """

    tokens: NDArray[Any]
    n_bags: int
    n_tokens: int
    weight: float
    mean: float
    variance: float


def count_batches(read: Read, *, owner: str) -> Totals:
    """Count bags and tokens; mean and variance of the targets, merged over batches."""
    n_bags = n_tokens = 0
    tokens = None
    weight = mean = squares = 0.0
    for bags, targets, weights in read():
        if tokens is None:
            tokens = bags.tokens[:0].copy()
        n_bags += int(np.count_nonzero(weights))
        n_tokens += int(bags.lengths[weights > 0].sum())
        added = float(weights.sum())
        own = float(np.average(targets, weights=weights))
        gap, total = own - mean, weight + added
        squares += float(weights @ (targets - own) ** 2)
        squares += gap**2 * weight * added / total
        mean += gap * added / total
        weight = total
    if tokens is None:
        fail("X", "at least one batch", Got("none"), owner=owner)
    return Totals(tokens, n_bags, n_tokens, weight, mean, squares / weight)


@dataclass(frozen=True)
class StreamedProblem(Problem):
    """A problem whose bags are read in batches; its own arrays are empty.

    Targets are standardised as they are read, and bags without weight left out.
    """

    read: Read
    n_tokens: int
    n_bags: int
    total: float
    shift: float
    scale: float

    def parts(self) -> Iterator[Problem]:
        """Yield a problem a batch."""
        for bags, targets, weights in self.read():
            kept = np.flatnonzero(weights > 0)
            standardised = (targets - self.shift) / self.scale
            part = Problem(
                bags=bags,
                targets=standardised,
                responses=standardised[:, None],
                weights=weights,
                **self.settings(),
            )
            if len(kept) == len(bags):
                yield part
            elif len(kept):
                yield part.on(kept)

    def mapped(self, change: Callable[[Bags], Bags]) -> "StreamedProblem":
        """Return the problem with other features of its tokens, as they are read."""
        read = self.read

        def changed() -> Iterator[tuple[Bags, FloatArray, FloatArray]]:
            for bags, targets, weights in read():
                yield change(bags), targets, weights

        return replace(self, bags=change(self.bags), read=changed)

    @property
    def weight(self) -> float:
        """Total weight of the bags."""
        return self.total

    @property
    def size(self) -> float:
        """Number of bags, repeated as often as their weights say."""
        return max(self.total, float(self.n_bags))

    def screen(self) -> Problem:
        """Gather the bags, evenly spaced over all batches, that starts are tried on."""
        chosen = screened_bags(self.n_bags, self.n_tokens, self.bags.tokens.shape[1])
        taken, first = [], 0
        for part in self.parts():
            here = chosen[(chosen >= first) & (chosen < first + len(part.bags))]
            first += len(part.bags)
            if len(here):
                taken.append(part.on(here - first + len(part.bags)))
        return joined(taken)

    def loss(self, total: float | None = None) -> "StreamedLoss":
        """Return the mean loss over all batches."""
        del total
        return StreamedLoss(self)


def streamed_problem(
    read: Read, settings: dict[str, Any], *, owner: str
) -> StreamedProblem:
    """Return the problem, after a first pass that counts."""
    totals = count_batches(read, owner=owner)
    shift = totals.mean if settings["has_intercept"] else 0.0
    spread = float(np.sqrt(totals.variance + (totals.mean - shift) ** 2))
    return StreamedProblem(
        bags=Bags(totals.tokens, np.zeros(1, dtype=np.int64)),
        targets=np.empty(0),
        responses=np.empty((0, 1)),
        weights=np.empty(0),
        **settings,
        read=read,
        n_bags=totals.n_bags,
        n_tokens=totals.n_tokens,
        total=totals.weight,
        shift=shift,
        scale=spread if spread > 0 else 1.0,
    )


def joined(parts: list[Problem]) -> Problem:
    """Return the bags of several problems as one."""
    lengths: NDArray[Any] = np.concatenate([part.bags.lengths for part in parts])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Problem(
        bags=Bags(np.concatenate([part.bags.tokens for part in parts]), offsets),
        targets=np.concatenate([part.targets for part in parts]),
        responses=np.concatenate([part.responses for part in parts]),
        weights=np.concatenate([part.weights for part in parts]),
        **parts[0].settings(),
    )


class StreamedLoss:
    """The loss of :class:`HeadLoss` summed over batches: a pass a call."""

    def __init__(self, problem: StreamedProblem) -> None:
        self._problem = problem
        self.head = problem.head

    @contextmanager
    def threads(self) -> Iterator[None]:
        """Do nothing: each batch keeps threads for itself."""
        yield

    def __call__(
        self, rows: FloatArray, intercepts: FloatArray
    ) -> tuple[float, FloatArray, FloatArray]:
        """Return the loss and its gradients by rows (key, values) and intercepts."""
        value = 0.0
        by_rows, by_intercepts = np.zeros(rows.shape), np.zeros(intercepts.shape)
        for loss in self._losses():
            with loss.threads():
                part, part_rows, part_intercepts = loss(rows, intercepts)
            value += part
            by_rows += part_rows
            by_intercepts += part_intercepts
        return value, by_rows, by_intercepts

    def attended(self, key: FloatArray) -> tuple[FloatArray, float]:
        """Return the weighted sum of attended tokens, and of the weights."""
        sums = [loss.attended(key) for loss in self._losses()]
        return np.sum([vector for vector, _ in sums], axis=0), sum(w for _, w in sums)

    def _losses(self) -> Iterator[HeadLoss]:
        for part in self._problem.parts():
            yield part.loss(self._problem.weight)
