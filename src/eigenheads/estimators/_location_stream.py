"""The single-location fit over batches: the same sums, read in several passes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from eigenheads._checks import Got, fail
from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location_loss import HeadLoss
from eigenheads.estimators._location_problem import Problem, joined, screened_bags

# Bags, targets (numbers or labels) and weights, checked.
Read = Callable[[], Iterator[tuple[Bags, NDArray[Any], FloatArray]]]
# Targets as given to those of the loss and to responses, which starts are made from.
Encode = Callable[[NDArray[Any]], tuple[FloatArray, FloatArray]]


class Tally(Protocol):
    """Hears the targets of one batch after the other; says how to encode them."""

    def add(self, targets: NDArray[Any], weights: FloatArray) -> None:
        """Take the targets of a batch."""

    def encoder(self) -> Encode:
        """Return the encoding that all batches have decided."""


@dataclass
class Standard:
    """Mean and variance of numbers, merged over batches; encodes by standardising."""

    has_intercept: bool
    weight: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, targets: NDArray[Any], weights: FloatArray) -> None:
        """Take the targets of a batch."""
        added = float(weights.sum())
        own = float(np.average(targets, weights=weights))
        gap, total = own - self.mean, self.weight + added
        self.squares += float(weights @ (targets - own) ** 2)
        self.squares += gap**2 * self.weight * added / total
        self.mean += gap * added / total
        self.weight = total

    @property
    def shift(self) -> float:
        """What is subtracted from a target."""
        return self.mean if self.has_intercept else 0.0

    @property
    def scale(self) -> float:
        """What a shifted target is divided by."""
        variance = self.squares / self.weight
        spread = float(np.sqrt(variance + (self.mean - self.shift) ** 2))
        return spread if spread > 0 else 1.0

    def encoder(self) -> Encode:
        """Return the encoding that all batches have decided."""
        shift, scale = self.shift, self.scale

        def encode(targets: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
            unit = (targets - shift) / scale
            return unit, unit[:, None]

        return encode


@dataclass(frozen=True)
class StreamedProblem(Problem):
    """A problem whose bags are read in batches; its own arrays are empty.

    Targets are encoded as they are read, and bags without weight left out.
    """

    read: Read
    encode: Encode
    n_tokens: int
    n_bags: int
    total: float

    def parts(self) -> Iterator[Problem]:
        """Yield a problem a batch."""
        for bags, targets, weights in self.read():
            kept = np.flatnonzero(weights > 0)
            encoded, responses = self.encode(targets)
            part = Problem(
                bags=bags,
                targets=encoded,
                responses=responses,
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

        def changed() -> Iterator[tuple[Bags, NDArray[Any], FloatArray]]:
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
    read: Read, tally: Tally, settings: Callable[[], dict[str, Any]], *, owner: str
) -> StreamedProblem:
    """Return the problem, after a first pass that counts; settings may depend on it."""
    n_bags = n_tokens = 0
    total = 0.0
    tokens: NDArray[Any] | None = None
    example: NDArray[Any] | None = None
    for bags, targets, weights in read():
        if tokens is None:
            tokens, example = bags.tokens[:0].copy(), targets[:1]
        n_bags += int(np.count_nonzero(weights))
        n_tokens += int(bags.lengths[weights > 0].sum())
        total += float(weights.sum())
        tally.add(targets, weights)
    if tokens is None or example is None:
        fail("X", "at least one batch", Got("none"), owner=owner)
    encode = tally.encoder()
    return StreamedProblem(
        bags=Bags(tokens, np.zeros(1, dtype=np.int64)),
        targets=np.empty(0),
        responses=encode(example)[1][:0],
        weights=np.empty(0),
        **settings(),
        read=read,
        encode=encode,
        n_bags=n_bags,
        n_tokens=n_tokens,
        total=total,
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
