"""Paired differences between models: intervals, verdicts, and what could be seen."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from eigenheads._typing import FloatArray
from eigenheads.robustness._plan import EvaluationPlan, Outcomes, mean_outcome
from eigenheads.robustness._result import (
    Comparison,
    RobustnessDifference,
    RowStatistic,
)

_LOWER: Final = ("mean corruption error", "perplexity")
_POWER: Final = 0.8


def compare_outcomes(
    counts: Mapping[str, int],
    outcomes: Outcomes,
    plan: EvaluationPlan,
    confidence: float,
) -> Iterator[RobustnessDifference]:
    """Yield the differences of each model from the first one.

    Parameters
    ----------
    counts
        Number of training runs of each model, by name.
    outcomes
        By condition and run, runs in the order of `counts`.
    plan
        The conditions.
    confidence
        Confidence of each interval.
    """
    names = list(counts)
    ends = np.cumsum(list(counts.values())).tolist()
    runs = {
        name: slice(end - counts[name], end)
        for name, end in zip(names, ends, strict=True)
    }
    for other in names[1:]:
        # Runs are paired by their order, so there must be as many of each.
        if counts[other] != counts[names[0]]:
            continue
        for metric, condition, level, statistic, arrays in _measured(outcomes, plan):
            pairs = _paired(arrays[runs[names[0]]], arrays[runs[other]], statistic)
            if pairs is not None:
                yield _difference(
                    pairs,
                    confidence,
                    by_example=counts[other] == 1,
                    model=other,
                    baseline=names[0],
                    metric=metric,
                    condition=condition,
                    level=level,
                )


def _measured(
    outcomes: Outcomes, plan: EvaluationPlan
) -> Iterator[tuple[str, str, float | None, RowStatistic, list[FloatArray]]]:
    for one, arrays in zip(plan.conditions, outcomes, strict=True):
        yield one.metric, one.condition, one.level, one.statistic, arrays
    for group in plan.means:
        members = [outcomes[index] for index in group.members]
        errors = [1 - np.mean(arrays, axis=0) for arrays in zip(*members, strict=True)]
        yield group.metric, group.condition, None, mean_outcome, errors


def _paired(
    first: Sequence[NDArray[Any]], other: Sequence[NDArray[Any]], value: RowStatistic
) -> FloatArray | None:
    """Return differences over runs, or over examples of single models."""
    if len(first) > 1:
        return np.array(
            [value(b) - value(a) for a, b in zip(first, other, strict=True)]
        )
    # A perplexity or an area is no mean over examples.
    if value is not mean_outcome or len(first[0]) < 2:
        return None
    return np.asarray(other[0] - first[0], dtype=np.float64)


def _difference(
    pairs: FloatArray, confidence: float, *, by_example: bool, **names: Any
) -> RobustnessDifference:
    n, value = len(pairs), float(pairs.mean())
    variance = float(pairs.var(ddof=1))
    half = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * math.sqrt(variance / n)
    # Examples that both models answer alike say little about rare disagreements: the
    # variance is at least that of one disagreement.
    floor = 1 / n if by_example else 0.0
    error = math.sqrt(max(variance, floor) / n)
    quantiles = stats.t.ppf([(1 + confidence) / 2, _POWER], n - 1)
    low, high = value - half, value + half
    verdict: Comparison = "cannot tell"
    if low > 0 or high < 0:
        verdict = "better" if (value > 0) != (names["metric"] in _LOWER) else "worse"
    return RobustnessDifference(
        **names,
        value=value,
        low=low,
        high=high,
        verdict=verdict,
        detectable=float(quantiles.sum()) * error,
        n_pairs=n,
    )
