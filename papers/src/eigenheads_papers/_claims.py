"""Claims of papers, and our own checks, as numbers with verdicts.

A claim says in which range a number must lie. A number without sampling noise is in
the range or not. A number with noise carries an interval: *held* if all of the interval
is in the range, *contradicted* if none of it is, *undecided* otherwise.

Four kinds are counted apart, and their verdicts have words of their own: a paper's
statement in the paper's setting, the same statement on a small model, theory against
simulation, and questions of ours.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, SupportsFloat, TypeAlias

from eigenheads.extend import (
    check_choice,
    check_instance,
    check_number,
    fail,
    format_number,
)
from eigenheads_papers._statistics import LEVEL, Estimate, family_level

Relation: TypeAlias = Literal["≈", "≥", "≤"]
Outcome: TypeAlias = Literal["held", "contradicted", "undecided"]
OUTCOMES: tuple[Outcome, ...] = ("held", "contradicted", "undecided")
Kind: TypeAlias = Literal["claim", "small model", "theory", "question"]
# Only a paper's own statement in its own setting is held or contradicted by us.
WORDS: dict[Kind, tuple[str, str, str]] = {
    "claim": ("held", "contradicted", "undecided"),
    "small model": ("same direction", "opposite direction", "undecided"),
    "theory": ("held", "contradicted", "undecided"),
    "question": ("yes", "no", "open"),
}
NOT_JUDGED = "not judged"
# Reason of claims that a run with changed parameters measures, but does not judge.
CHANGED_SETTING = "not the paper's setting"
# Reason of claims on models that learned nothing that a linear classifier cannot.
POOR_MODELS = "the models do not clearly beat a linear classifier"
_PAPER = re.compile(r"([a-z]+\d{4})[,:]? *(.*)")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Claim about a number, with a verdict.

    Attributes
    ----------
    statement
        What is claimed, in words.
    source
        Key of the paper that makes the claim, then the place in it; "ours" for a check
        of theory against simulation; "question" for a question of ours. Words after a
        colon say more.
    relation
        ``≈`` within the tolerance, ``≥`` or ``≤`` up to the tolerance.
    expected, measured
        Number of the claim and our number.
    tolerance
        Allowed deviation. For claims of "no difference", the margin that was fixed
        before the run.
    reason
        Reason for this bound or tolerance.
    on_record
        Recorded outcome. A run with another one is reported as changed.
    interval, level
        Ends and confidence level of the interval, where the number has sampling noise.
    printed
        Effect reported in the paper, if any.
    own_setting
        Whether data, sizes and constants are the paper's, or a theorem says that they
        do not matter. Only then is the paper's claim held or contradicted; elsewhere
        a small model points in the same direction or the opposite one.
    detectable
        The smallest effect that this run would have found with a power of 80 %.
    family
        Name of the family of claims whose size sets the level.
    undecided
        Reason why a run of this size cannot decide, if the interval does not show it.
    unjudged
        Reason why the number is measured, but not judged.
    changed
        What was changed after a look at the results: the old criterion and the new
        one, and the outcomes of both.

    Examples
    --------
    >>> claim = Claim(statement="half", source="ours", relation="≈", expected=0.5,
    ...               measured=0.52, tolerance=0.05, reason="binomial error")
    >>> claim.verdict, claim.is_changed
    ('held', False)
    """

    statement: str
    source: str
    relation: Relation
    expected: float
    measured: float
    tolerance: float
    reason: str
    on_record: Outcome = "held"
    interval: tuple[float, float] | None = None
    level: float | None = None
    printed: float | None = None
    own_setting: bool = False
    detectable: float | None = None
    family: str = ""
    undecided: str = ""
    unjudged: str = ""
    changed: str = ""
    # Kept until the claim is stored, so that a family can widen the interval.
    estimate: Estimate | None = field(default=None, repr=False, compare=False)

    @property
    def paper(self) -> str:
        """Key of the paper that makes the claim; empty for our own checks."""
        match = _PAPER.match(self.source)
        return match[1] if match else ""

    @property
    def where(self) -> str:
        """Place of the statement in the paper; empty for our own checks."""
        match = _PAPER.match(self.source)
        return match[2] if match else ""

    @property
    def kind(self) -> Kind:
        """Kind of the claim: each is counted apart."""
        if self.paper:
            return "claim" if self.own_setting else "small model"
        return "question" if self.source.startswith("question") else "theory"

    @property
    def is_check(self) -> bool:
        """True if it is our own check and not a claim of a paper."""
        return not self.paper

    @property
    def verdict(self) -> str:
        """Outcome of this run in the words of its kind, or "not judged"."""
        if self.unjudged:
            return NOT_JUDGED
        return WORDS[self.kind][OUTCOMES.index(self.outcome)]

    @property
    def outcome(self) -> Outcome:
        """Outcome of this run, held if the number lies in the range of the claim."""
        if self.undecided or self.unjudged or math.isnan(self.measured):
            return "undecided"
        # A number without noise is an interval of length zero, so one rule serves both.
        low, high = self.interval or (self.measured, self.measured)
        least = -math.inf if self.relation == "≤" else self.expected - self.tolerance
        most = math.inf if self.relation == "≥" else self.expected + self.tolerance
        # The order matters: an interval inside the range holds even if it lies below
        # the effect that the paper prints. The note then says that it is smaller.
        if least <= low and high <= most:
            return "held"
        if high < least or most < low or self._is_below_printed:
            return "contradicted"
        return "undecided"

    @property
    def _is_below_printed(self) -> bool:
        """True if the interval excludes the paper's effect in the paper's setting."""
        if not self.own_setting or self.printed is None or self.interval is None:
            return False
        return self.interval[1] < self.printed

    @property
    def is_changed(self) -> bool:
        """True if the outcome of this run differs from the recorded one.

        An undecided run does not contradict the record; a number that could not be
        measured does.
        """
        if math.isnan(self.measured):
            return not (self.undecided or self.unjudged)
        return self.outcome not in (self.on_record, "undecided")

    @property
    def note(self) -> str:
        """Remark on the verdict, or an empty string."""
        changed = f"changed after a look: {self.changed}" if self.changed else ""
        remark = self.unjudged or self.undecided or self._remark
        return "; ".join(filter(None, (remark, changed)))

    @property
    def _remark(self) -> str:
        if self.outcome == "undecided" and self.detectable is not None:
            claimed = "" if self.printed is None else f"; printed: {self.printed:.3g}"
            if math.inf in (self.interval or ()):
                return f"too few runs to see any effect{claimed}"
            if not math.isfinite(self.detectable):
                return claimed.removeprefix("; ")
            return f"{self._power}{claimed}"
        is_smaller = self.printed is not None and (
            self.interval is not None and self.interval[1] < self.printed
        )
        if self.outcome == "held" and is_smaller:
            return f"smaller than printed ({self.printed:.3g})"
        return ""

    @property
    def _power(self) -> str:
        """Remark on the effect that a run of this size could have shown."""
        low, high = self.interval or (math.nan, math.nan)
        if self.relation == "≈" and high - low >= 2 * self.tolerance:
            # An interval wider than the margins cannot lie inside of them.
            half = (high - low) / 2
            return f"too few runs for this margin: they leave ± {half:.2g}"
        return f"this run would see {self.detectable:.2g} (80 % power)"


