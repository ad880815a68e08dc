"""Every claim holds on five master seeds, and fails when the code is wrong."""

from dataclasses import replace

import numpy as np
import pytest
from papers.tests.smoke_runs import failing, run, smoke_run

import eigenheads_papers.marion2025._paths as paths_module
import eigenheads_papers.marion2025.any_dimension as any_dimension_module
import eigenheads_papers.marion2025.bayes as bayes_module
from eigenheads._parallel import threads
from eigenheads.theory import LocationLandscape
from eigenheads_papers import experiment_keys, get_experiment
from eigenheads_papers._core import Run
from eigenheads_papers._records import read_record
from eigenheads_papers._run import draw_experiment

# Experiments that train or read models, or fit bags, have test files of their own.
KEYS = [
    key
    for key in experiment_keys()
    if key.startswith("marion2025/")
    and not get_experiment(key).needs
    and key != "marion2025/bags"
]
# One on every change, the others with `make test-all`.
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3, 4))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("key", KEYS)
def test_claims_are_as_on_record_on_every_master_seed(key, seed):
    claims = smoke_run(key, seed)[2]
    on_record = [claim.statement for claim in read_record(key).claims]
    assert [claim.statement for claim in claims] == on_record
    assert [claim.statement for claim in claims if claim.is_changed] == []


# One of each kind of simulation on every change, the others with `make test-all`.
THREADED = [
    key
    if key.endswith(("fig3b", "any_dimension", "bayes"))
    else pytest.param(key, marks=pytest.mark.slow)
    for key in KEYS
]


@pytest.mark.parametrize("key", THREADED)
def test_same_seed_same_bytes_for_any_number_of_threads(key):
    one = smoke_run(key)[1]
    with threads(3):
        three = run(key)[1]
    assert set(one) == set(three)
    for name in one:
        assert one[name].tobytes() == three[name].tobytes(), name


@pytest.mark.parametrize("key", KEYS)
def test_same_table_same_figure_byte_by_byte(key):
    params, table, _ = smoke_run(key)
    experiment = get_experiment(key)
    first = draw_experiment(experiment, Run(params, table))
    assert first.startswith(b"<?xml")
    if key in {"marion2025/bayes", "marion2025/fig5"}:
        assert first == draw_experiment(experiment, Run(params, table))


def test_a_wrong_sign_is_noticed(monkeypatch):
    """Wrong sign: theory's flow starts at the mirrored point."""
    real = LocationLandscape.flow

    def mirrored_flow(self, start, **options):
        return real(self, -start, **options)

    monkeypatch.setattr(LocationLandscape, "flow", mirrored_flow)
    assert "largest gap between descent and the gradient flow" in failing(
        run("marion2025/fig3b")[2]
    )


def test_a_doubled_sharpness_is_noticed_in_the_population_descent(monkeypatch):
    real = paths_module.location_descent

    def doubled(law, start, *, inverse_temperature, **options):
        return real(
            law,
            start,
            inverse_temperature=lambda step: 2 * inverse_temperature(step),
            **options,
        )

    monkeypatch.setattr(paths_module, "location_descent", doubled)
    for key in ("fig3b", "small_lambda"):
        assert failing(run(f"marion2025/{key}")[2]), key


def test_a_doubled_sharpness_is_noticed_online(monkeypatch):
    real = any_dimension_module.simulate_location

    def doubled(law, *, inverse_temperature, **options):
        return real(law, inverse_temperature=2 * inverse_temperature, **options)

    monkeypatch.setattr(any_dimension_module, "simulate_location", doubled)
    assert failing(run("marion2025/any_dimension")[2])


def test_a_lost_factor_in_the_step_is_noticed_online(monkeypatch):
    real = any_dimension_module.simulate_location

    def halved(law, *, step_size, **options):
        return real(law, step_size=step_size / 2, **options)

    monkeypatch.setattr(any_dimension_module, "simulate_location", halved)
    assert failing(run("marion2025/any_dimension")[2])


def test_a_wrong_sign_of_the_field_is_noticed(monkeypatch):
    real = LocationLandscape.velocity

    def flipped(self, *point):
        kappa, nu = real(self, *point)
        return kappa, -nu

    monkeypatch.setattr(LocationLandscape, "velocity", flipped)
    assert len(failing(run("marion2025/fig5")[2])) >= 2


def test_a_dropped_term_of_the_law_is_noticed(monkeypatch):
    """Without its own noise the deciding token says nothing about the target."""
    real = any_dimension_module.simulate_location

    def quiet(law, **options):
        return real(replace(law, gamma=1e-3 * law.gamma), **options)

    monkeypatch.setattr(any_dimension_module, "simulate_location", quiet)
    assert failing(run("marion2025/any_dimension")[2])


def test_a_dropped_term_of_the_posterior_is_noticed(monkeypatch):
    """Bayes risk of a law with other lengths of tokens is not this law's."""
    real = bayes_module.location_bayes_risk

    def without_lengths(law, **options):
        return real(replace(law, gamma=0.9 * law.gamma), **options)

    monkeypatch.setattr(bayes_module, "location_bayes_risk", without_lengths)
    claims = run("marion2025/bayes", preset="demo")[2]
    assert any(statement.startswith("small d") for statement in failing(claims))


def test_noise_that_never_averages_out_is_noticed_in_figure_4():
    """Ten times the step keeps SGD far from the oracle."""
    assert failing(run("marion2025/fig4", step_size=1e-2)[2])


def test_a_constant_sharpness_does_not_pass_for_the_schedule():
    assert failing(run("marion2025/fig3a", decay=0.0, n_runs=4)[2])


def test_broken_exponents_do_not_pass_for_asymptotic_optimality():
    assert failing(run("marion2025/bayes", sharpness_exponent=-0.1)[2])


def test_the_risk_on_record_is_that_of_its_own_state():
    """Row by row: the risk of a record is the formula at that record's state."""
    params, table, _ = run("marion2025/fig3a", n_runs=2)
    record = 7
    state = [table[name][1, record] for name in paths_module.ORDER]
    scale = 1 / (1 + params.decay * table["steps"][record])
    risk = LocationLandscape(params.task, inverse_temperature=scale).risk(*state)
    np.testing.assert_allclose(table["excess_risk"][1, record], risk, rtol=1e-12)
