"""The benchmark of bags compares all methods on equal bags."""

import dataclasses

import numpy as np
import pytest

from eigenheads_papers import Run, get_experiment
from eigenheads_papers._run import draw_experiment, experiment_rng
from eigenheads_papers._statistics import mean_estimate, resampled_estimate
from eigenheads_papers.marion2025.bags import METHODS, tabulate

KEY = "marion2025/bags"


@pytest.fixture(scope="module")
def smoke():
    experiment = get_experiment(KEY)
    params = experiment.presets["smoke"]
    return Run(params, experiment.simulate(params, experiment_rng(KEY, 0)))


def test_every_method_has_a_score(smoke):
    assert set(smoke.table) == {f"witness: {name}" for name in ("oracle", *METHODS)}
    assert all(
        0 <= scores.min() <= scores.max() <= 1 for scores in smoke.table.values()
    )
    assert [row[0] for row in tabulate(smoke)] == ["AUC", "witness"]
    assert draw_experiment(get_experiment(KEY), smoke).startswith(b"<?xml")


def test_statements_do_not_depend_on_the_size(smoke):
    """A smaller run leaves claims undecided, it does not drop them."""
    experiment = get_experiment(KEY)
    claims = experiment.check(smoke)
    assert not any(claim.is_changed for claim in claims)
    assert {claim.outcome for claim in claims} == {"undecided"}
    whole = experiment.with_data(experiment.presets["paper"])
    assert experiment.files(whole) == ("mil/musk1.csv.gz", "mil/musk2.csv.gz")
    names = [*whole.laws, *whole.musk]
    rng = np.random.default_rng(0)
    table = {
        f"{data}: {method}": 0.8 + 0.01 * rng.random(10)
        for data in names
        for method in ("oracle", *METHODS)
    }
    every = experiment.check(Run(whole, table))
    assert [claim.statement for claim in every] == [one.statement for one in claims]
    assert {claim.outcome for claim in every} == {"held"}
    worse = {name: scores.copy() for name, scores in table.items()}
    worse["musk1: default"] -= 0.2
    first = experiment.check(Run(whole, worse))
    (lost,) = [claim for claim in first if claim.outcome == "contradicted"]
    assert lost.statement == "musk1: AUC of default minus that of mean pooling"


def test_real_data_are_left_out_of_small_runs():
    experiment = get_experiment(KEY)
    assert experiment.files(experiment.with_data(experiment.presets["smoke"])) == ()


def test_overlapping_training_sets_widen_intervals(rng):
    sample = rng.standard_normal(10)
    low, high = mean_estimate(sample).interval(0.95)
    below, above = resampled_estimate(sample, test_share=1 / 9).interval(0.95)
    assert above - below == pytest.approx((high - low) * np.sqrt(1 + 10 / 9))
    assert dataclasses.astuple(resampled_estimate(sample, test_share=0.0))[0] == (
        pytest.approx(sample.mean())
    )
