"""Findings in plain words: counts, absences, open cases."""

import re
from dataclasses import replace

import numpy as np
import pytest

from eigenheads.probes import ModelProbe, Statistic
from eigenheads.probes._findings import findings, paragraph, questions
from eigenheads.report._probe import print_probe


@pytest.fixture
def probe(rng):
    """Six heads: three attend to the previous token, none to the first."""
    draws = rng.standard_normal((2, 3, 199))
    planted = np.array([[9.0, 9.0, 9.0], [0.0, 0.0, 0.0]])
    few = {"untrained": draws[..., :3]}
    statistics = [
        Statistic("previous_token", planted, {"a_null": draws}, "greater", ""),
        Statistic("sink_mass", 0 * planted, {"a_null": draws}, "greater", ""),
        Statistic("my_own", planted, few, "less", "Something else."),
    ]
    by_name = {one.name: one for one in statistics}
    return ModelProbe([0, 7], ["a", "b"], by_name, {}, ["A note. " * 30])


def test_sentences_count_heads(probe):
    first, none, unknown = findings(probe)
    assert first.startswith(
        "Layer 0, head 0 gives the previous token 9 of its weight, then layer 0, head "
        "1 (9) and layer 0, head 2 (9) (3 of 6 heads more than half; 3 stand out). 3 "
        "of 6 heads attend to the previous token (previous_token:"
    )
    assert probe.findings()[0] == first
    assert str(probe).splitlines()[:2] == [repr(probe), first]
    assert repr(probe) == "<ModelProbe: 3 statistics of 6 heads in 2 layers>"
    assert none == "No head stands out in sink_mass."
    assert unknown == "Cannot tell: my_own (needs 19 draws)."


def test_one_paragraph_says_what_was_found(probe):
    assert paragraph(probe) == (
        "Layer 0, head 0 gives the previous token 9 of its weight (3 of 6 heads more "
        "than half; 3 stand out) and none attends to the first token. Cannot tell in "
        "1 statistic, needs 19 draws."
    )


def test_heads_that_stand_out_lead(probe):
    rows = probe.top_heads("previous_token", 4)
    assert [(row["layer"], row["head"]) for row in rows[:3]] == [(0, 0), (0, 1), (0, 2)]
    assert [row["stands_out"] for row in rows] == [True] * 3 + [False]
    assert [row["layer"] for row in rows] == [0, 0, 0, 7]
    assert len(probe.top_heads("my_own", 99)) == 6
    values = np.array([[0.1, 0.9, 0.5]])
    for alternative, order in (
        ("greater", [1, 2, 0]),
        ("less", [0, 2, 1]),
        ("two-sided", [0, 1, 2]),
    ):
        one = Statistic("x", values, {}, alternative, "")
        rows = ModelProbe([0], ["a"], {"x": one}).top_heads("x")
        assert [row["head"] for row in rows] == order


def test_the_paragraph_names_the_most_frequent_findings(rng):
    draws = rng.standard_normal((1, 4, 199))
    names = ("entropy", "largest_share", "previous_token", "sink_mass", "induction")
    # Heads found: 1, 2, 3, 4, and none.
    made = {
        name: Statistic(
            name, 9.0 * (np.arange(4)[None] < n), {"x": draws}, "greater", ""
        )
        for name, n in zip(names, (1, 2, 3, 4, 0), strict=True)
    }
    text = paragraph(ModelProbe([0], ["a"], made))
    assert text == (
        "Layer 0, head 0 gives the first token 9 of its weight (4 of 4 heads more than "
        "half; 4 stand out), layer 0, head 0 gives the previous token 9 of its weight "
        "(3 of 4 heads more than half; 3 stand out), layer 0, head 0 gives one key 9 "
        "of its weight (2 of 4 heads more than half; 2 stand out) and none attends to "
        "the tokens after earlier copies (induction) (1 more below)."
    )
    alone = paragraph(ModelProbe([0], ["a"], {"entropy": made["entropy"]}))
    assert alone.startswith("Layer 0, head 0 attends with 9 of the entropy of equal")
    none = paragraph(ModelProbe([0], ["a"], {"induction": made["induction"]}))
    assert none.startswith("No head attends to the tokens")
    bare = {"entropy": Statistic("entropy", np.ones((1, 4)), {}, "greater", "")}
    assert paragraph(ModelProbe([0], ["a"], bare)) == (
        "No statistic was compared with a null."
    )


