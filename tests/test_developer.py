"""The skeletons of docs/developer are real: each runs as the part it stands for."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "developer"


def skeleton(name):
    module = f"eigenheads_skeleton_{name}"
    spec = importlib.util.spec_from_file_location(module, FOLDER / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    sys.modules[module] = made  # dataclasses look their module up
    spec.loader.exec_module(made)
    return made


def test_law_draws_what_it_says_and_refuses_nonsense(rng):
    law = skeleton("law").ShiftedTokens(d=3, n_tokens=5, shift=2.0)
    tokens = law.sample(4000, rng)
    # Standard errors are 1/sqrt(20000): beyond seven once in 10^11.
    np.testing.assert_allclose(
        tokens.mean(axis=(0, 1)), [2, 0, 0], atol=7 / np.sqrt(2e4)
    )
    with pytest.raises(ValueError, match="ShiftedTokens: `shift` must be a finite num"):
        skeleton("law").ShiftedTokens(d=3, n_tokens=5, shift=0.0)


def test_experiment_has_claims_a_drawing_and_a_sweep(rng, tmp_path):
    from matplotlib.figure import Figure

    from eigenheads_papers import Run, sweep

    experiment = skeleton("experiment").experiment
    for params in experiment.presets.values():
        run = Run(params, experiment.simulate(params, rng))
        assert [claim.verdict for claim in experiment.check(run)] == ["held"]
    figure = Figure()
    experiment.draw(figure, run)
    assert figure.axes
    swept = sweep(
        experiment,
        grid={"n_samples": "10,100"},
        seeds=3,
        preset="smoke",
        jobs=1,
        out=tmp_path,
    )
    assert swept.mean("mean").shape == (2,)


# scikit-learn skips its check of array libraries unless a variable is set.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_estimator_keeps_the_contract_of_scikit_learn():
    from sklearn.utils.estimator_checks import check_estimator

    pooling = skeleton("estimator").SoftmaxPooling
    check_estimator(pooling())
    with pytest.raises(ValueError, match="SoftmaxPooling: `inverse_temperature` must"):
        pooling(inverse_temperature=0.0).fit(np.eye(2))


@pytest.mark.torch
def test_an_entry_of_the_table_is_all_that_a_statistic_needs(monkeypatch):
    from eigenheads.adapters import probe_model
    from eigenheads.probes import head_probe
    from eigenheads.probes._findings import findings, questions
    from eigenheads.probes._statistics import STATISTICS

    entry = skeleton("probe").ENTRY
    monkeypatch.setitem(STATISTICS, "largest_weight", entry)
    keys = 3 * np.eye(12)[None, None]
    # Queries along their keys put their weight on one key each.
    result = head_probe(2 * keys, keys, keys, statistics=["largest_weight"], n_draws=39)
    sharpness = result.statistics["largest_weight"]
    assert sharpness.observed.item() > 0.9
    assert sharpness.p_value["rotated_queries"].item() == pytest.approx(1 / 40)
    # It is among the statistics of a model, and a page has its sentences.
    heads = {"queries": 2 * keys, "keys": keys, "values": keys}
    probe = probe_model(heads, n_permutations=39)
    assert probe["largest_weight"].about == entry.about
    assert "largest_weight" in questions(probe)[entry.question]
    (sentence,) = [s for s in findings(probe) if "1 of 1 heads attends s" in s]
    assert "(largest_weight: median 0.9" in sentence


@pytest.mark.torch
def test_family_is_captured_swapped_and_restored(monkeypatch):
    import torch

    from eigenheads.adapters import _layers, capture_heads, swap_attention

    module = skeleton("family")
    families = (module.TripleFamily(), *_layers.FAMILIES)
    monkeypatch.setattr(_layers, "FAMILIES", families)
    torch.manual_seed(0)
    model = torch.nn.Sequential(module.TripleAttention(8, 2))  # training: no warning
    x = torch.randn(2, 5, 8)
    (layer,) = capture_heads(model, x)
    weights = np.asarray(layer.weights)
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-5)
    before = model(x)
    swap_attention(model, to="symmetric")
    assert not torch.allclose(model(x), before)
    swap_attention(model, to="original")
    assert torch.equal(model(x), before)
