"""simulate_pca: promises of its records, agreement in law, bad input."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from eigenheads.datasets import (
    GaussianPrompts,
    SpikedWishartPrompts,
    random_covariance,
)
from eigenheads.functional import NotIdentifiedWarning, pca_head
from eigenheads.models import _pca, pca_start, simulate_pca
from eigenheads.models._pca_prompts import PCAProblem, pca_block
from eigenheads.theory import PCALandscape

NAMES = ("alignment", "norm", "loss")
COVARIANCE = random_covariance(4, np.random.default_rng(3))
LAWS = {
    "gaussian": GaussianPrompts(COVARIANCE, 6),
    "in context": SpikedWishartPrompts(
        4, 6, degrees_of_freedom=5, prompts_per_covariance=2
    ),
    "few degrees": SpikedWishartPrompts(4, 6, degrees_of_freedom=3),
}
SMALL = {
    "inverse_temperature": 0.02,
    "step_size": 1e-3,
    "batch_size": 3,
    "n_steps": 25,
    "n_runs": 3,
    "record_every": 10,
    "seed": 5,
}
# Family-wise false alarm of a test in law; divided by the number of comparisons.
FALSE_ALARM = 1e-5


def simulated(law="gaussian", **options):
    return simulate_pca(LAWS[law], **(SMALL | options))


def full_gradient(law, head, rank, sharp, state, seed):
    """One batch's loss and gradient by the full kernel, in the eigenbasis."""
    values = np.linalg.eigvalsh(law.covariance)[::-1]
    problem = PCAProblem(
        np.sqrt(values), 0, law.n_tokens, sharp, head == "softmax", 1, 1, 0, 1
    )
    rng = np.random.Generator(np.random.SFC64(seed))
    moved, records = state.T.copy(), np.empty((1, 3))
    broken = pca_block(
        rng, (moved, problem.roots), np.array([1.0]), problem, False, 0, 1, records
    )
    assert broken == -1
    return records[0, 2], state - moved.T, problem.roots


@pytest.mark.torch
@pytest.mark.parametrize("head", ["softmax", "linear"])
@pytest.mark.parametrize("rank", [1, 3])
def test_the_full_step_is_that_of_autodiff(head, rank):
    import torch

    law, sharp = LAWS["gaussian"], 0.05
    state = np.random.default_rng(0).standard_normal((4, rank))
    loss, gradient, roots = full_gradient(law, head, rank, sharp, state, 11)
    rng = np.random.Generator(np.random.SFC64(11))
    tokens = torch.tensor(rng.standard_normal((6, 4)) * roots)
    m = torch.tensor(state, requires_grad=True)
    output = pca_head(tokens, m, inverse_temperature=sharp, head=head)
    expected = ((tokens[0] - output) ** 2).sum()
    expected.backward()
    assert_allclose(loss, expected.item(), rtol=1e-10)
    assert_allclose(gradient, m.grad.numpy(), rtol=1e-8, atol=1e-10)


@pytest.mark.filterwarnings("ignore::eigenheads.functional.NotIdentifiedWarning")
@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("head", ["softmax", "linear"])
@pytest.mark.parametrize("law", LAWS)
def test_exact_and_full_agree_in_law(law, head, rank):
    """Two-sample Kolmogorov–Smirnov on all records, Bonferroni over seven."""
    # The linear head has heavier losses: a smaller head keeps it in range.
    size = 1.0 if head == "softmax" else 0.3
    start = size * np.random.default_rng(1).standard_normal((4, rank))
    sharp = 0.1 if law == "gaussian" else 0.01
    options = {
        "head": head,
        "rank": rank,
        "inverse_temperature": sharp if head == "softmax" else sharp / 10,
        "step_size": 2e-3,
        "batch_size": 4,
        "n_steps": 6,
        "n_runs": 3000,
        "record_every": 3,
        "start": start[:, 0] if rank == 1 else start,
    }
    one = simulate_pca(LAWS[law], **options, seed=1, method="exact")
    two = simulate_pca(LAWS[law], **options, seed=2, method="full")
    records = [("loss", 0)] + [(name, record) for name in NAMES for record in (1, 2)]
    for name, record in records:
        test = stats.ks_2samp(one[name][:, record], two[name][:, record])
        assert test.pvalue > FALSE_ALARM / len(records), (name, record)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_small_dimensions_agree_in_law_too(d):
    """No direction, one, two are left outside the head's: the corners."""
    law = GaussianPrompts(np.diag([2.0, 1.0, 0.5][:d]), 4)
    options = SMALL | {
        "inverse_temperature": 0.3,
        "n_runs": 3000,
        "n_steps": 6,
        "record_every": 6,
        "step_size": 0.02,
        "start": np.full(d, 0.5),
    }
    one, two = (
        simulate_pca(law, **options | {"method": m, "seed": s})
        for m, s in (("exact", 1), ("full", 2))
    )
    for name in ("norm", "loss"):
        test = stats.ks_2samp(one.final(name), two.final(name))
        assert test.pvalue > FALSE_ALARM / 2


def test_the_mean_loss_is_the_linear_risk():
    """Four standard errors of 200 batches: fails by chance with 1e-4."""
    mu = np.array([0.2, -0.1, 0.3, 0.1])
    paths = simulated(
        head="linear", start=mu, n_runs=200, n_steps=1, record_every=1, batch_size=160
    )
    losses = paths["loss"][:, 0]
    law = LAWS["gaussian"]
    risk = PCALandscape(law, head="linear", inverse_temperature=0.02).risk(mu)
    assert abs(losses.mean() - risk) < 4 * losses.std() / np.sqrt(len(losses))


