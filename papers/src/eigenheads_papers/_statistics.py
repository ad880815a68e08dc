"""Estimates with intervals, equivalence tests, power, and family-wise levels.

Every verdict with sampling noise rests on these functions, so that one rule serves all
papers. Distributions come from SciPy; only the search for a detectable effect is
written here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special, stats

from eigenheads.extend import FloatArray, generator

# Level of an interval that stands alone, and the error rate of a family of claims.
LEVEL = 0.95
# Power at which the smallest detectable effect is stated.
POWER = 0.8
# With fewer observations the spread is too uncertain for an interval.
ENOUGH = 5
_RESAMPLES = 4999


@dataclass(frozen=True)
class Estimate:
    """A number with sampling noise.

    Attributes
    ----------
    value
        The point estimate.
    n
        Number of independent observations.
    interval
        Confidence level to the two ends of the interval.
    detectable
        Confidence level to the smallest difference that a two-sided test at this level
        finds with a probability of 80 %.
    """

    value: float
    n: int
    interval: Callable[[float], tuple[float, float]]
    detectable: Callable[[float], float]


def mean_estimate(
    sample: ArrayLike, *, within: tuple[float, float] = (-math.inf, math.inf)
) -> Estimate:
    """Return the mean of independent numbers, with Student's t interval.

    For paired differences over seeds, `sample` is the differences. Equal numbers say
    nothing about their spread: they have no interval but the whole range.

    Parameters
    ----------
    sample
        Independent numbers.
    within
        Range of the quantity, such as (0, 1) for an accuracy. No interval leaves it.

    Examples
    --------
    >>> low, high = mean_estimate([1.0, 2.0, 3.0, 4.0, 5.0]).interval(0.95)
    >>> round(low, 3), round(high, 3)
    (1.037, 4.963)
    """
    numbers = np.asarray(sample, dtype=np.float64)
    n, mean = len(numbers), float(np.mean(numbers))
    least, most = within
    # Without enough observations, the whole range makes every verdict undecided.
    if n < ENOUGH or np.ptp(numbers) == 0.0:
        return Estimate(mean, n, lambda _: within, lambda _: math.inf)
    error = float(np.std(numbers, ddof=1)) / math.sqrt(n)

    def interval(level: float) -> tuple[float, float]:
        half = float(student_half(error, n, level))
        return max(mean - half, least), min(mean + half, most)

    return Estimate(
        mean, n, interval, lambda level: detectable_effect(error, n, level=level)
    )


def student_half(error: ArrayLike, n: ArrayLike, level: float = LEVEL) -> Any:
    """Return half of Student's interval of a mean of `n` with this standard error."""
    # A single number has no spread; its error is zero.
    df = np.maximum(np.asarray(n) - 1, 1)
    return stats.t.ppf((1 + level) / 2, df) * np.asarray(error)


def resampled_estimate(sample: ArrayLike, *, test_share: float) -> Estimate:
    """Return the mean over folds of a cross-validation, or over its repeats.

    Training sets overlap, so that folds are not independent. The variance is that of
    Nadeau and Bengio (2003), with `test_share` held-out samples per training sample.

    Examples
    --------
    >>> low, high = resampled_estimate([1.0, 2.0, 3.0, 4.0, 5.0],
    ...                                test_share=0.25).interval(0.95)
    >>> round(low, 3), round(high, 3)
    (0.055, 5.945)
    """
    independent = mean_estimate(sample)
    if not math.isfinite(independent.detectable(LEVEL)):
        return independent
    numbers = np.asarray(sample, dtype=np.float64)
    n, mean = independent.n, independent.value
    error = float(np.std(numbers, ddof=1)) * math.sqrt(1 / n + test_share)

    def interval(level: float) -> tuple[float, float]:
        half = float(student_half(error, n, level))
        return mean - half, mean + half

    return Estimate(
        mean, n, interval, lambda level: detectable_effect(error, n, level=level)
    )


def share_estimate(successes: int, n: int) -> Estimate:
    """Return a share of independent trials, with the exact binomial interval.

    Examples
    --------
    >>> low, high = share_estimate(15, 30).interval(0.95)
    >>> round(low, 3), round(high, 3)
    (0.313, 0.687)
    """
    share = successes / n
    test = stats.binomtest(int(successes), n)

    def interval(level: float) -> tuple[float, float]:
        ends = test.proportion_ci(level, method="exact")
        return float(ends.low), float(ends.high)

    # Normal approximation: precise enough to say what size could have been seen.
    # The floor 1/n keeps the error positive if all trials have the same outcome.
    error = math.sqrt(max(share * (1 - share), 1 / n) / n)
    return Estimate(
        share, n, interval, lambda level: detectable_effect(error, n, level=level)
    )


