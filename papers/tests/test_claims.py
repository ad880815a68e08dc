"""Verdicts follow the rules: intervals, margins, families, records."""

import dataclasses
import math

import numpy as np
import pytest

from eigenheads_papers import (
    Claim,
    about,
    at_least,
    at_most,
    difference,
    no_difference,
)
from eigenheads_papers import _statistics as statistics
from eigenheads_papers._claims import (
    CHANGED_SETTING,
    count_outcomes,
    count_verdicts,
    in_family,
    judged_if,
)
from eigenheads_papers._statistics import farthest_share_estimate, mean_estimate


def claim(**changes):
    fields = {
        "statement": "s",
        "source": "ours",
        "relation": "≈",
        "expected": 1.0,
        "measured": 1.0,
        "tolerance": 0.1,
        "reason": "r",
    }
    return Claim(**{**fields, **changes})


def noisy(mean, half, n=9):
    """Return an estimate whose 95 % interval is mean ± half."""
    unit = mean_estimate(np.linspace(-1, 1, n))
    width = unit.interval(0.95)[1]
    return mean_estimate(mean + half / width * np.linspace(-1, 1, n))


@pytest.mark.parametrize(
    ("relation", "below", "within", "above"),
    [
        ("≈", "contradicted", "held", "contradicted"),
        ("≥", "contradicted", "held", "held"),
        ("≤", "held", "held", "contradicted"),
    ],
)
def test_relations_mean_what_they_say(relation, below, within, above):
    for measured, verdict in (
        (0.8, below),
        (0.95, within),
        (1.05, within),
        (1.2, above),
    ):
        assert claim(relation=relation, measured=measured).verdict == verdict


@pytest.mark.parametrize("relation", ["≈", "≥", "≤"])
def test_a_number_that_was_not_measured_decides_nothing_and_is_reported(relation):
    unmeasured = claim(relation=relation, measured=math.nan)
    assert unmeasured.verdict == "undecided"
    assert unmeasured.is_changed


@pytest.mark.parametrize(
    ("mean", "verdict"), [(2.0, "held"), (0.5, "undecided"), (-2.0, "contradicted")]
)
def test_a_difference_is_judged_by_its_whole_interval(mean, verdict):
    assert difference("s", noisy(mean, 1.0)).verdict == verdict


def test_only_in_the_papers_setting_is_a_missed_effect_a_contradiction():
    options = {"printed": 3.0, "source": "teo2024"}
    small = noisy(0.5, 1.0)
    assert difference("s", small, **options).verdict == "undecided"
    own = difference("s", small, own_setting=True, **options)
    assert own.verdict == "contradicted"
    held = difference("s", noisy(1.5, 1.0), own_setting=True, **options)
    assert held.verdict == "held"
    assert held.note == "smaller than printed (3)"


@pytest.mark.parametrize(
    ("mean", "half", "verdict"),
    [
        (0.0, 0.5, "held"),
        (0.0, 5.0, "undecided"),  # noise is no evidence of equality
        (3.0, 0.5, "contradicted"),
        (0.9, 0.5, "undecided"),
    ],
)
def test_no_difference_needs_the_margin(mean, half, verdict):
    assert no_difference("s", noisy(mean, half), 1.0, "r").verdict == verdict


def test_an_undecided_claim_states_the_effect_it_could_have_seen():
    unsure = difference("s", noisy(0.5, 1.0), printed=0.84)
    assert unsure.detectable > 1.0
    assert "80 % power" in unsure.note
    assert "0.84" in unsure.note


def test_families_widen_intervals_and_leave_plain_claims_alone():
    alone = difference("s", noisy(1.2, 1.0))
    assert alone.verdict == "held"
    family = in_family("f", [alone] * 10 + [at_least("t", 1.0, 0.0, "r")])
    assert {one.verdict for one in family[:-1]} == {"undecided"}
    assert family[0].level == pytest.approx(1 - 0.05 / 10)
    assert (family[0].family, family[-1].family) == ("f", "")
    assert family[-1].level is None


def test_equivalence_uses_two_one_sided_tests():
    assert no_difference("s", noisy(0.0, 0.5), 1.0, "r").level == pytest.approx(0.9)