def test_a_head_of_zero_length_stays_and_one_token_is_copied():
    paths = simulated(start=np.zeros(4))
    assert_allclose(paths["norm"], 0.0)
    alone = simulate_pca(GaussianPrompts(COVARIANCE, 1), **SMALL)
    assert_allclose(alone["loss"], 0.0, atol=1e-20)


def test_sgd_finds_the_subspace_with_both_heads():
    law = GaussianPrompts(np.diag([1.0, 0.8, 0.2, 0.1, 0.05]), 50)
    for head, sharp in (("softmax", 1.0), ("linear", 1 / 50)):
        paths = simulate_pca(
            law,
            head=head,
            rank=2,
            inverse_temperature=sharp,
            step_size=0.03,
            batch_size=32,
            n_steps=1500,
            n_runs=3,
            record_every=1500,
            seed=0,
        )
        assert paths.final("alignment").min() > 0.97


def test_the_stable_step_is_that_of_theory():
    """Written twice, for theory and dynamics never meet; compared here."""
    for name, head in (
        ("gaussian", "softmax"),
        ("gaussian", "linear"),
        ("in context", "softmax"),
    ):
        law = LAWS[name]
        landscape = PCALandscape(law, head=head, inverse_temperature=0.3)
        problem = _pca._problem(law, _pca._spectrum(law, 1), head, 0.3, 1)
        step = landscape.largest_stable_step()
        assert_allclose(_pca.stable_step(law, problem), step, rtol=1e-12)


def test_the_stable_step_in_context_of_a_linear_head():
    """1/(4λP), E x₁·T = λPq for μ = √q u₁: P by Monte Carlo, 5 standard errors."""
    law = SpikedWishartPrompts(4, 6, degrees_of_freedom=5)
    problem = _pca._problem(law, _pca._spectrum(law, 1), "linear", 0.3, 1)
    pull = 1 / (4 * 0.3 * _pca.stable_step(law, problem))
    tokens, _ = law.sample(400_000, np.random.default_rng(0))
    copied = pca_head(tokens, law.direction, head="linear", inverse_temperature=1.0)
    drawn = np.sum(tokens[:, 0] * copied, axis=1)
    assert abs(drawn.mean() - pull) < 5 * drawn.std() / np.sqrt(len(drawn))


def test_a_repeated_eigenvalue_is_said_and_measured_with_its_eigenspace():
    law = GaussianPrompts(np.diag([2.0, 2.0, 0.1]), 20)
    with pytest.warns(NotIdentifiedWarning, match="simulate_pca: 2 eigenvalues equal"):
        paths = simulate_pca(
            law, **SMALL | {"inverse_temperature": 0.3, "start": [0.6, 0.8, 0.0]}
        )
    assert_allclose(paths["alignment"][:, 0], 1.0)


def test_divergence_names_the_largest_stable_step():
    with pytest.raises(ValueError, match=r"run \d+ diverged at update .* are stable"):
        simulated(head="linear", step_size=10.0, inverse_temperature=1.0, n_steps=200)


@pytest.mark.parametrize("law", ["gaussian", "in context"])
def test_a_softmax_head_that_saturates_has_diverged(law):
    """Its gradient vanishes, so that it stays finite and would pass for trained."""
    with pytest.raises(ValueError, match=r"diverged at update .* are stable"):
        simulated(law, step_size=1e4, n_steps=400)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"head": "relu"}, "`head` must be one of 'softmax', 'linear'"),
        ({"method": "fast"}, "`method` must be one of"),
        ({"rank": 5}, "`rank` must be an integer from 1 to 4"),
        ({"inverse_temperature": 0.0}, "`inverse_temperature` must be"),
        ({"step_size": -1.0}, "`step_size` must be"),
        ({"batch_size": 0}, "`batch_size` must be"),
        ({"n_steps": 0}, "`n_steps` must be"),
        ({"n_runs": 0}, "`n_runs` must be"),
        ({"record_every": 26}, "`record_every` must be .* A run has 25 steps"),
        (
            {"n_runs": 10**6, "n_steps": 400, "record_every": 1},
            "`record_every` must be large enough",
        ),
        ({"start": np.ones(3)}, r"`start` must be of shape \(4,\) or \(3, 4\)"),
        ({"seed": -1}, "`seed` must be"),
    ],
)
def test_bad_input_is_named(options, match):
    with pytest.raises(ValueError, match=f"simulate_pca: {match}"):
        simulated(**options)


def test_a_law_of_another_kind_or_too_large_is_refused():
    with pytest.raises(TypeError, match="`law` must be a GaussianPrompts or a"):
        simulate_pca(np.eye(2), **SMALL)
    huge = SpikedWishartPrompts(100, 10**6, degrees_of_freedom=1000)
    with pytest.raises(ValueError, match=r"numbers; got .* Use method='exact'"):
        simulate_pca(huge, **SMALL | {"method": "full"})


@pytest.mark.parametrize(
    ("options", "match"),
    [({"rank": 5}, "`rank`"), ({"scale": 0.0}, "`scale`"), ({"n_runs": 0}, "`n_runs`")],
)
def test_starts_refuse_bad_input(options, match):
    with pytest.raises(ValueError, match=f"pca_start: {match}"):
        pca_start(4, **{"n_runs": 1, "seed": 0} | options)
