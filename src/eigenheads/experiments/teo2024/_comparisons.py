"""Paired differences as claims, and when a small run may contradict the record."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from eigenheads.experiments._core import Claim, Verdict
from eigenheads.experiments.teo2024._statistics import Interval

# Fewer seeds tell nothing about a difference.
ENOUGH_SEEDS = 5


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The claim that a paired difference is above noise, or not to be seen.

    Attributes
    ----------
    statement, source
        As in a claim.
    gap
        The difference and its interval over seeds.
    says
        ``"better"``: the whole interval is above zero; ``"same"``: zero is in it.
    record
        Our standing verdict.
    digits
        Decimals of the mean that the statement shows.
    """

    statement: str
    source: str
    gap: Interval
    says: Literal["better", "same"]
    record: Verdict
    digits: int = 1

    def claim(self) -> Claim:
        """Return the claim, with this run's interval as it is."""
        mean, half = self.gap.mean, self.gap.half
        if self.says == "same":
            return Claim(
                statement=self.statement,
                source=self.source,
                relation="≈",
                expected=0.0,
                measured=mean,
                tolerance=half,
                reason="half the paired t-interval over seeds: no difference to be "
                "seen",
                on_record=self.record,
            )
        shown = f"(mean {mean:+.{self.digits}f} ± {half:.{self.digits}f})"
        return Claim(
            statement=f"{self.statement} {shown}, lower end",
            source=self.source,
            relation="≥",
            expected=0.0,
            measured=self.gap.low,
            tolerance=0.0,
            reason="lower end of the paired t-interval over seeds: above noise",
            on_record=self.record,
        )


def better(
    statement: str,
    source: str,
    gap: Interval,
    record: Verdict = "not reproduced",
    *,
    digits: int = 1,
) -> Comparison:
    """Return the claim that a paired difference is above noise."""
    return Comparison(
        statement=statement,
        source=source,
        gap=gap,
        says="better",
        record=record,
        digits=digits,
    )


def same(statement: str, gap: Interval, record: Verdict = "reproduced") -> Comparison:
    """Return the claim that no paired difference is to be seen."""
    return Comparison(
        statement=statement, source="ours", gap=gap, says="same", record=record
    )


def decide(comparisons: Sequence[Comparison], *, is_record: bool) -> list[Claim]:
    """Return the claims of one run.

    The record rests on the run at preset paper. A smaller run sees less, and among its
    many 95 % intervals some miss by chance. So it contradicts the record only by a
    difference that is still there when the interval is widened for the number of
    comparisons (Bonferroni); else a verdict that differs from the record is no verdict.

    Parameters
    ----------
    comparisons
        All of the run.
    is_record
        Whether the run has the sizes that the record rests on.
    """
    claims, n = [], len(comparisons)
    for one in comparisons:
        claim = one.claim()
        if claim.is_news and not is_record and one.gap.contains_zero_among(n):
            claim = replace(claim, undecided=_why(one, n))
        claims.append(claim)
    return claims


def _why(one: Comparison, n: int) -> str:
    if one.gap.low <= 0 <= one.gap.high:
        return f"not to be seen with these seeds and sizes, ± {one.gap.half:.2g}"
    return f"within noise for one of {n} comparisons at these sizes"
