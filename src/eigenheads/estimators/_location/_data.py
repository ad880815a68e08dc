"""Data of a single-location fit: bags, encoded targets, weights, order and folds."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import column_or_1d

from eigenheads._checks import (
    Got,
    check_array_like,
    check_number,
    fail,
    without_traps,
)
from eigenheads._errors import public_call
from eigenheads._limits import check_largest
from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location._head import (
    LOGISTIC,
    MULTINOMIAL,
    SQUARED,
    AbstractLoss,
    columns,
    token_products,
)

# --- Targets -----------------------------------------------------------------------


# Maps targets as given to those of the loss and to the responses that starts use.
Encode: TypeAlias = Callable[[NDArray[Any]], tuple[FloatArray, FloatArray]]


@dataclass
class StandardisedNumbers:
    """Mean and variance of numbers, merged over batches; encodes by standardising.

    Numbers have one column per output; all fields but the first have one entry each.
    """

    has_intercept: bool
    kind: AbstractLoss = SQUARED
    weight: float = 0.0
    mean: FloatArray = field(default_factory=lambda: np.zeros(1))
    variance: FloatArray = field(default_factory=lambda: np.zeros(1))
    least: FloatArray = field(default_factory=lambda: np.full(1, np.inf))
    largest: FloatArray = field(default_factory=lambda: np.full(1, -np.inf))

    def add(self, targets: NDArray[Any], weights: FloatArray) -> None:
        """Take the targets of a batch."""
        if not (weights > 0).any():
            return
        table = columns(targets)
        self.least = np.minimum(self.least, table[weights > 0].min(axis=0))
        self.largest = np.maximum(self.largest, table[weights > 0].max(axis=0))
        added = float(weights.sum())
        mean = np.asarray(np.average(table, weights=weights, axis=0))
        variance = np.asarray(np.average((table - mean) ** 2, weights=weights, axis=0))
        share = added / (self.weight + added)
        if self.weight:  # merge with the batches before
            gap = mean - self.mean
            variance = (1 - share) * self.variance + share * variance
            variance = variance + share * (1 - share) * gap**2
            mean = self.mean + gap * share
        self.mean, self.variance, self.weight = mean, variance, self.weight + added

    @property
    def shift(self) -> FloatArray:
        """The number that is subtracted from a target."""
        return self.mean if self.has_intercept else np.zeros(len(self.mean))

    @property
    def scale(self) -> FloatArray:
        """The number by which a shifted target is divided."""
        spread = np.sqrt(self.variance + (self.mean - self.shift) ** 2)
        return np.where(spread > 0, spread, 1.0)

    def units(self) -> tuple[Any, Any]:
        """Return the unit and the origin of the targets."""
        return self.scale, self.shift

    def encoder(self) -> Encode:
        """Return the encoding that all batches have determined."""
        shift, scale = self.shift, self.scale

        def encode(targets: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
            unit = (columns(targets) - shift) / scale
            unit = unit.astype(np.float32).astype(np.float64)
            return unit, unit

        return encode


@dataclass
class LabelIndicators:
    """Frequencies of labels of which a bag may have several; encodes as zeros and ones.

    Parameters
    ----------
    is_centred
        Whether the mean is subtracted from the indicators that starts use.
    """

    is_centred: bool
    kind: AbstractLoss = LOGISTIC
    weight: float = 0.0
    total: Any = 0.0

    def add(self, targets: NDArray[Any], weights: FloatArray) -> None:
        """Take the labels of a batch."""
        self.total = self.total + weights @ targets
        self.weight += float(weights.sum())

    def units(self) -> tuple[Any, Any]:
        """Return the unit and the origin of logits."""
        return 1.0, 0.0

    def encoder(self) -> Encode:
        """Return the map from labels to zeros and ones, and to responses."""
        mean = self.total / self.weight if self.is_centred else 0.0

        def encode(targets: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
            ones = targets.astype(np.float64)
            return ones, ones - mean

        return encode


@dataclass
class ClassLabels:
    """Classes and their weights, merged over batches; encodes labels as codes.

    Parameters
    ----------
    is_centred
        Whether the mean is subtracted from the indicators.
    """

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
    def kind(self) -> AbstractLoss:
        """The loss for this number of classes."""
        return LOGISTIC if len(self.weights) == 2 else MULTINOMIAL

    def units(self) -> tuple[Any, Any]:
        """Return the unit and the origin of logits."""
        return 1.0, 0.0

    def encoder(self) -> Encode:
        """Return the map from labels to codes and indicators.

        Two classes have one indicator, that of the second class.
        """
        classes: NDArray[Any] = np.zeros(0) if self.classes is None else self.classes
        present = classes[self.weights > 0]
        if len(present) < 2:
            got = Got(f"one class, {present.tolist()}")
            contract = "labels of at least two classes with positive weight"
            fail("y", contract, got)
        first = 1 if len(classes) == 2 else 0
        mean = self.weights[first:] / self.weights.sum() if self.is_centred else 0.0

        def encode(targets: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
            codes = np.searchsorted(classes, targets)
            hot = np.eye(len(classes))[codes]
            return codes.astype(np.float64), hot[:, first:] - mean

        return encode


Encoding: TypeAlias = StandardisedNumbers | ClassLabels | LabelIndicators


def class_weights(
    targets: NDArray[Any], weights: FloatArray, class_weight: Any, encoding: Any
) -> FloatArray:
    """Return the weights of bags times those of their classes."""
    if class_weight is None:
        return weights
    if isinstance(encoding, LabelIndicators):
        hint = "Pass `sample_weight` instead."
        contract = "None, if bags have several labels"
        fail("class_weight", contract, class_weight, hint=hint)
    classes, totals = encoding.classes, encoding.weights
    if isinstance(class_weight, str):
        present = int(np.count_nonzero(totals))
        factors = totals.sum() / (present * np.maximum(totals, 1e-300))
    else:
        known = {label: float(factor) for label, factor in class_weight.items()}
        factors = np.array([known.get(label, 1.0) for label in classes.tolist()])
    return np.asarray(weights * factors[np.searchsorted(classes, targets)])


def check_class_weight(class_weight: Any) -> None:
    """Raise unless this is None, "balanced", or weights >= 0 by class."""
    is_balanced = isinstance(class_weight, str) and class_weight == "balanced"
    if class_weight is None or is_balanced:
        return
    if not isinstance(class_weight, dict):
        contract = 'None, "balanced", or a dict from class to weight'
        fail("class_weight", contract, class_weight)
    for label, factor in class_weight.items():
        check_number(f"class_weight[{label!r}]", factor, minimum=0.0)


def read_targets(
    y: ArrayLike | None, bags: Bags, *, several: bool = False
) -> NDArray[Any]:
    """Return the targets, one per bag (`several`: or one row per bag), or raise."""
    if y is None:
        raise ValueError(
            f"{public_call()} requires y to be passed, but the target y is None."
        )
    y = without_traps("y", y)
    targets = check_array_like("y", y, "one target per bag")
    if not several or targets.ndim != 2 or targets.shape[1] < 2:
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
        fail("y", "one target per bag", got, hint=hint)
    # scikit-learn does not know NumPy's texts of any length.
    return np.array(targets.tolist()) if targets.dtype.kind == "T" else targets


def read_labels(targets: NDArray[Any]) -> NDArray[Any]:
    """Return targets as classes, or raise."""
    labels = check_array(targets, ensure_2d=False, dtype=None, input_name="y")
    kinds = sorted({type(label).__name__ for label in np.ravel(labels).tolist()})
    if len(kinds) > 1 and type_of_target(labels) == "unknown":
        got = Got(f"labels of types {', '.join(kinds)}")
        fail("y", "labels of one type", got)
    check_classification_targets(labels)
    return np.asarray(labels)


def read_numbers(targets: NDArray[Any]) -> FloatArray:
    """Return targets as finite numbers, or raise."""
    try:
        numbers = targets.astype(np.float64)
    except (TypeError, ValueError):
        hint = "Use SingleLocationClassifier for classes."
        fail("y", "numbers", targets, hint=hint)
    check_largest("y", numbers)
    return np.asarray(check_array(numbers, ensure_2d=False, input_name="y"))


def read_weights(sample_weight: ArrayLike | None, bags: Bags) -> FloatArray:
    """Return the weights, one per bag (ones by default), or raise."""
    if sample_weight is None:
        return np.ones(len(bags))
    sample_weight = without_traps("sample_weight", sample_weight)
    weights = np.asarray(
        check_array(sample_weight, ensure_2d=False, input_name="sample_weight"),
        dtype=np.float64,
    )
    if weights.shape != (len(bags),):
        contract = f"one weight per bag, of shape ({len(bags)},)"
        fail("sample_weight", contract, weights)
    if weights.min() < 0 or not weights.sum() > 0:
        got = Got(f"numbers from {weights.min():g} to {weights.max():g}")
        contract = "weights >= 0, not all of them zero"
        fail("sample_weight", contract, got)
    return weights


# --- Bags --------------------------------------------------------------------------

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
# Data with more numbers are fitted in single precision.
MANY_NUMBERS = 2**18
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

    @property
    def has_relative_weights(self) -> bool:
        """True if only differences of scores within a bag count."""
        return self.head in ("softmax", "radial")


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
            scores = token_products(batch.bags, keys)
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
