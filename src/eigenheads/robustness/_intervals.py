"""Measures of outcomes and their intervals, over examples and over training runs.

Outcomes are one array per training run, one row per example. No interval has zero
width: where all outcomes agree, two imagined examples that disagree keep it open.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import stats
from sklearn.metrics import average_precision_score

from eigenheads._typing import FloatArray

_POWER: Final = 0.8
Runs = Sequence[FloatArray]


@dataclass(frozen=True)
class Measure:
    """A number of outcomes.

    Attributes
    ----------
    value
        From the outcomes of one run to the number.
    interval
        From the outcomes of all runs and a confidence to an interval over examples of
        the mean number.
    unit
        The number of an outcome that is one, if the number is a mean of outcomes from
        0 to 1; else None.
    """

    value: Callable[[FloatArray], float]
    interval: Callable[[Runs, float], tuple[float, float]]
    unit: float | None = None


def measure_runs(
    runs: Runs, measure: Measure, confidence: float
) -> tuple[list[float], float, float]:
    """Return the number of each run, and an interval of their mean.

    Of several runs it is the wider of Student's t over runs and the interval over
    examples: few runs may agree by chance, and all runs share the examples.
    """
    values = [measure.value(outcomes) for outcomes in runs]
    low, high = measure.interval(runs, confidence)
    if len(values) > 1:
        least, most, _ = run_bounds(values, confidence)
        low, high = min(low, least), max(high, most)
    return values, low, high


def mean_outcome(outcomes: FloatArray) -> float:
    """Return the mean of outcomes."""
    return float(np.mean(outcomes))


def exact_interval(share: float, n: float, confidence: float) -> tuple[float, float]:
    """Return Clopper and Pearson's interval of a share of `n`, a whole number or not.

    Its ends are quantiles of Beta(k, n − k + 1) and Beta(k + 1, n − k), k = n · share.
    """
    k, tail = share * n, (1 - confidence) / 2
    low = stats.beta.ppf(tail, k, n - k + 1) if share > 0 else 0.0
    high = stats.beta.isf(tail, k + 1, n - k) if share < 1 else 1.0
    return float(low), float(high)


def _share_interval(runs: Runs, confidence: float) -> tuple[float, float]:
    """Return the interval of a mean of outcomes from 0 to 1 (Korn and Graubard, 1998).

    An outcome that is a mean over severities or runs varies less than a zero or one.
    The number of zeros and ones with the same variance of the mean takes the place of
    the number of examples; for zeros and ones it is the number of examples.
    """
    outcomes = np.mean(runs, axis=0)
    # Two imagined examples keep the variance positive: one all wrong, one all right.
    padded = np.append(outcomes, [0.0, 1.0])
    mean = padded.mean()
    n = len(outcomes) * mean * (1 - mean) / padded.var()
    return exact_interval(min(float(outcomes.mean()), 1.0), n, confidence)


def _aupr(outcomes: FloatArray) -> float:
    """Return the area under precision and recall of rows (is outlier, score)."""
    return float(average_precision_score(outcomes[:, 0], outcomes[:, 1]))


def _aupr_interval(runs: Runs, confidence: float) -> tuple[float, float]:
    """Return the area's interval as that of a share of the outliers.

    The binomial interval of Boyd, Eng and Page (2013), exact instead of normal.
    """
    n_outliers = float(runs[0][:, 0].sum())
    return exact_interval(float(np.mean([*map(_aupr, runs)])), n_outliers, confidence)


def _perplexity(outcomes: FloatArray) -> float:
    """Return the exponential of total loss over total words, rows (loss, words)."""
    loss, words = outcomes.sum(axis=0)
    return float(np.exp(loss / words)) if words else float("nan")


def _perplexity_interval(runs: Runs, confidence: float) -> tuple[float, float]:
    """Return Student's interval of the mean loss per word, as perplexities."""
    loss, words = np.mean(runs, axis=0).T
    if len(loss) < 2 or not words.any():
        return (0.0, math.inf) if words.any() else (math.nan, math.nan)
    ratio = loss.sum() / words.sum()
    # A ratio of two means varies like the mean of these residuals.
    error = stats.sem((loss - ratio * words) / words.mean())
    half = float(stats.t.ppf((1 + confidence) / 2, len(loss) - 1)) * error
    return float(np.exp(ratio - half)), float(np.exp(ratio + half))


def share_of(unit: float) -> Measure:
    """Return the measure of outcomes from 0 to 1 in a unit, such as an error."""

    def interval(runs: Runs, confidence: float) -> tuple[float, float]:
        low, high = _share_interval(runs, confidence)
        return unit * low, unit * high

    return Measure(lambda outcomes: unit * mean_outcome(outcomes), interval, unit)


SHARE: Final = Measure(mean_outcome, _share_interval, 1.0)
AUPR: Final = Measure(_aupr, _aupr_interval)
PERPLEXITY: Final = Measure(_perplexity, _perplexity_interval)

Bounds = tuple[float, float, float]  # both ends, and the detectable difference


def pair_bounds(pairs: FloatArray, confidence: float) -> Bounds:
    """Return the interval of a mean of paired differences from -1 to 1.

    Student's t with two imagined pairs, one in favour of each side (Bonett and Price,
    2012), so that equal outcomes are no proof of equal models.
    """
    padded = np.append(pairs, [-1.0, 1.0])
    error = float(padded.std()) / math.sqrt(len(padded))
    low, high, detectable = _student(padded.mean(), error, len(pairs) + 1, confidence)
    return max(low, -1.0), min(high, 1.0), detectable


def run_bounds(values: Sequence[float] | FloatArray, confidence: float) -> Bounds:
    """Return Student's interval of the mean over runs."""
    error = float(stats.sem(values))
    return _student(float(np.mean(values)), error, len(values) - 1, confidence)


def _student(mean: float, error: float, degrees: int, confidence: float) -> Bounds:
    half, more = error * stats.t.ppf([(1 + confidence) / 2, _POWER], degrees)
    return float(mean - half), float(mean + half), float(half + more)