def test_undecided_heads_need_draws(rng):
    observed = np.array([[9.0] + [0.0] * 9])
    draws = {"untrained": rng.standard_normal((1, 10, 99)) + 3}
    one = Statistic("entropy", observed, draws, "greater", "")
    probe = ModelProbe([0], ["a"], {"entropy": one}, {"n_untrained": 9})
    assert findings(probe) == ["Cannot tell: entropy (needs 19 untrained copies)."]
    # Once for all statistics, whichever question they answer.
    two = {name: replace(one, name=name) for name in ("entropy", "linear_cka")}
    assert paragraph(replace(probe, statistics=two)) == (
        "Cannot tell in 2 statistics, needs 19 untrained copies."
    )
    few = {"a": draws["untrained"][..., :38]}
    one = Statistic("entropy", 0 * observed, few, "greater", "")
    probe = ModelProbe([0], ["a"], {"entropy": one})
    assert findings(probe) == ["Cannot tell: entropy (needs 39 draws)."]


def test_shares_are_named_before_they_are_tested(rng):
    observed = np.array([[0.9, 0.1, 0.2]])
    few = {"a": rng.standard_normal((1, 3, 5))}
    one = Statistic("sink_mass", observed, few, "greater", "")
    probe = ModelProbe([4], ["a"], {"sink_mass": one})
    assert paragraph(probe) == (
        "Layer 4, head 0 gives the first token 0.9 of its weight (1 of 3 heads more "
        "than half; cannot tell against chance). Cannot tell in 1 statistic, needs 49 "
        "draws."
    )
    assert findings(probe)[0].startswith("Layer 4, head 0 gives the first token 0.9")


def test_a_null_that_decides_against_all_heads_closes_the_case(rng):
    observed = np.array([[0.0] * 10])
    draws = rng.standard_normal((1, 10, 999))
    nulls = {"decides": draws, "untrained": draws[..., :9]}
    one = Statistic("entropy", observed, nulls, "greater", "")
    probe = ModelProbe([0], ["a"], {"entropy": one}, {"n_untrained": 1})
    assert findings(probe) == ["No head stands out in entropy."]
    # Found against the null that decides: the other one is said to be short.
    one = Statistic("entropy", observed + 9, nulls, "greater", "")
    probe = ModelProbe([0], ["a"], {"entropy": one}, {"n_untrained": 1})
    (sentence,) = findings(probe)
    assert "10 of 10 heads attend" in sentence
    assert "copies to decide" in sentence


def test_medians_that_a_few_tokens_carry_are_said(rng, capsys):
    draws = {"a_null": rng.standard_normal((1, 4, 99))}
    made = {
        name: Statistic(name, np.array([[0.5, 0.4, 0.6, 0.5]]), draws, "greater", "")
        for name in ("entropy", "largest_share")
    }
    other = {
        "entropy": 0.5 * made["entropy"].observed,
        "largest_share": 0.95 * made["entropy"].observed,
    }
    sets = {"without the first token": other, "without outlier tokens": {**other}}
    sets["without outlier tokens"]["entropy"] = other["largest_share"]
    probe = ModelProbe([0], ["a"], made, contrasts=sets)
    assert findings(probe)[-2:] == [
        "Without the first token, medians change: entropy 0.25 instead of 0.5.",
        "Without outlier tokens, no median changes by more than a tenth.",
    ]
    print_probe(probe, title="A model")
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert re.search(r"entropy +0.5 +0.25 +1  without the first token", shown)


def test_statistics_are_grouped_by_question(probe):
    grouped = questions(probe)
    assert list(grouped.values()) == [["previous_token", "sink_mass"], ["my_own"]]


def test_lines_have_at_most_80_characters(probe, capsys):
    print_probe(probe, title="a/very/long/name\x1b[2J " * 9)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown
    assert re.search(r"a_null +-?[\d.e-]+ +3\n", shown)
    assert re.search(r"\? +19 draws\n", shown)
    assert "  layer   7   .  .  ." in shown
