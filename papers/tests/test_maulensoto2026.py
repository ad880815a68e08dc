"""Every claim holds on five master seeds, and fails when the code is wrong."""

import gzip

import numpy as np
import pytest
from papers.tests.smoke_runs import failing, run, smoke_run

import eigenheads_papers.maulensoto2026._method as method_module
import eigenheads_papers.maulensoto2026.fixed as fixed_module
import eigenheads_papers.maulensoto2026.rank_k as rank_k_module
from eigenheads._parallel import threads
from eigenheads_papers import experiment_keys, get_experiment
from eigenheads_papers._core import Run
from eigenheads_papers._run import draw_experiment
from eigenheads_papers.maulensoto2026 import non_gaussian

PAPER = "maulensoto2026"
KEYS = [key for key in experiment_keys() if key.startswith(f"{PAPER}/")]
# The longest of them has a shorter run on every change, below.
SLOW = f"{PAPER}/non_gaussian"
SMOKE = [
    pytest.param(key, marks=pytest.mark.slow) if key == SLOW else key for key in KEYS
]
# One on every change, the others with `make test-all`.
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3, 4))]


@pytest.fixture
def no_cache(monkeypatch):
    """Let every figure simulate for itself, whatever ran before."""
    monkeypatch.setattr(method_module, "_SHARED", {})


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("key", SMOKE)
def test_claims_are_as_on_record_on_every_master_seed(key, seed):
    claims = smoke_run(key, seed)[2]
    assert claims
    assert [claim.statement for claim in claims if claim.is_changed] == []


@pytest.mark.parametrize("key", ["fig2", "fig4a", "rank_k"])
def test_same_seed_same_bytes_for_any_number_of_threads(key, monkeypatch):
    fewer = {"ranks": (2,)} if key == "rank_k" else {}
    tables = []
    for count in (1, 3):
        monkeypatch.setattr(method_module, "_SHARED", {})
        with threads(count):
            tables.append(run(f"{PAPER}/{key}", **fewer)[1])
    assert set(tables[0]) == set(tables[1])
    for name in tables[0]:
        assert tables[0][name].tobytes() == tables[1][name].tobytes(), name


@pytest.mark.parametrize("key", SMOKE)
def test_the_figure_is_drawn_from_the_table_alone_and_reproducibly(key):
    params, table, _ = smoke_run(key, 0)
    experiment = get_experiment(key)
    first = draw_experiment(experiment, Run(params, table))
    assert first.startswith(b"<?xml")
    if key.endswith(("fig1", "fig5a", "rank_k")):  # one of each kind
        assert first == draw_experiment(experiment, Run(params, table))


@pytest.mark.parametrize(
    ("whole", "parts"),
    [("fig1", ("fig3a",)), ("fig2", ("fig7a",)), ("fig4a", ("fig4b",))],
)
def test_subsets_of_a_figure_reuse_its_results(whole, parts, monkeypatch):
    """Also when computed on their own: the stream is not that of the figure."""
    tables = []
    for key in (whole, *parts):
        monkeypatch.setattr(method_module, "_SHARED", {})
        tables.append(run(f"{PAPER}/{key}")[1])
    for table in tables[1:]:
        for name, column in tables[0].items():
            np.testing.assert_array_equal(table[name], column)
    assert (
        get_experiment(f"{PAPER}/{whole}").presets
        == get_experiment(f"{PAPER}/{parts[0]}").presets
    )


def test_the_paper_presets_have_the_settings_of_the_paper():
    presets = {
        key.partition("/")[2]: get_experiment(key).presets["paper"] for key in KEYS
    }
    fixed, context = presets["fig1"], presets["fig2"]
    assert (fixed.d, fixed.n_tokens, fixed.n_steps, fixed.n_runs) == (5, 100, 3000, 10)
    assert (fixed.batch_size, fixed.step_size, fixed.start) == (256, 1e-4, 0.1)
    assert (context.n_steps, context.inverse_temperature) == (1000, 1e-3)
    assert context.n_covariances == context.prompts_per_covariance == 100
    assert len(presets["fig5a"].lengths) == len(presets["fig6a"].dimensions) == 20
    # Cut to integers, not rounded: the second is 5.47.
    assert presets["fig5a"].lengths[:3] == (3, 5, 7)
    assert presets["fig5a"].lengths[-1] == 50
    weak = presets["replay"]
    assert (weak.spike, weak.n_steps) == (0.1, 10_001)
    assert presets["fig8a"].lengths == tuple(range(3, 99, 5))
    assert (presets["fig5b"].inverse_temperature, presets["fig5b"].start) == (
        1e-3,
        0.01,
    )


