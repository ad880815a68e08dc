import dataclasses
import math

import pytest

from eigenheads.experiments import Claim


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


@pytest.mark.parametrize(
    ("relation", "below", "within", "above"),
    [
        ("≈", False, True, False),
        ("≥", False, True, True),
        ("≤", True, True, False),
    ],
)
def test_relations_mean_what_they_say(relation, below, within, above):
    for measured, holds in ((0.8, below), (0.95, within), (1.05, within), (1.2, above)):
        assert claim(relation=relation, measured=measured).holds is holds


@pytest.mark.parametrize("relation", ["≈", "≥", "≤"])
def test_what_was_not_measured_never_holds(relation):
    assert not claim(relation=relation, measured=math.nan).holds


def test_a_verdict_against_the_record_is_news_both_ways():
    assert claim(measured=2.0).is_news
    assert not claim(measured=2.0, on_record="not reproduced").is_news
    assert claim(measured=1.0, on_record="not reproduced").is_news
    assert not claim().is_news


def test_what_a_small_run_cannot_tell_is_no_verdict_and_no_news():
    unsure = claim(measured=2.0, undecided="too few seeds")
    assert unsure.verdict == "undecided"
    assert not unsure.is_news
    assert not unsure.holds


def test_claims_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        claim().measured = 2.0
