"""Bags of a fit: read batch by batch, in an order that content decides, in folds."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from eigenheads._checks import Got, fail
from eigenheads._typing import FloatArray
from eigenheads.estimators._bag_order import orders_by_content
from eigenheads.estimators._bag_targets import (
    LOGISTIC,
    MULTINOMIAL,
    AbstractLoss,
    Encoding,
    class_weights,
    columns,
)
from eigenheads.estimators._bags import Bags

# Starts are compared on at most this many tokens, or this many bags per feature, but
# not for more bags than are needed to rank a few starts.
_SCREEN_TOKENS = 50_000
_SCREEN_BAGS_PER_FEATURE = 10
_SCREEN_BAGS = 1_000
# Attended tokens are gathered if they are at most this share of all tokens and, of a
# stream, at most this many numbers (32 MB), so that it never has to fit in memory.
_MOST_GATHERED = 0.5
_MOST_NUMBERS = 2**22
N_FOLDS = 5
# A stream with fewer numbers (32 MB) is kept in memory.
_SMALL_STREAM = 2**22

# Checked bags, targets as given and weights, read again in every pass.
ReadBatches: TypeAlias = Callable[[], Iterator[tuple[Bags, NDArray[Any], FloatArray]]]


@dataclass(frozen=True)
class HeadSettings:
    """Settings of one fit, checked; the estimators document them."""

    head: str
    kind: AbstractLoss
    alpha: float
    l1_ratio: float
    coherence: float
    shrinkage: float | None
    has_intercept: bool
    max_iter: int
    tol: float
    n_heads: int = 1


@dataclass(frozen=True)
class LabelledBags:
    """Bags in memory with one target, one row of responses and one weight per bag.

    `folds` are the folds in which the caller wants the bags to be held out, if any.
    """

    bags: Bags
    targets: FloatArray
    responses: FloatArray
    weights: FloatArray
    folds: NDArray[np.int64] | None = None

    def take(self, chosen: NDArray[np.int64]) -> "LabelledBags":
        """Return the chosen bags."""
        return LabelledBags(
            bags=self.bags.take(chosen),
            targets=self.targets[chosen],
            responses=self.responses[chosen],
            weights=self.weights[chosen],
            folds=None if self.folds is None else self.folds[chosen],
        )


def joined(parts: list[LabelledBags]) -> LabelledBags:
    """Concatenate several sets of bags."""
    if len(parts) == 1:
        return parts[0]
    bags = [part.bags for part in parts]
    lengths: NDArray[Any] = np.concatenate([some.lengths for some in bags])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = np.concatenate([some.tokens for some in bags])
    return LabelledBags(
        bags=Bags(tokens, offsets),
        targets=np.concatenate([part.targets for part in parts]),
        responses=np.concatenate([part.responses for part in parts]),
        weights=np.concatenate([part.weights for part in parts]),
    )


@dataclass(frozen=True)
class LocationData:
    """All bags of a fit, read batch by batch as often as needed.

    Bags in memory are a single batch that is kept; a stream is read anew in each pass.

    Parameters
    ----------
    read
        Begins a pass over the batches; all weights are positive.
    n_bags, n_tokens, weight
        Totals over all batches.
    n_features, n_outputs, dtype
        Width of a token, number of value vectors, floating type of the tokens.
    is_stream
        Whether batches are read anew in each pass.
    """

    read: Callable[[], Iterable[LabelledBags]]
    n_bags: int
    n_tokens: int
    weight: float
    n_features: int
    n_outputs: int
    dtype: np.dtype[Any]
    is_stream: bool

    @property
    def size(self) -> float:
        """Number of bags, repeated as often as their weights say."""
        return max(self.weight, float(self.n_bags))

    def mapped(self, change: Callable[[Bags], Bags]) -> "LocationData":
        """Return the data with changed bags; a stream changes them as it is read."""
        return self.changed(lambda batch: replace(batch, bags=change(batch.bags)))

    def changed(self, change: Callable[[LabelledBags], LabelledBags]) -> "LocationData":
        """Return the data with changed batches."""
        read = self.read

        def changed() -> Iterator[LabelledBags]:
            for batch in read():
                yield change(batch)

        if self.is_stream:
            return replace(self, read=changed)
        kept = list(changed())
        return replace(self, read=lambda: kept)

    def screen(self) -> LabelledBags:
        """Return the bags on which starts are compared."""
        return self.sample(
            max(
                int(self.n_bags * _SCREEN_TOKENS / self.n_tokens),
                min(_SCREEN_BAGS_PER_FEATURE * self.n_features, _SCREEN_BAGS),
            )
        )

    def sampled(self, enough: int) -> NDArray[np.int64]:
        """Return the numbers of at most so many bags, evenly spaced over all."""
        if enough >= self.n_bags:
            return np.arange(self.n_bags)
        return np.linspace(0, self.n_bags - 1, enough).astype(np.int64)

    def sample(self, enough: int) -> LabelledBags:
        """Return these bags, in memory."""
        chosen = self.sampled(enough)
        taken, first = [], 0
        for batch in self.read():
            after = first + len(batch.bags)
            here = chosen[(chosen >= first) & (chosen < after)]
            if len(here):
                taken.append(batch.take(here - first))
            first = after
        return joined(taken)

    def attentive(
        self, keys: FloatArray, margin: float, *, head: str
    ) -> "LocationData | None":
        """Return the tokens whose weights count, in memory, or None if most do.

        In each bag these are the tokens whose score is at least the largest minus
        `margin`, for any of the keys: weights of the others are below ``exp(-margin)``.
        """
        if head not in ("softmax", "radial"):  # weights are not relative to others
            return None
        taken: list[LabelledBags] = []
        n_numbers = 0
        for batch in self.read():
            scores = batch.bags.products(keys)
            tops = batch.bags.spread(batch.bags.largest(scores))
            counted = np.asarray((scores >= tops - margin).any(axis=1))
            n_numbers += int(np.count_nonzero(counted)) * self.n_features
            if self.is_stream and n_numbers > _MOST_NUMBERS:
                return None
            if n_numbers > _MOST_GATHERED * self.n_tokens * self.n_features:
                return None
            taken.append(replace(batch, bags=batch.bags.keep(counted)))
        return data_in_memory(joined(taken))


def data_in_memory(batch: LabelledBags) -> LocationData:
    """Return bags in memory as data; bags of weight zero are left out."""
    kept = np.flatnonzero(batch.weights > 0)
    if len(kept) < len(batch.bags):
        batch = batch.take(kept)
    return LocationData(
        read=lambda: [batch],
        n_bags=len(batch.bags),
        n_tokens=len(batch.bags.tokens),
        weight=float(batch.weights.sum()),
        n_features=batch.bags.tokens.shape[1],
        n_outputs=batch.responses.shape[1],
        dtype=batch.bags.tokens.dtype,
        is_stream=False,
    )


def targets_alone(data: LocationData) -> LabelledBags:
    """Return targets and weights of all bags, in memory, with one empty token each."""
    parts = []
    for batch in data.read():
        n = len(batch.bags)
        empty = Bags(np.zeros((n, 0)), np.arange(n + 1))
        parts.append(replace(batch, bags=empty))
    return joined(parts)


def in_standard_order(
    batch: LabelledBags, mean: FloatArray, scale: FloatArray
) -> LabelledBags:
    """Sort bags, and the tokens in them, by their content."""
    bags = batch.bags
    within, ranks = orders_by_content(bags, batch.targets, mean, scale)
    sorted_bags = Bags(bags.tokens[within], bags.offsets)
    return replace(batch, bags=sorted_bags).take(ranks)


def in_class_order(
    data: LocationData, kind: AbstractLoss
) -> tuple[LocationData, NDArray[np.int64]]:
    """Return data whose classes are numbered as they first occur in sorted bags.

    So the fit does the same operations whatever the names of the classes are.

    Returns
    -------
    data
        Data with other targets.
    order
        Outputs as given, in their new order; a single 1 if two classes are exchanged.
    """
    order = np.arange(data.n_outputs)
    is_binary = kind == LOGISTIC and data.n_outputs == 1
    if data.is_stream or not (is_binary or kind == MULTINOMIAL):
        return data, order
    (batch,) = data.read()
    codes = batch.targets.ravel().astype(np.int64)
    present, first = np.unique(codes, return_index=True)
    by_occurrence = present[np.argsort(first)]
    if is_binary:
        if by_occurrence[0] == 0:
            return data, order
        batch = replace(batch, targets=1 - batch.targets, responses=-batch.responses)
        return replace(data, read=lambda: [batch]), np.ones(1, dtype=np.int64)
    order = np.append(by_occurrence, np.setdiff1d(order, present))
    ranks = np.argsort(order).astype(np.float64)
    responses = batch.responses[:, order]
    batch = replace(batch, targets=ranks[codes], responses=responses)
    return replace(data, read=lambda: [batch]), order


def fold_of_bag(batch: LabelledBags) -> tuple[NDArray[np.int64], int]:
    """Return the fold of each bag, and the number of different bags.

    Equal bags are in one fold, so that repetitions count as weights do. Sorted by
    target and content, consecutive bags are in different folds; so folds have similar
    targets and do not depend on the order in which bags are given.
    """
    if batch.folds is not None:
        return batch.folds, len(batch.folds)
    digests = [
        hashlib.blake2b(np.ascontiguousarray(bag).tobytes(), digest_size=8).hexdigest()
        for bag in batch.bags.split(batch.bags.tokens)
    ]
    keys = np.rec.fromarrays([*columns(batch.targets).T, np.array(digests)])
    unique, group = np.unique(keys, return_inverse=True)
    return group.ravel().astype(np.int64) % min(N_FOLDS, len(unique)), len(unique)


def streamed_data(
    read: ReadBatches, encoding: Encoding, *, class_weight: Any = None
) -> LocationData:
    """Return a stream as data; a first pass counts and learns the encoding.

    A short stream is kept in memory.
    """
    n_bags = n_tokens = n_features = 0
    total = 0.0
    example: NDArray[Any] | None = None
    dtype = np.dtype(np.float64)
    for bags, targets, weights in read():
        if example is None:
            example, dtype = targets[:1], bags.tokens.dtype
            n_features = bags.tokens.shape[1]
        n_bags += int(np.count_nonzero(weights))
        n_tokens += int(bags.lengths[weights > 0].sum())
        total += float(weights.sum())
        encoding.add(targets, weights)
    if example is None:
        fail("X", "at least one batch", Got("none"))
    encode = encoding.encoder()
    if class_weight is not None:
        total = sum(
            float(class_weights(targets, weights, class_weight, encoding).sum())
            for _, targets, weights in read()
        )

    def batches() -> Iterator[LabelledBags]:
        for bags, targets, weights in read():
            weights = class_weights(targets, weights, class_weight, encoding)
            batch = LabelledBags(bags, *encode(targets), weights)
            kept = np.flatnonzero(weights > 0)
            if len(kept) == len(bags):
                yield batch
            elif len(kept):
                yield batch.take(kept)

    if n_tokens * n_features < _SMALL_STREAM:  # less than a megabyte
        return data_in_memory(joined(list(batches())))
    return LocationData(
        read=batches,
        n_bags=n_bags,
        n_tokens=n_tokens,
        weight=total,
        n_features=n_features,
        n_outputs=encode(example)[1].shape[1],
        dtype=dtype,
        is_stream=True,
    )