def test_a_verdict_against_the_record_is_a_change_both_ways():
    assert claim(measured=2.0).is_changed
    assert not claim(measured=2.0, on_record="contradicted").is_changed
    assert claim(measured=1.0, on_record="contradicted").is_changed
    assert claim(measured=1.0, on_record="undecided").is_changed
    assert not claim().is_changed


def test_a_run_that_cannot_tell_does_not_contradict_the_record():
    unsure = claim(measured=2.0, undecided="too few seeds")
    assert unsure.verdict == "undecided"
    assert not unsure.is_changed
    assert unsure.note == "too few seeds"


def test_changed_settings_are_counted_as_measured_not_judged():
    changed = [claim(measured=x, unjudged=CHANGED_SETTING) for x in (1.0, 2.0)]
    assert count_verdicts(changed) == (
        "2 numbers measured, not judged: not the paper's setting"
    )
    assert count_verdicts([*changed, claim()]) == (
        "theory against simulation: 1 of 1; 2 not judged"
    )


def test_builders_fill_in_the_fields():
    assert at_least("s", 1.0, 0.9, "r").is_check
    made = at_most("s", 1.0, 0.9, "r", slack=0.2, source="marion2025, Figure 4")
    assert (made.paper, made.where) == ("marion2025", "Figure 4")
    assert (made.outcome, made.tolerance) == ("held", 0.2)
    assert about("s", 1.0, 0.9, 0.05, "r").verdict == "contradicted"


def kinds(outcome):
    """Return one claim of each kind with the same outcome."""
    mean = {"held": 2.0, "undecided": 0.5, "contradicted": -2.0}[outcome]
    sources = (
        {"source": "teo2024, Table 1", "own_setting": True},
        {"source": "teo2024, Table 1"},
        {"source": "ours: a derivation"},
        {"source": "question: which one?"},
    )
    return [difference("s", noisy(mean, 1.0), **source) for source in sources]


@pytest.mark.parametrize(
    ("outcome", "verdicts"),
    [
        ("held", ["held", "same direction", "held", "yes"]),
        (
            "contradicted",
            ["contradicted", "opposite direction", "contradicted", "no"],
        ),
        ("undecided", ["undecided", "undecided", "undecided", "open"]),
    ],
)
def test_a_small_model_neither_holds_nor_contradicts_a_claim(outcome, verdicts):
    assert [one.verdict for one in kinds(outcome)] == verdicts


def test_the_four_kinds_are_counted_apart():
    every = [
        *kinds("held"),
        *kinds("held"),
        *kinds("contradicted"),
        *kinds("undecided"),
    ]
    assert set(count_outcomes(every).values()) == {(2, 1, 1)}
    assert count_verdicts(every) == (
        "claims: 2 held, 1 contradicted, 1 undecided; on small models: 2 same "
        "direction, 1 opposite direction, 1 undecided; theory against simulation: 2 of "
        "4; our questions: 2 yes, 1 no, 1 open"
    )


@pytest.mark.parametrize("edge", [2.0, 0.5, -2.0])
def test_models_without_a_lead_over_a_linear_classifier_have_no_verdict(edge):
    """Only a lead that is held opens the verdicts; an undecided one does not."""
    control = difference("lead over a linear classifier", noisy(edge, 1.0))
    verdicts = [one.verdict for one in judged_if(control, kinds("held"))]
    if edge == 2.0:
        assert verdicts == [one.verdict for one in kinds("held")]
        return
    assert set(verdicts) == {"not judged"}
    assert not any(map(sum, count_outcomes(judged_if(control, kinds("held"))).values()))


def test_intervals_stay_in_the_range_of_the_quantity():
    accuracies = [0.9, 1.0, 1.0, 0.8, 1.0]
    low, high = mean_estimate(accuracies).interval(0.99)
    assert high > 1.0
    assert mean_estimate(accuracies, within=(0.0, 1.0)).interval(0.99) == (low, 1.0)


