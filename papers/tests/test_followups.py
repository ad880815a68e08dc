"""Claims of duranthon2026, dohmatob2025 and barnfield2026, and their closed forms."""

import math

import numpy as np
import pytest
from scipy.special import expit

from eigenheads.models import risk, verify
from eigenheads_papers import experiment_keys, get_experiment
from eigenheads_papers._core import Run
from eigenheads_papers._records import beside_record
from eigenheads_papers._run import draw_experiment, experiment_rng
from eigenheads_papers.barnfield2026.alignment import sparse_model
from eigenheads_papers.barnfield2026.strength import _least_error
from eigenheads_papers.dohmatob2025.risk import (
    MeanField,
    Overlaps,
    sampled_risk,
)
from eigenheads_papers.duranthon2026.population import (
    bayes_risk,
    best_head,
    excess_risk,
    linear_risk,
    max_scores,
    softmax_shares,
    spiked_scores,
)
from eigenheads_papers.duranthon2026.training import spiked_head

PAPERS = ("duranthon2026", "dohmatob2025", "barnfield2026")
KEYS = [key for key in experiment_keys() if key.startswith(PAPERS)]
# Seconds without a compiler.
QUICK = ("duranthon2026/population", "dohmatob2025/risk", "barnfield2026/strength")


@pytest.mark.parametrize(
    "key",
    [
        key if key in QUICK else pytest.param(key, marks=pytest.mark.slow)
        for key in KEYS
    ],
)
def test_claims_are_as_on_record_and_figures_repeat(key):
    experiment = get_experiment(key)
    params = experiment.presets["smoke"]
    table = experiment.simulate(params, experiment_rng(key, 0))
    run = Run(params, table)
    claims = beside_record(key, experiment.check(run))
    assert [one.statement for one in claims if one.is_changed] == []
    assert draw_experiment(experiment, run) == draw_experiment(experiment, run)


def test_softmax_at_the_posterior_is_bayes(rng):
    for strength in (1.0, 4.0):
        scores = spiked_scores(rng.standard_normal((200_000, 3)), strength)
        slope = math.sqrt(strength)
        own = excess_risk(softmax_shares(scores, np.array([1.0, slope])))
        assert own == pytest.approx(bayes_risk(scores, slope), abs=0.01)


def test_bayes_risk_of_two_tokens_is_one_integral(rng):
    scores = spiked_scores(rng.standard_normal((200_000, 2)), 5.0)
    x = np.linspace(-8, 8, 401)
    weight = np.exp(-(x**2) / 2)
    integral = weight @ (1 - expit(5 + math.sqrt(10) * x)) / weight.sum()
    assert bayes_risk(scores, math.sqrt(5)) == pytest.approx(integral, abs=0.003)


@pytest.mark.parametrize("n_tokens", [2, 5])
def test_linear_risk_is_the_minimum_over_samples(rng, n_tokens):
    scores = spiked_scores(rng.standard_normal((100_000, n_tokens)), 3.0)
    found, _ = best_head("linear", [scores])
    assert found == pytest.approx(linear_risk(n_tokens, 3.0), abs=0.01)


def test_the_max_law_puts_the_largest_score_first(rng):
    scores = max_scores(rng.standard_normal((100, 6)), math.inf, rng)
    assert (scores.argmax(axis=1) == 0).all()


def test_the_frozen_head_adds_its_participation():
    field = MeanField(d=100, n_others=19, gamma=math.sqrt(0.5), beta=1.0)
    assert field.critical == pytest.approx(math.sqrt(2 * math.log(19) / 100))
    oracle, lost = Overlaps(), Overlaps(mu=0.0)
    assert field.risk(oracle) == pytest.approx(0.0, abs=1e-9)
    assert field.risk(lost) == pytest.approx(0.5)
    assert field.corrected_risk(lost) == pytest.approx(1.5 - field.critical)


def test_sampled_risk_is_that_of_real_tokens(rng):
    d, n, gamma, beta = 12, 5, 0.6, 0.5
    at = Overlaps(mu=0.3, nu=0.7, rho=0.4)
    field = MeanField(d, n - 1, gamma, beta)
    # Orthonormal u*, v* and two more; v has no component along u*.
    u = np.zeros(d)
    u[0], u[2] = at.mu, math.sqrt(1 - at.mu**2)
    v = np.zeros(d)
    v[1], v[2] = at.nu, at.rho / u[2]
    v[3] = math.sqrt(1 - v @ v)
    tokens = rng.standard_normal((60_000, n, d))
    tokens[:, 0] *= gamma
    tokens[:, 0, 0] += math.sqrt((1 - gamma**2) * d)
    scores = beta * math.sqrt(d) * tokens @ u
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    errors = ((weights * (tokens @ v)).sum(axis=1) - tokens[:, 0, 1]) ** 2
    value, error = sampled_risk(field, at, 60_000, rng)
    scatter = math.hypot(error, errors.std() / math.sqrt(len(errors)))
    assert abs(errors.mean() - value) < 5 * scatter


def test_the_least_error_is_that_of_two_normals(rng):
    found = _least_error(rng.standard_normal(20_000), 2 + rng.standard_normal(20_000))
    assert found == pytest.approx(0.1587, abs=0.01)


@pytest.mark.slow
def test_declared_heads_have_the_population_risk():
    model = spiked_head("softmax", 4, 9.0)
    at = {"k.key": 3.0, "k.k": 9.0, "v.value": 1.0, "v.v": 1.0}
    found = risk(model, at, d=50, parameters={"noise": 0.0}, n_samples=2**16)
    rng = np.random.default_rng(0)
    scores = spiked_scores(rng.standard_normal((200_000, 4)), 9.0)
    assert float(found) == pytest.approx(bayes_risk(scores, 3.0), abs=0.005)


@pytest.mark.slow
def test_the_sparse_head_is_simulated_exactly():
    model = sparse_model(4, 1, 0.5, 2.0)
    assert verify(model, d=6, parameters={"bias": 0.1}).passed
