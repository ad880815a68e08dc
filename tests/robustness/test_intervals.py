"""Intervals of shares and of paired differences: known values, and coverage."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from scipy import stats  # noqa: E402

from eigenheads.robustness import evaluate_robustness  # noqa: E402
from eigenheads.robustness._intervals import (  # noqa: E402
    AUPR,
    PERPLEXITY,
    SHARE,
    measure_runs,
    pair_bounds,
)

pytestmark = pytest.mark.torch
N_DRAWS = 1000
# Five standard errors of a share of 0.95 in so many draws.
ERROR = 5 * math.sqrt(0.95 * 0.05 / N_DRAWS)


def model(run):
    """A model that is right where pixel `run` of an image is one; classes are zero."""
    return lambda x: torch.stack([x.flatten(1)[:, run], torch.full((len(x),), 0.5)], 1)


def evaluate(right, models):
    """Evaluate models of outcomes ``(n, runs)``, up to four runs."""
    x = torch.zeros(len(right), 4)
    x[:, : right.shape[1]] = torch.as_tensor(right, dtype=torch.float32)
    data = x.view(-1, 1, 2, 2), torch.zeros(len(x), dtype=torch.long)
    return evaluate_robustness(models, data, corruptions=[], attacks=[])


def clean_row(right, models):
    found = evaluate(right, models)
    return found.select(metric="top-1", condition="clean")[0]


@pytest.mark.parametrize("count", [0, 3, 19, 20])
def test_a_share_has_the_exact_interval(count):
    right = np.arange(20)[:, None] < count
    row = clean_row(right, model(0))
    exact = stats.binomtest(count, 20).proportion_ci(0.95, "exact")
    np.testing.assert_allclose((row.low, row.high), exact)


def test_runs_that_agree_by_chance_still_have_an_interval():
    row = clean_row(np.ones((20, 2)), [model(0), model(1)])
    exact = stats.binomtest(20, 20).proportion_ci(0.95, "exact")
    np.testing.assert_allclose((row.low, row.high), exact)


def test_equal_outcomes_leave_the_difference_open():
    right = np.ones((40, 1))
    for models in (
        {"one": model(0), "other": model(0)},
        {"one": [model(0)] * 2, "other": [model(0)] * 2},
    ):
        found = evaluate(right, models)
        clean = found.differences[0]
        assert clean.low == -clean.high < 0 < clean.detectable
        assert clean.n_discordant == 0
        said = "cannot tell (+0.0 points in all inputs and runs, 95 %: -6.8 to +6.8; "
        assert said in str(found)


def test_two_runs_with_equal_differences_are_no_verdict_alone():
    """Two more of 40 right in both runs: Student's t alone would have no width."""
    right = np.zeros((40, 4))
    right[:20, :2], right[:21, 2], right[1:22, 3] = 1, 1, 1
    right[20, 2] = 1
    found = evaluate(
        right, {"one": [model(0), model(1)], "other": [model(2), model(3)]}
    )
    assert found.differences[0].verdict == "cannot tell"


def test_a_mean_over_severities_varies_less_than_a_share(rng):
    """For zeros and ones the number of examples counts; for halves it is larger."""
    ones = np.array([1.0] * 15 + [0.0] * 5)
    halves = np.array([1.0] * 10 + [0.5] * 10)
    (_, low, high), (_, less, more) = (
        measure_runs([x], SHARE, 0.95) for x in (ones, halves)
    )
    exact = stats.binomtest(15, 20).proportion_ci(0.95, "exact")
    np.testing.assert_allclose((low, high), exact)
    assert low < less < 0.75 < more < high


def test_area_and_perplexity_have_intervals():
    apart = np.array([[0.0, 0.1]] * 10 + [[1.0, 0.9]] * 30)
    values, low, high = measure_runs([apart], AUPR, 0.95)
    assert values == [1.0]
    # The chance that all of 30 are found is 0.025 at this share.
    assert (low, high) == (pytest.approx(0.025 ** (1 / 30)), 1.0)
    loss = np.array([[2.0, 2.0], [6.0, 4.0], [3.0, 2.0]])
    values, low, high = measure_runs([loss], PERPLEXITY, 0.95)
    assert values == [pytest.approx(math.exp(11 / 8))]
    assert low < values[0] < high
    assert math.sqrt(low * high) == pytest.approx(values[0])
    assert measure_runs([loss[:1]], PERPLEXITY, 0.95)[1:] == (0.0, math.inf)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "accuracy"), [(20, 0.95), (50, 0.97), (200, 0.99)])
def test_coverage_of_a_high_accuracy(n, accuracy, rng):
    """Simulate test sets, through the public function."""
    hits = 0
    for _ in range(N_DRAWS):
        row = clean_row(rng.random((n, 1)) < accuracy, model(0))
        hits += row.low <= accuracy <= row.high
    assert hits / N_DRAWS > 0.95 - ERROR


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "mean", "n_severities", "total"),
    # The smaller the total, the more the severities of an image agree.
    [(20, 0.05, 5, 0.3), (200, 0.01, 5, 0.5), (100, 0.3, 50, 0.5), (100, 0.3, 10, 20)],
)
def test_coverage_of_a_mean_over_severities(n, mean, n_severities, total, rng):
    hits = 0
    for _ in range(N_DRAWS):
        error = rng.beta(mean * total, (1 - mean) * total, n)
        shares = rng.binomial(n_severities, error) / n_severities
        _, low, high = measure_runs([shares], SHARE, 0.95)
        hits += low <= mean <= high
    assert hits / N_DRAWS > 0.95 - ERROR


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "more", "less"), [(12, 0.1, 0.1), (50, 0.1, 0.02), (200, 0.01, 0.01)]
)
def test_coverage_of_a_paired_difference(n, more, less, rng):
    hits = 0
    for _ in range(N_DRAWS):
        chance = rng.random(n)
        pairs = np.where(chance < more, 1.0, np.where(chance < more + less, -1.0, 0.0))
        low, high, _ = pair_bounds(pairs, 0.95)
        hits += low <= more - less <= high
    assert hits / N_DRAWS > 0.95 - ERROR


@pytest.mark.slow
@pytest.mark.parametrize(("n", "accuracy"), [(50, 0.9), (200, 0.95)])
def test_two_runs_make_few_false_verdicts(n, accuracy, rng):
    """Models of equal accuracy whose runs err independently."""
    models = {"one": [model(0), model(1)], "other": [model(2), model(3)]}
    false = 0
    for _ in range(N_DRAWS):
        found = evaluate(rng.random((n, 4)) < accuracy, models)
        false += found.differences[0].verdict != "cannot tell"
    assert false / N_DRAWS < 0.05