_OPTIONS = [one.name for one in fields(Claim)]


def at_least(
    statement: str,
    measured: SupportsFloat | Estimate,
    bound: float,
    why: str,
    *,
    slack: float = 0.0,
    **options: Any,
) -> Claim:
    """Return the claim that a number is at least `bound`.

    Parameters
    ----------
    statement
        What is claimed, in words.
    measured
        Our number, or an estimate with an interval; NaN if it could not be measured,
        which leaves the claim undecided.
    bound
        Number of the claim.
    why
        Reason for this bound or slack.
    slack
        Allowed deviation below the bound.
    options
        Further fields of the claim; `source` is "ours" unless given.

    Examples
    --------
    >>> at_least("share", 0.7, 0.5, "half").verdict
    'held'
    """
    return _claim(statement, "≥", measured, bound, slack, why, options)


def at_most(
    statement: str,
    measured: SupportsFloat | Estimate,
    bound: float,
    why: str,
    *,
    slack: float = 0.0,
    **options: Any,
) -> Claim:
    """Return the claim that a number is at most `bound`; see :func:`at_least`.

    Examples
    --------
    >>> at_most("error", 0.7, 0.5, "half").verdict
    'contradicted'
    >>> at_most("error", float("nan"), 0.5, "NaN: not measured").verdict
    'undecided'
    """
    return _claim(statement, "≤", measured, bound, slack, why, options)


