"""Targets of bags: reading and encoding them, and the losses of what is predicted."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_softmax, softmax
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

# --- Losses --------------------------------------------------------------------------


def columns(targets: FloatArray) -> FloatArray:
    """Return targets with two axes, one row per bag."""
    return targets.reshape(len(targets), -1)


class AbstractLoss(ABC):
    """Loss of one bag as a function of outputs and target."""

    @abstractmethod
    def per_bag(self, outputs: FloatArray, targets: FloatArray) -> FloatArray:
        """Return the loss of each bag."""

    @abstractmethod
    def residuals(self, outputs: FloatArray, targets: FloatArray) -> FloatArray:
        """Return minus the derivative of the loss by the outputs."""

    @abstractmethod
    def constant(
        self, targets: FloatArray, weights: FloatArray, n_outputs: int
    ) -> FloatArray:
        """Return the constant outputs of least mean loss."""


@dataclass(frozen=True)
class SquaredLoss(AbstractLoss):
    """Half the squared error, summed over outputs."""

    def per_bag(self, outputs: FloatArray, targets: FloatArray) -> FloatArray:
        """Return half the squared error of each bag."""
        return np.asarray(0.5 * (self.residuals(outputs, targets) ** 2).sum(axis=1))

    def residuals(self, outputs: FloatArray, targets: FloatArray) -> FloatArray:
        """Return targets minus outputs."""
        return np.asarray(columns(targets) - outputs)

    def constant(
        self, targets: FloatArray, weights: FloatArray, n_outputs: int
    ) -> FloatArray:
        """Return the means."""
        del n_outputs
        return np.asarray(np.average(columns(targets), weights=weights, axis=0))


@dataclass(frozen=True)
class LogisticLoss(AbstractLoss):
    """Logistic loss of targets 0 and 1, summed over outputs."""

    def per_bag(self, outputs: FloatArray, targets: FloatArray) -> FloatArray:
        """Return minus the log likelihood of each bag."""
        margins = (1 - 2 * columns(targets)) * outputs
        return np.asarray(np.logaddexp(0.0, margins).sum(axis=1))

    def residuals(self, outputs: FloatArray, targets: FloatArray) -> FloatArray:
        """Return targets minus probabilities, alike for both classes."""
        signs = 2 * columns(targets) - 1
        return np.asarray(signs * expit(-signs * outputs))

    def constant(
        self, targets: FloatArray, weights: FloatArray, n_outputs: int
    ) -> FloatArray:
        """Return the logits of the frequencies, half a bag added to each class."""
        del n_outputs
        ones = weights @ columns(targets) + 0.5
        return np.asarray(np.log(ones) - np.log(weights.sum() + 1 - ones))


@dataclass(frozen=True)
class MultinomialLoss(AbstractLoss):
    """Cross entropy of a softmax; the target is the index of a class."""

    def per_bag(self, outputs: FloatArray, targets: FloatArray) -> FloatArray:
        """Return minus the log likelihood of each bag."""
        codes = targets.ravel().astype(np.int64)
        logs = log_softmax(outputs, axis=1)
        return np.asarray(-logs[np.arange(len(codes)), codes])

    def residuals(self, outputs: FloatArray, targets: FloatArray) -> FloatArray:
        """Return indicators minus probabilities."""
        codes = targets.ravel().astype(np.int64)
        return np.asarray(np.eye(outputs.shape[1])[codes] - softmax(outputs, axis=1))

    def constant(
        self, targets: FloatArray, weights: FloatArray, n_outputs: int
    ) -> FloatArray:
        """Return the logarithms of the frequencies, half a bag added to each class."""
        codes = targets.ravel().astype(np.int64)
        counts = np.bincount(codes, weights, n_outputs) + 0.5
        return np.asarray(np.log(counts / counts.sum()))


SQUARED, LOGISTIC, MULTINOMIAL = SquaredLoss(), LogisticLoss(), MultinomialLoss()


# --- Encodings ---------------------------------------------------------------------

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


# --- Reading -------------------------------------------------------------------------


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
