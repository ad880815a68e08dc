"""Data and settings of a single-location fit: bags, encoded targets, weights."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array
from sklearn.utils.validation import column_or_1d

from eigenheads._checks import (
    Got,
    fail,
    without_traps,
)
from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location._head import (
    LOGISTIC,
    MULTINOMIAL,
    SQUARED,
    token_scores,
)

# Starts are compared on at most this many tokens, or this many bags per feature.
_SCREEN_TOKENS = 50_000
_SCREEN_BAGS_PER_FEATURE = 10
# Attended tokens are gathered if they are at most this share of all tokens and at most
# this many numbers (32 MB), so that a stream never has to fit in memory.
_MOST_GATHERED = 0.5
_MOST_NUMBERS = 2**22

# Checked bags, targets as given and weights, read again in every pass.
ReadBatches: TypeAlias = Callable[[], Iterator[tuple[Bags, NDArray[Any], FloatArray]]]
# Maps targets as given to those of the loss and to the responses that starts use.
Encode: TypeAlias = Callable[[NDArray[Any]], tuple[FloatArray, FloatArray]]


@dataclass(frozen=True)
class HeadSettings:
    """Settings of one fit, checked; the estimators document them."""

    head: str
    kind: int
    alpha: float
    l1_ratio: float
    coherence: float
    shrinkage: float | None
    has_intercept: bool
    max_iter: int
    tol: float


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
    radii = None
    if bags[0].radii is not None:
        radii = np.concatenate([np.asarray(some.radii) for some in bags])
    tokens = np.concatenate([some.tokens for some in bags])
    return LabelledBags(
        bags=Bags(tokens, offsets, radii),
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
        read = self.read

        def changed() -> Iterator[LabelledBags]:
            for batch in read():
                yield replace(batch, bags=change(batch.bags))

        if self.is_stream:
            return replace(self, read=changed)
        kept = list(changed())
        return replace(self, read=lambda: kept)

    def screen(self) -> LabelledBags:
        """Return the bags on which starts are compared."""
        return self.sample(
            max(
                int(self.n_bags * _SCREEN_TOKENS / self.n_tokens),
                _SCREEN_BAGS_PER_FEATURE * self.n_features,
            )
        )

    def sample(self, enough: int) -> LabelledBags:
        """Return at most so many bags, in memory, evenly spaced over all."""
        chosen = np.arange(self.n_bags)
        if enough < self.n_bags:
            chosen = np.linspace(0, self.n_bags - 1, enough).astype(np.int64)
        taken, first = [], 0
        for batch in self.read():
            after = first + len(batch.bags)
            here = chosen[(chosen >= first) & (chosen < after)]
            if len(here):
                taken.append(batch.take(here - first))
            first = after
        return joined(taken)

    def attentive(
        self, key: FloatArray, margin: float, *, head: str
    ) -> "LocationData | None":
        """Return the tokens whose weights count, in memory, or None if most do.

        In each bag these are the tokens whose score is at least the largest minus
        `margin`: weights of the others are below ``exp(-margin)``.
        """
        if head == "erf":  # its weights are not relative to those of other tokens
            return None
        taken: list[LabelledBags] = []
        n_numbers = 0
        for batch in self.read():
            scores = token_scores(batch.bags, key)
            tops = np.maximum.reduceat(scores, batch.bags.starts)
            kept = scores >= np.repeat(tops - margin, batch.bags.lengths)
            n_numbers += int(np.count_nonzero(kept)) * self.n_features
            if n_numbers > _MOST_NUMBERS:
                return None
            taken.append(replace(batch, bags=batch.bags.keep(kept)))
        whole = joined(taken)
        if len(whole.bags.tokens) > _MOST_GATHERED * self.n_tokens:
            return None
        return data_in_memory(whole)


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


def streamed_data(
    read: ReadBatches, encoding: "StandardisedNumbers | ClassLabels", *, owner: str
) -> LocationData:
    """Return a stream as data; a first pass counts and learns the encoding."""
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
        fail("X", "at least one batch", Got("none"), owner=owner)
    encode = encoding.encoder()

    def batches() -> Iterator[LabelledBags]:
        for bags, targets, weights in read():
            batch = LabelledBags(bags, *encode(targets), weights)
            kept = np.flatnonzero(weights > 0)
            if len(kept) == len(bags):
                yield batch
            elif len(kept):
                yield batch.take(kept)

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


@dataclass
class StandardisedNumbers:
    """Mean and variance of numbers, merged over batches; encodes by standardising."""

    has_intercept: bool
    kind: int = SQUARED
    weight: float = 0.0
    mean: float = 0.0
    variance: float = 0.0
    least: float = np.inf
    largest: float = -np.inf

    def add(self, targets: NDArray[Any], weights: FloatArray) -> None:
        """Take the targets of a batch."""
        if not (weights > 0).any():
            return
        self.least = min(self.least, float(targets[weights > 0].min()))
        self.largest = max(self.largest, float(targets[weights > 0].max()))
        added = float(weights.sum())
        mean = float(np.average(targets, weights=weights))
        variance = float(np.average((targets - mean) ** 2, weights=weights))
        share = added / (self.weight + added)
        gap = mean - self.mean
        if self.weight:  # merge with the batches before
            variance = (1 - share) * self.variance + share * variance
            variance += share * (1 - share) * gap**2
            mean = self.mean + gap * share
        self.mean, self.variance, self.weight = mean, variance, self.weight + added

    @property
    def shift(self) -> float:
        """The number that is subtracted from a target."""
        return self.mean if self.has_intercept else 0.0

    @property
    def scale(self) -> float:
        """The number by which a shifted target is divided."""
        spread = float(np.sqrt(self.variance + (self.mean - self.shift) ** 2))
        return spread if spread > 0 else 1.0

    def encoder(self) -> Encode:
        """Return the encoding that all batches have determined."""
        shift, scale = self.shift, self.scale

        def encode(targets: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
            unit = (targets - shift) / scale
            return unit, unit[:, None]

        return encode


@dataclass
class ClassLabels:
    """Classes and their weights, merged over batches; encodes labels as codes.

    Parameters
    ----------
    owner
        Name of the estimator, for errors.
    is_centred
        Whether the mean is subtracted from the indicators.
    """

    owner: str
    is_centred: bool
    classes: NDArray[Any] | None = None
    weights: FloatArray = field(default_factory=lambda: np.zeros(0))

    def add(self, targets: NDArray[Any], weights: FloatArray) -> None:
        """Take the labels of a batch."""
        own, codes = np.unique(targets, return_inverse=True)
        known = own[:0] if self.classes is None else self.classes
        merged = np.unique(np.concatenate([known, own]))
        total = np.zeros(len(merged))
        total[np.searchsorted(merged, known)] = self.weights
        added = np.bincount(codes, weights=weights)
        total[np.searchsorted(merged, own)] += added
        self.classes, self.weights = merged, total

    @property
    def kind(self) -> int:
        """The loss for this number of classes."""
        return LOGISTIC if len(self.weights) == 2 else MULTINOMIAL

    def encoder(self) -> Encode:
        """Return the map from labels to codes and indicators.

        Two classes have one indicator, that of the second class.
        """
        classes: NDArray[Any] = np.zeros(0) if self.classes is None else self.classes
        present = classes[self.weights > 0]
        if len(present) < 2:
            got = Got(f"one class, {present.tolist()}")
            contract = "labels of at least two classes with positive weight"
            fail("y", contract, got, owner=self.owner)
        first = 1 if len(classes) == 2 else 0
        mean = self.weights[first:] / self.weights.sum() if self.is_centred else 0.0

        def encode(targets: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
            codes = np.searchsorted(classes, targets)
            hot = np.eye(len(classes))[codes]
            return codes.astype(np.float64), hot[:, first:] - mean

        return encode


def read_targets(y: ArrayLike | None, bags: Bags, *, owner: str) -> NDArray[Any]:
    """Return the targets, one per bag, or raise."""
    if y is None:
        raise ValueError(f"{owner} requires y to be passed, but the target y is None.")
    y = without_traps("y", y, owner=owner)
    targets = np.asarray(column_or_1d(y, warn=True))
    if len(targets) != len(bags):
        hint = ""
        if len(targets) == len(bags.tokens):
            hint = (
                "There is one per token: use `group_bags(table, by=..., target=...)`."
            )
        elif len(bags) == len(bags.tokens):
            hint = "A table is read as bags of one token: cut it with `group_bags`."
        got = Got(f"{len(targets)} targets for {len(bags)} bags")
        fail("y", "one target per bag", got, owner=owner, hint=hint)
    return targets


def read_numbers(targets: NDArray[Any], *, owner: str) -> FloatArray:
    """Return targets as finite numbers, or raise."""
    try:
        numbers = targets.astype(np.float64)
    except (TypeError, ValueError):
        hint = "Use SingleLocationClassifier for classes."
        fail("y", "numbers", targets, owner=owner, hint=hint)
    return np.asarray(check_array(numbers, ensure_2d=False, input_name="y"))


def read_weights(
    sample_weight: ArrayLike | None, bags: Bags, *, owner: str
) -> FloatArray:
    """Return the weights, one per bag (ones by default), or raise."""
    if sample_weight is None:
        return np.ones(len(bags))
    weights = np.asarray(
        check_array(sample_weight, ensure_2d=False, input_name="sample_weight"),
        dtype=np.float64,
    )
    if weights.shape != (len(bags),):
        contract = f"one weight per bag, of shape ({len(bags)},)"
        fail("sample_weight", contract, weights, owner=owner)
    if weights.min() < 0 or not weights.sum() > 0:
        got = Got(f"numbers from {weights.min():g} to {weights.max():g}")
        contract = "weights >= 0, not all of them zero"
        fail("sample_weight", contract, got, owner=owner)
    return weights