def farthest_share_estimate(
    successes: ArrayLike, n: int, expected: ArrayLike
) -> Estimate:
    """Return the largest distance of several shares to their expected values.

    The exact binomial intervals hold together: each is at the level 1 − (1 − level)/m.

    Parameters
    ----------
    successes
        Number of successes per share, each of `n` independent trials.
    n
        Number of trials.
    expected
        Expected value per share.

    Examples
    --------
    >>> found = farthest_share_estimate([10, 90], 100, [0.1, 0.7])
    >>> low, high = found.interval(0.95)
    >>> round(found.value, 3), round(low, 3), round(high, 3)
    (0.2, 0.112, 0.256)
    """
    counts = np.asarray(successes, dtype=np.int64)
    targets = np.asarray(expected, dtype=np.float64)
    shares = [share_estimate(int(count), n) for count in counts]

    def level_of_each(level: float) -> float:
        return 1 - (1 - level) / len(shares)

    def interval(level: float) -> tuple[float, float]:
        low, high = np.transpose(
            [share.interval(level_of_each(level)) for share in shares]
        )
        nearest = np.maximum(np.maximum(low - targets, targets - high), 0.0)
        farthest = np.maximum(targets - low, high - targets)
        return float(nearest.max()), float(farthest.max())

    return Estimate(
        float(np.abs(counts / n - targets).max()),
        n,
        interval,
        lambda level: max(share.detectable(level_of_each(level)) for share in shares),
    )


def bootstrap_estimate(
    sample: ArrayLike, statistic: Callable[..., Any], *, seed: int = 0
) -> Estimate:
    """Return a statistic of independent rows, with a percentile bootstrap interval.

    Parameters
    ----------
    sample
        Independent observations along the first axis.
    statistic
        Maps an array and ``axis`` to a number, such as ``numpy.median``.
    seed
        Seed of the resampling: equal tables give equal intervals.
    """
    numbers = np.asarray(sample, dtype=np.float64)
    n, value = len(numbers), float(statistic(numbers, axis=0))
    if n < ENOUGH:
        return Estimate(value, n, lambda _: (-math.inf, math.inf), lambda _: math.inf)
    # All resamples are drawn once, so that intervals at different levels are nested.
    rows = generator(seed).integers(n, size=(_RESAMPLES, n))
    drawn = np.asarray(statistic(numbers[rows], axis=1), dtype=np.float64)

    def interval(level: float) -> tuple[float, float]:
        low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)

    # A statistic that is infinite in a resample has no standard error.
    with np.errstate(invalid="ignore"):
        error = float(drawn.std(ddof=1))
    return Estimate(
        value, n, interval, lambda level: detectable_effect(error, n, level=level)
    )


def power_of_test(
    effect: float, error: float, n: int, *, level: float = LEVEL
) -> float:
    """Return the power of a two-sided one-sample t-test.

    Parameters
    ----------
    effect
        True mean.
    error
        Standard error of the mean of `n` observations.
    n
        Number of observations.
    level
        One minus the level of the test.
    """
    critical = float(student_half(1.0, n, level))
    shift = effect / error
    # The statistic is a normal over a scaled chi: average over quantiles of the chi.
    # SciPy's noncentral t returns NaN for few degrees of freedom.
    edge = critical * _chi_quantiles(n - 1)
    tails = special.ndtr(shift - edge) + special.ndtr(-shift - edge)
    return float(tails.mean())


@lru_cache(maxsize=64)
def _chi_quantiles(df: int) -> FloatArray:
    """Return evenly spaced quantiles of √(χ²/df)."""
    # Midpoints avoid the quantiles at 0 and 1, of which the last is infinite.
    levels = (np.arange(4000) + 0.5) / 4000
    return np.asarray(np.sqrt(stats.chi2.ppf(levels, df) / df))


def detectable_effect(
    error: float, n: int, *, level: float = LEVEL, power: float = POWER
) -> float:
    """Return the smallest true mean that a two-sided t-test finds with this power.

    Examples
    --------
    >>> round(detectable_effect(1.0, 1000), 2)  # z(0.975) + z(0.8), for many
    2.8
    """
    if n < 2:
        return math.inf
    if error == 0:
        return 0.0

    # The shift is in units of the standard error.
    def missing(shift: float) -> float:
        return power_of_test(shift, 1.0, n, level=level) - power

    # At a shift of zero the power is the size of the test, which is below the power
    # asked for. The power grows with the shift, so doubling brackets the root.
    high = 2.0
    while missing(high) < 0 and high < 1e6:
        high *= 2
    return error * float(optimize.brentq(missing, 0.0, high, xtol=1e-6))


def family_level(m: int) -> float:
    """Return the level of each interval in a family of `m` claims: 1 − 0.05 / m."""
    return 1 - (1 - LEVEL) / max(m, 1)
