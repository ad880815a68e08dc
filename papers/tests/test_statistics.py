"""Intervals, equivalence, power and Holm: known cases, and level by simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from eigenheads_papers._statistics import (
    ENOUGH,
    bootstrap_estimate,
    detectable_effect,
    family_level,
    mean_estimate,
    power_of_test,
    resampled_estimate,
    share_estimate,
)

N_DRAWS = 2000
# Four standard errors of a share of 2000 draws near 5 %.
ERROR = 4 * math.sqrt(0.05 * 0.95 / N_DRAWS)


def test_the_t_interval_is_scipys():
    sample = np.array([1.0, 2.0, 4.0, 4.5, 7.0])
    known = stats.ttest_1samp(sample, 0.0).confidence_interval(0.9)
    assert mean_estimate(sample).interval(0.9) == pytest.approx(tuple(known))


def test_few_observations_exclude_nothing():
    few = mean_estimate(np.ones(ENOUGH - 1))
    assert few.interval(0.95) == (-math.inf, math.inf)
    assert few.detectable(0.95) == math.inf


def test_intervals_cover_at_their_level(rng):
    sample = rng.standard_normal((N_DRAWS, 6)) + 3.0
    missed = [
        not low <= 3.0 <= high
        for low, high in (mean_estimate(row).interval(0.95) for row in sample)
    ]
    assert np.mean(missed) == pytest.approx(0.05, abs=ERROR)


def test_shares_are_covered_at_least_at_their_level(rng):
    for share in (0.5, 0.95):
        found = rng.binomial(40, share, size=N_DRAWS)
        ends = {k: share_estimate(k, 40).interval(0.95) for k in set(found)}
        missed = [not ends[k][0] <= share <= ends[k][1] for k in found]
        assert np.mean(missed) <= 0.05 + ERROR


def test_the_bootstrap_agrees_with_t_for_a_mean_of_many(rng):
    sample = rng.standard_normal(400)
    low, high = bootstrap_estimate(sample, np.mean).interval(0.95)
    expected = mean_estimate(sample).interval(0.95)
    assert (low, high) == pytest.approx(expected, abs=0.02)
    again = bootstrap_estimate(sample, np.mean).interval(0.95)
    assert (low, high) == again


@pytest.mark.parametrize("n", [5, 8, 30])
def test_power_is_that_of_simulated_tests(n, rng):
    error = 1 / math.sqrt(n)
    effect = detectable_effect(error, n)
    assert power_of_test(effect, error, n) == pytest.approx(0.8, abs=1e-3)
    sample = rng.standard_normal((N_DRAWS, n)) + effect
    found = stats.ttest_1samp(sample, 0.0, axis=1).pvalue < 0.05
    # Four standard errors of a share of 0.8.
    assert np.mean(found) == pytest.approx(0.8, abs=4 * math.sqrt(0.16 / N_DRAWS))


def test_power_is_that_of_the_noncentral_t():
    known = stats.nct.sf(stats.t.ppf(0.975, 9), 9, 2.5)
    known += stats.nct.cdf(-stats.t.ppf(0.975, 9), 9, 2.5)
    assert power_of_test(2.5, 1.0, 10) == pytest.approx(known, abs=1e-4)


def test_the_level_of_a_family_shares_the_error():
    assert family_level(1) == pytest.approx(0.95)
    assert family_level(10) == pytest.approx(0.995)


def test_bootstrap_intervals_cover_at_their_level(rng):
    """With 60 rows the percentile interval of a mean misses a little more often."""
    n_draws = 400
    sample = rng.standard_normal((n_draws, 60)) + 1.0
    ends = [bootstrap_estimate(row, np.mean).interval(0.95) for row in sample]
    missed = np.mean([not low <= 1.0 <= high for low, high in ends])
    # Four standard errors of 400 draws; 0.006 is the excess of normal quantiles over
    # Student's at 59 degrees of freedom, and of dividing by n instead of n − 1.
    assert missed == pytest.approx(0.056, abs=4 * math.sqrt(0.056 * 0.944 / n_draws))


def test_intervals_over_folds_cover_at_their_level(rng):
    """Folds whose correlation is the share of test samples in all samples.

    For these the variance of Nadeau and Bengio is that of the mean.
    """
    share, n_folds = 0.25, 10
    rho = share / (1 + share)
    common = rng.standard_normal((N_DRAWS, 1))
    own = rng.standard_normal((N_DRAWS, n_folds))
    folds = math.sqrt(rho) * common + math.sqrt(1 - rho) * own
    ends = [resampled_estimate(row, test_share=share).interval(0.95) for row in folds]
    missed = [not low <= 0.0 <= high for low, high in ends]
    assert np.mean(missed) == pytest.approx(0.05, abs=ERROR)
    alone = [mean_estimate(row).interval(0.95) for row in folds]
    assert np.mean([not low <= 0.0 <= high for low, high in alone]) > 0.2


def test_the_power_of_shares_is_that_of_simulated_tests(rng):
    """Exact intervals are wider than the normal approximation of the power."""
    effect = share_estimate(50, 100).detectable(0.95)
    found = rng.binomial(100, 0.5 + effect, size=N_DRAWS)
    ends = {k: share_estimate(k, 100).interval(0.95) for k in set(found)}
    seen = np.mean([ends[k][0] > 0.5 for k in found])
    assert 0.7 <= seen <= 0.85
