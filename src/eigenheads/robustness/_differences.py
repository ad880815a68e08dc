"""Paired differences between models: intervals, verdicts, and what could be seen."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from eigenheads.robustness._intervals import (
    SHARE,
    Measure,
    Runs,
    pair_bounds,
    run_bounds,
)
from eigenheads.robustness._plan import EvaluationPlan, Outcomes, with_means
from eigenheads.robustness._result import Comparison, RobustnessDifference

_LOWER: Final = ("mean corruption error", "perplexity")


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
        for metric, condition, level, measure, arrays in with_means(outcomes, plan):
            found = _difference(
                arrays[runs[names[0]]],
                arrays[runs[other]],
                measure,
                confidence,
                model=other,
                baseline=names[0],
                metric=metric,
                condition=condition,
                level=level,
            )
            if found is not None:
                yield found


def _difference(
    first: Runs, other: Runs, measure: Measure, confidence: float, **names: Any
) -> RobustnessDifference | None:
    """Return the difference with an interval, or None if one run has none.

    The interval is the wider of those over runs and over examples. Runs whose
    differences are equal by chance would have none.
    """
    by_run = np.array(
        [measure.value(b) - measure.value(a) for a, b in zip(first, other, strict=True)]
    )
    pairs, bounds = by_run, []
    # A perplexity or an area is no mean over examples.
    if measure is SHARE:
        pairs = np.mean(other, axis=0) - np.mean(first, axis=0)
        bounds.append(pair_bounds(pairs, confidence))
    if len(by_run) > 1:
        bounds.append(run_bounds(by_run, confidence))
    if not bounds:
        return None
    lows, highs, seen = zip(*bounds, strict=True)
    low, high, value = min(lows), max(highs), float(by_run.mean())
    verdict: Comparison = "cannot tell"
    if (low > 0 or high < 0) and low < high:
        verdict = "better" if (value > 0) != (names["metric"] in _LOWER) else "worse"
    return RobustnessDifference(
        **names,
        value=value,
        low=low,
        high=high,
        verdict=verdict,
        detectable=max(seen),
        n_pairs=len(by_run) if len(by_run) > 1 else len(pairs),
        n_discordant=int(np.count_nonzero(pairs)),
    )