def about(
    statement: str,
    measured: SupportsFloat | Estimate,
    expected: float,
    within: float,
    why: str,
    **options: Any,
) -> Claim:
    """Return the claim that a number is within a margin of the expected one.

    With an estimate this is an equivalence test, made of two one-sided tests against
    the margins. A noisy run cannot pass it. NaN means not measured.

    Examples
    --------
    >>> about("share", 0.52, 0.5, 0.05, "binomial error").verdict
    'held'
    """
    return _claim(statement, "≈", measured, expected, within, why, options)


def difference(
    statement: str, estimate: Estimate, why: str = "", **options: Any
) -> Claim:
    """Return the claim that a difference is positive, judged by its interval.

    `printed` is the difference reported in the paper, and `own_setting` tells whether
    the setting is that of the paper. An estimate of NaN means not measured.
    """
    is_empty = isinstance(why, str) and not why
    reason = "the whole interval is above zero" if is_empty else why
    return _claim(statement, "≥", estimate, 0.0, 0.0, reason, options)


def no_difference(
    statement: str, estimate: Estimate, margin: float, why: str, **options: Any
) -> Claim:
    """Return the claim that a difference is smaller than a margin fixed beforehand.

    An estimate of NaN means not measured.
    """
    return about(statement, estimate, 0.0, margin, why, **options)


def in_family(name: str, claims: Sequence[Claim]) -> list[Claim]:
    """Return claims judged together: intervals at the level 1 − 0.05 / m.

    All verdicts of the family together are wrong with a probability of at most 5 %.
    Claims without an interval are left as they are, and do not count.
    """
    # The bound of Bonferroni needs no independence, and claims of a family may rest on
    # the same runs.
    level = family_level(sum(claim.estimate is not None for claim in claims))
    return [
        replace(_at_level(claim, level), family=name) if claim.estimate else claim
        for claim in claims
    ]


def judged_if(control: Claim, claims: Iterable[Claim]) -> list[Claim]:
    """Return claims on models, judged only if the models pass a control.

    Parameters
    ----------
    control
        Claim that the models beat a good linear classifier on the same data.
    claims
        Claims about these models. Without a control that is held, none has a verdict.
    """
    reason = "" if control.outcome == "held" else POOR_MODELS
    return without_verdict(reason, claims)


def without_verdict(reason: str, claims: Iterable[Claim]) -> list[Claim]:
    """Return claims as measured numbers only; an empty reason changes none.

    Examples
    --------
    >>> (found,) = without_verdict(POOR_MODELS, [at_least("a", 1.0, 0.0, "")])
    >>> found.verdict
    'not judged'
    """
    return [replace(claim, unjudged=claim.unjudged or reason) for claim in claims]


def undecided_because(reason: str, claims: Iterable[Claim]) -> list[Claim]:
    """Return claims that a run of this size cannot decide; without a reason, as given.

    Examples
    --------
    >>> (found,) = undecided_because("too few updates", [at_least("a", 1.0, 0.0, "")])
    >>> found.verdict
    'undecided'
    """
    return [replace(claim, undecided=claim.undecided or reason) for claim in claims]


def as_questions(claims: Iterable[Claim]) -> list[Claim]:
    """Return checks as questions of ours: answered yes or no, or open.

    Examples
    --------
    >>> (found,) = as_questions([at_most("error", 0.7, 0.5, "half")])
    >>> found.verdict
    'no'
    """
    return [replace(claim, source="question") for claim in claims]


def count_outcomes(claims: Iterable[Claim]) -> dict[Kind, tuple[int, int, int]]:
    """Return how many judged claims of each kind are held, contradicted, undecided.

    Examples
    --------
    >>> count_outcomes([at_least("a", 1.0, 0.0, "")])["theory"]
    (1, 0, 0)
    """
    counts = Counter(
        (claim.kind, claim.outcome) for claim in claims if is_judged(claim)
    )
    return {
        kind: (
            counts[kind, "held"],
            counts[kind, "contradicted"],
            counts[kind, "undecided"],
        )
        for kind in WORDS
    }


def is_judged(claim: Claim) -> bool:
    """Return whether a claim has a verdict, and is not only a measured number."""
    return not claim.unjudged


