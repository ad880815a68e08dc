"""Labels as numbers: classes, merged over batches, and their codes."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._checks import Got, fail
from eigenheads._typing import FloatArray
from eigenheads.estimators._location_loss import LOGISTIC, MULTINOMIAL
from eigenheads.estimators._location_stream import Encode


@dataclass
class Labels:
    """Classes and their weights; encodes labels as codes and indicators.

    Parameters
    ----------
    owner
        Of errors.
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
        """Return labels ↦ codes and indicators: of the second class, or of each."""
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