@pytest.mark.parametrize("within", [(0.0, 1.0), (-math.inf, math.inf)])
def test_equal_numbers_are_no_interval(within):
    estimate = mean_estimate(np.zeros(5), within=within)
    assert estimate.interval(0.95) == within
    assert at_most("s", estimate, 0.5, "r").verdict == "undecided"


def test_the_farthest_of_several_shares_has_one_interval_for_all(rng):
    """Under the expected shares, the interval contains zero distance in 95 %."""
    expected = np.array([0.1, 0.5, 0.9])
    missed = 0
    for counts in rng.binomial(40, expected, size=(400, 3)):
        low, high = farthest_share_estimate(counts, 40, expected).interval(0.95)
        assert low <= np.abs(counts / 40 - expected).max() <= high
        missed += low > 0
    assert missed <= 400 * 0.05 + 4 * math.sqrt(400 * 0.05 * 0.95)
    far = farthest_share_estimate([20, 20, 20], 40, [0.0, 0.5, 0.5])
    assert far.interval(0.95)[0] > 0.3


def test_a_run_that_could_not_reach_its_margin_says_so():
    wide = no_difference("s", noisy(0.0, 5.0), 1.0, "r")
    assert wide.note == "too few runs for this margin: they leave ± 4"
    narrow = no_difference("s", noisy(0.9, 0.5), 1.0, "r")
    assert "too few runs" not in narrow.note


def test_what_changed_after_a_look_is_said_with_every_verdict():
    for one in kinds("held"):
        told = dataclasses.replace(one, changed="0.8 (no), now 0.5 (yes)").note
        assert told.endswith("changed after a look: 0.8 (no), now 0.5 (yes)")


def test_claims_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        claim().measured = 2.0


def test_differences_that_are_all_zero_are_undecided():
    """Equal outcomes on every seed are no gain, and say nothing of the spread."""
    zero = mean_estimate(np.zeros(10))
    assert difference("gain", zero).verdict == "undecided"
    assert no_difference("gain", zero, 0.5, "a margin").verdict == "undecided"


N_DRAWS = 1000
# Four standard errors of a share of 5 %.
ERROR = 4 * math.sqrt(0.05 * 0.95 / N_DRAWS)


def share_of(verdicts, wanted):
    return np.mean([wanted in one for one in verdicts])


@pytest.fixture
def without_power(monkeypatch):
    """The effect that a run would see is not needed for its verdict, and slow."""
    monkeypatch.setattr(statistics, "detectable_effect", lambda *_, **__: math.inf)


@pytest.mark.usefixtures("without_power")
def test_a_family_without_effects_is_decided_in_one_of_twenty_runs(rng):
    """Five differences that are zero, and share half of their noise."""
    noise = rng.standard_normal((N_DRAWS, 5, 8)) + rng.standard_normal((N_DRAWS, 1, 8))
    verdicts = [
        {
            one.verdict
            for one in in_family("f", [difference("s", mean_estimate(x)) for x in run])
        }
        for run in noise
    ]
    decided = share_of(verdicts, "held") + share_of(verdicts, "contradicted")
    assert decided <= 0.05 + ERROR
    # The bound of Bonferroni is not far off for such claims.
    assert decided >= 0.01


@pytest.mark.usefixtures("without_power")
def test_at_its_margin_no_difference_is_held_in_one_of_twenty_runs(rng):
    sample = rng.standard_normal((N_DRAWS, 20)) + 1.0
    verdicts = [
        {no_difference("s", mean_estimate(x), 1.0, "r").verdict} for x in sample
    ]
    assert share_of(verdicts, "held") == pytest.approx(0.05, abs=ERROR)


def test_the_effect_that_could_have_been_seen_is_found_in_four_of_five_runs(
    rng, request
):
    sample = rng.standard_normal((N_DRAWS, 8))
    stated = [difference("s", mean_estimate(x)).detectable for x in sample[:100]]
    request.getfixturevalue("without_power")
    verdicts = [
        {difference("s", mean_estimate(x + np.mean(stated))).verdict} for x in sample
    ]
    # The mean of a spread estimated from eight numbers is 3.5 % too small, which costs
    # two points of power; the rest is four standard errors.
    assert share_of(verdicts, "held") == pytest.approx(0.8, abs=0.07)