def count_verdicts(claims: Iterable[Claim]) -> str:
    """Return the counts in words, each kind apart.

    Examples
    --------
    >>> count_verdicts([at_least("a", 1.0, 0.0, "", source="marion2025, Figure 5"),
    ...                 at_least("b", 1.0, 0.0, "")])
    'on small models: 1 same direction; theory against simulation: 1 of 1'
    """
    claims = list(claims)
    if claims and all(claim.unjudged == CHANGED_SETTING for claim in claims):
        return f"{len(claims)} numbers measured, not judged: {CHANGED_SETTING}"
    counts = count_outcomes(claims)
    titles: dict[Kind, str] = {
        "claim": "claims",
        "small model": "on small models",
        "question": "our questions",
    }
    parts = {kind: _told(kind, counts[kind], titles[kind]) for kind in titles}
    passed, n = counts["theory"][0], sum(counts["theory"])
    theory = f"theory against simulation: {passed} of {n}" if n else ""
    n_unjudged = sum(not is_judged(claim) for claim in claims)
    unjudged = f"{n_unjudged} {NOT_JUDGED}" if n_unjudged else ""
    sentences = (
        parts["claim"],
        parts["small model"],
        theory,
        parts["question"],
        unjudged,
    )
    return "; ".join(filter(None, sentences)) or "no claims at this size"


def _told(kind: Kind, numbers: tuple[int, int, int], title: str) -> str:
    """Return the counts of one kind in words, or nothing."""
    words = zip(numbers, WORDS[kind], strict=True)
    counted = ", ".join(f"{number} {word}" for number, word in words if number)
    return f"{title}: {counted}" if counted else ""


def format_expected(claim: Claim) -> str:
    """Return the range that decides a claim, marked if the claim is our own.

    Examples
    --------
    >>> claim = at_least("share", 1.0, 1.0, "of seeds", slack=0.03)
    >>> format_expected(claim), format_expected(about("share", 1.0, 1.0, 0.03, ""))
    ('ours: ≥ 0.97', 'ours: 1 ± 0.03')
    """
    owner = "ours: " if claim.is_check else ""
    # A tolerance of a bound moves the bound; the bound that decides is shown.
    sign = {"≥": -1.0, "≤": 1.0, "≈": 0.0}[claim.relation]
    bound = format_number(claim.expected + sign * claim.tolerance)
    if sign:
        return f"{owner}{claim.relation} {bound}"
    if not claim.tolerance:
        return f"{owner}= {bound}"
    return f"{owner}{bound} ± {format_number(claim.tolerance)}"


def format_measured(claim: Claim) -> str:
    """Return the measured number of a claim, with its interval where it has one.

    Examples
    --------
    >>> format_measured(Claim(statement="", source="ours", relation="≥", expected=0.0,
    ...                       measured=1.0, tolerance=0.0, reason="", level=0.95,
    ...                       interval=(0.5, 1.5)))
    '1 (0.5 to 1.5, 95 %)'
    """
    text = format_number(claim.measured)
    if claim.interval is None or claim.level is None:
        return text
    low, high = map(format_number, claim.interval)
    return f"{text} ({low} to {high}, {100 * claim.level:.3g} %)"


def _claim(
    statement: str,
    relation: Relation,
    measured: SupportsFloat | Estimate,
    expected: float,
    tolerance: float,
    why: str,
    options: dict[str, Any],
) -> Claim:
    estimate = measured if isinstance(measured, Estimate) else None
    for option in options:
        check_choice("options", option, _OPTIONS)
    claim = Claim(
        statement=check_instance("statement", statement, str),
        relation=relation,
        expected=check_number("expected", expected),
        measured=_number(
            measured.value if isinstance(measured, Estimate) else measured
        ),
        tolerance=check_number("tolerance", tolerance, minimum=0.0),
        reason=check_instance("why", why, str),
        estimate=estimate,
        **{"source": "ours", **options},
    )
    # This is the level of a claim that stands alone; `in_family` may widen it later.
    return _at_level(claim, LEVEL)


def _number(measured: object) -> float:
    """Return a measured number as a float; NaN says that it could not be measured."""
    # NumPy's scalars and arrays without axes are numbers, too; lists are not.
    if getattr(measured, "ndim", 0) or not isinstance(measured, SupportsFloat):
        fail("measured", "one number", measured)
    return float(measured)


def _at_level(claim: Claim, level: float) -> Claim:
    """Return the claim with its interval at a level of the family."""
    if claim.estimate is None:
        return claim
    # Two one-sided tests at α are the interval at 1 − 2α inside the margins.
    claim_level = 1 - 2 * (1 - level) if claim.relation == "≈" else level
    return replace(
        claim,
        interval=claim.estimate.interval(claim_level),
        level=claim_level,
        detectable=claim.estimate.detectable(level),
    )
