"""The small ViT of the experiments, and the loss along its training."""

import dataclasses
import functools

import numpy as np
import pytest

from eigenheads._parallel import threads
from eigenheads_papers import _models, get_experiment
from eigenheads_papers._core import Run
from eigenheads_papers._run import draw_experiment, experiment_rng
from eigenheads_papers.teo2024 import reconstruction

pytestmark = pytest.mark.torch
KEY = "teo2024/reconstruction"


def run(seed, **changes):
    experiment = get_experiment(KEY)
    params = dataclasses.replace(experiment.presets["smoke"], **changes)
    table = experiment.simulate(params, experiment_rng(KEY, seed))
    return params, table, experiment.check(Run(params, table))


@functools.cache
def smoke_run(seed):
    return run(seed)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_claims_are_as_on_record_on_every_master_seed(seed):
    claims = smoke_run(seed)[2]
    assert claims
    assert [claim.statement for claim in claims if claim.is_changed] == []


def test_the_figure_is_drawn_from_the_table_alone_and_reproducibly():
    params, table, _ = smoke_run(0)
    first = draw_experiment(get_experiment(KEY), Run(params, table))
    assert first == draw_experiment(get_experiment(KEY), Run(params, table))


def test_same_seed_same_bytes_for_any_number_of_threads():
    import torch

    tables = []
    before = torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        with threads(count):
            tables.append(run(0, n_steps=2, n_records=2, n_layers=1)[1])
        assert torch.get_num_threads() == count
    torch.set_num_threads(before)
    for name in tables[0]:
        assert tables[0][name].tobytes() == tables[1][name].tobytes(), name


def test_norms_that_were_exchanged_are_noticed(monkeypatch):
    real = reconstruction.norms

    def exchanged(body, batch):
        found = real(body, batch)
        names = {"feature_norm": "output_norm", "output_norm": "feature_norm"}
        found = {names.get(name, name): value for name, value in found.items()}
        return found | {"loss": -found["loss"]}

    monkeypatch.setattr(reconstruction, "norms", exchanged)
    claims = run(0, n_steps=3, width=16, n_heads=1, n_layers=1, n_seeds=5)[2]
    # The models are too poor for a verdict; the numbers must differ all the same.
    judged = [dataclasses.replace(claim, unjudged="") for claim in claims]
    assert sum(claim.is_changed for claim in judged) >= 2


def test_norms_are_those_of_the_definition():
    """By hand, for one head: |φ(q)/g(q)|² and the output's length."""
    import torch

    batch = _models.held_out(2)[0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body, _ = _models._build(_models.ViT(width=8, n_heads=1, n_layers=1))
    body.eval()
    found = reconstruction.norms(body, batch)
    layer = body[1].layers[0]
    with torch.no_grad():
        tokens = layer.norm1(body[0](batch))
        q, k, v = torch.nn.functional.linear(
            tokens, layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias
        ).chunk(3, dim=-1)
    q, k, v = (part.double().numpy() for part in (q, k, v))
    kernel = np.exp(q @ k.swapaxes(1, 2) / np.sqrt(8))
    g = kernel.sum(axis=-1)
    feature = np.exp((q * q).sum(axis=-1) / np.sqrt(8)) / g**2
    output = ((kernel / g[..., None] @ v) ** 2).sum(axis=-1)
    np.testing.assert_allclose(found["feature_norm"], np.median(feature), rtol=1e-4)
    np.testing.assert_allclose(found["mean_output_norm"], output.mean(), rtol=1e-4)
    np.testing.assert_allclose(found["longer"], np.mean(output > feature))


def test_the_program_s_statistic_is_that_of_its_formula():
    """By hand: the numerator without scale, the normaliser from the first weight."""
    import torch

    from eigenheads_papers.teo2024 import _models as small_models

    batch = _models.held_out(2)[0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body, _ = _models._build(_models.ViT(width=8, n_heads=2, n_layers=1))
    body.train()
    before = body[1].layers[0].self_attn.in_proj_weight
    small_models.standardize_attention(body)
    found = small_models.program_loss(body, batch)
    layer = body[1].layers[0]
    assert layer.self_attn.in_proj_weight is before
    with torch.no_grad():
        tokens = layer.norm1(body[0](batch)).double()
        weight, bias = layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias
        parts = tokens @ weight.double().T + bias.double()
    q, k, v = (
        part.reshape(2, 65, 2, 4).transpose(1, 2).numpy()
        for part in parts.chunk(3, dim=-1)
    )
    q, k = (
        (x - x.mean(-1, keepdims=True)) / x.std(-1, ddof=1, keepdims=True)
        for x in (q, k)
    )
    products = q @ k.swapaxes(-1, -2)
    weights = np.exp(products / 2)
    weights /= weights.sum(axis=-1, keepdims=True)
    # With D − 1 in the variance every standardised query has the squared length D − 1.
    np.testing.assert_allclose((q * q).sum(axis=-1), 3)
    norm = np.exp(3) / np.exp(2 * products[..., 0] - np.log(weights[..., 0] ** 2))
    expected = (norm - ((weights @ v) ** 2).sum(axis=-1)).mean()
    np.testing.assert_allclose(found, [expected], rtol=1e-3)


def test_training_never_sees_the_held_out_images(monkeypatch):
    seen = []
    real = _models.vit_batch
    held, _ = _models.held_out(360)
    rows = {row.tobytes() for row in held.numpy()[:, 1:, 0]}
    monkeypatch.setattr(
        _models, "vit_batch", lambda images: seen.append(images) or real(images)
    )
    _models.train_vit(_models.ViT(n_steps=3, width=8, n_heads=1, n_layers=1), 0)
    used = {row.astype(np.float32).tobytes() for part in seen for row in part}
    assert used and not used & rows


def test_training_leaves_the_global_random_numbers_alone():
    import torch

    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    _models.train_vit(_models.ViT(n_steps=1, width=8, n_heads=1, n_layers=1), 0)
    assert torch.equal(torch.rand(1), expected)
