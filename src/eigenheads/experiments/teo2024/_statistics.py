"""Paired differences over seeds, and which conditions count. No torch here."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from eigenheads._typing import FloatArray

# Points of accuracy that plain attention must lose for a condition to say something.
MINIMAL_LOSS = 10.0


class Interval(NamedTuple):
    """A mean over seeds with its 95 % interval of Student's t."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def half(self) -> float:
        """Half its width."""
        return (self.high - self.low) / 2

    def contains_zero_among(self, n_comparisons: int) -> bool:
        """Return whether zero is in the interval when it is one of so many.

        Bonferroni: all of them together miss with a probability of at most 5 %.
        """
        usual, wider = (
            float(stats.t.ppf(1 - 0.025 / count, self.n - 1))
            for count in (1, n_comparisons)
        )
        return abs(self.mean) <= self.half * wider / usual


def paired(differences: FloatArray) -> Interval:
    """Return the mean of paired differences and its 95 % interval of Student's t.

    Examples
    --------
    >>> paired(np.array([1.0, 2.0, 3.0])).mean
    2.0
    """
    n = len(differences)
    mean = float(np.mean(differences))
    error = float(np.std(differences, ddof=1)) / np.sqrt(n)
    half = float(stats.t.ppf(0.975, n - 1)) * error
    return Interval(mean, mean - half, mean + half, n)


def counting(accuracy: FloatArray, clean: FloatArray) -> NDArray[np.bool_]:
    """Return which conditions cost plain attention enough, by its means over seeds.

    Parameters
    ----------
    accuracy
        Of plain attention, conditions by seeds, in percent.
    clean
        The same without corruption, by seeds.

    Examples
    --------
    >>> counting(np.array([[80.0, 84.0], [95.0, 95.0]]), np.array([96.0, 96.0]))
    array([ True, False])
    """
    return np.asarray(clean.mean() - accuracy.mean(axis=1) >= MINIMAL_LOSS)


def family_means(
    accuracy: FloatArray, families: Sequence[str], counts: NDArray[np.bool_]
) -> dict[str, FloatArray]:
    """Return the mean over a family's counting conditions, by model and seed.

    Families without a counting condition are left out; ``"all"`` are all that count.
    """
    means = {}
    for family in (*dict.fromkeys(families), "all"):
        own = counts & np.array([family in (name, "all") for name in families])
        if own.any():
            means[family] = accuracy[:, own].mean(axis=1)
    return means