def test_a_doubled_sharpness_is_noticed(no_cache, monkeypatch):
    real = fixed_module.simulate_pca

    def doubled(law, *, inverse_temperature, **options):
        return real(law, inverse_temperature=2 * inverse_temperature, **options)

    monkeypatch.setattr(fixed_module, "simulate_pca", doubled)
    assert failing(run(f"{PAPER}/fig3a")[2])


def test_a_wrong_factor_in_the_step_is_noticed(no_cache, monkeypatch):
    """The error of the authors' script: a factor in the gradient."""
    real = fixed_module.simulate_pca

    def halved(law, *, step_size, **options):
        return real(law, step_size=step_size / 2, **options)

    monkeypatch.setattr(fixed_module, "simulate_pca", halved)
    assert failing(run(f"{PAPER}/fig4a")[2])


def test_descent_of_another_head_is_noticed(no_cache, monkeypatch):
    real = rank_k_module.simulate_pca

    def unlearned(law, *, step_size, **options):
        return real(law, step_size=0.0, **options)

    monkeypatch.setattr(rank_k_module, "simulate_pca", unlearned)
    assert failing(run(f"{PAPER}/rank_k", ranks=(2,))[2])


def test_runs_that_stop_early_are_noticed(no_cache):
    assert failing(run(f"{PAPER}/fig2", n_steps=100)[2])
    assert failing(run(f"{PAPER}/fig8b", n_steps=50)[2])
    params, table, claims = run(SLOW, n_steps=100)
    assert failing(claims)
    assert draw_experiment(get_experiment(SLOW), Run(params, table))


def test_theory_of_other_activations_by_hand():
    """ReLU halves the slope: length √2, all of σ₁. Others explain less."""
    squared, gain = non_gaussian.best_gain("relu")
    np.testing.assert_allclose([squared, gain], [2.0, 1.0], atol=1e-3)
    assert 0.7 < non_gaussian.best_gain("erf")[1] < 0.8
    assert 0.4 < non_gaussian.best_gain("sigmoid")[1] < 0.5


@pytest.mark.torch
@pytest.mark.parametrize("head", non_gaussian.HEADS)
def test_training_on_other_tokens_takes_the_gradient_of_autodiff(head):
    import torch

    from eigenheads.functional import pca_head

    rng = np.random.default_rng(0)
    prompts = rng.standard_normal((1, 2, 5, 3)) * 0.5
    mu = np.array([0.3, -0.2, 0.1])
    leaf = torch.tensor(mu, requires_grad=True)
    tokens = torch.tensor(prompts[0])
    output = pca_head(tokens, leaf, inverse_temperature=1.0, head=head)
    if head == "linear":
        output = output / 5
    loss = ((tokens[:, 0] - output) ** 2).sum(dim=1).mean()
    loss.backward()
    moved = mu.copy()
    index = non_gaussian.HEADS.index(head)
    value = non_gaussian.train_head_on_prompts(
        prompts, moved, index, 1e-3, np.zeros(3), False
    )
    gradient = leaf.grad.numpy()
    gradient = gradient / max(1.0, np.linalg.norm(gradient))
    np.testing.assert_allclose(value, loss.item(), rtol=1e-12)
    np.testing.assert_allclose((mu - moved) / 1e-3, gradient, rtol=1e-9, atol=1e-12)


def test_mnist_patches_are_tiles_of_the_images(tmp_path):
    images = np.arange(2 * 14 * 14, dtype=np.uint8).reshape(2, 14, 14)
    header = np.array([2051, 2, 14, 14], dtype=">i4").tobytes()
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(header + images.tobytes()))
    patches = non_gaussian.mnist_patches(path)
    assert patches.shape == (8, 49)
    np.testing.assert_allclose(patches[1].reshape(7, 7), images[0, :7, 7:] / 255)


def test_the_rate_in_length_is_that_of_a_planted_one(rng):
    from eigenheads_papers.maulensoto2026.lengths import rate_in_length

    lengths = np.array([3.0, 10.0, 30.0, 50.0])
    noise = np.exp(0.01 * rng.standard_normal((4, 6)))
    table = {"setting": lengths, "alignment": 0.9 - 0.3 / lengths[:, None] * noise}
    low, high = rate_in_length(table, 0.9).interval(0.95)
    assert low < -1.0 < high
    assert high - low < 0.1


def test_figures_show_the_panels_of_the_authors_scripts():
    """Finite prompts are 3a and 7a, infinite ones 3b and 7b."""
    for finite, infinite in (("fig3a", "fig3b"), ("fig7a", "fig7b")):
        assert "infinite" not in get_experiment(f"{PAPER}/{finite}").title.lower()
        assert "infinite" in get_experiment(f"{PAPER}/{infinite}").title.lower()
