"""P-values with the +1, effect sizes, and false discoveries over heads."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import binom, false_discovery_control

from eigenheads.probes import q_values
from eigenheads.probes._result import (
    effect_sizes,
    max_statistic_p_values,
    permutation_p_values,
)


def test_p_values_by_hand():
    draws = [[0.0, 1.0, 2.0, 3.0]]
    assert_allclose(permutation_p_values([2.0], draws), [3 / 5])
    assert_allclose(permutation_p_values([2.0], draws, alternative="less"), [4 / 5])
    two = permutation_p_values([9.0], draws, alternative="two-sided")
    assert_allclose(two, [2 / 5])
    assert_allclose(permutation_p_values([9.0], draws), [1 / 5])  # never 0


def test_rounding_counts_as_a_tie():
    draws = [[0.1 + 0.2]]
    assert_allclose(permutation_p_values([0.3], draws), [1.0])
    assert_allclose(permutation_p_values([0.3], draws, alternative="less"), [1.0])


@pytest.mark.parametrize("alternative", ["greater", "less", "two-sided"])
def test_level_is_exact_for_exchangeable_numbers(rng, alternative):
    """P(p <= 0.1) = 0.1 with 19 draws; each count is within its 1e-6 quantiles."""
    numbers = rng.standard_normal((5000, 20))
    p = permutation_p_values(numbers[:, 0], numbers[:, 1:], alternative=alternative)
    low, high = binom.ppf([5e-7, 1 - 5e-7], len(p), 0.1)
    assert low <= np.sum(p <= 0.1 + 1e-12) <= high


def test_unknown_numbers_have_unknown_p_values():
    p = permutation_p_values([np.nan, 1.0, 1.0], [[0.0], [np.nan], [0.0]])
    assert_allclose(p, [np.nan, np.nan, 0.5])


def test_effect_sizes_by_hand():
    assert_allclose(effect_sizes([3.0], [[0.0, 2.0]]), [2 / np.sqrt(2)])
    assert np.isnan(effect_sizes([3.0, 3.0], [[1.0], [1.0]])).all()
    assert np.isnan(effect_sizes([3.0], [[1.0, 1.0]])).all()


@pytest.mark.parametrize("method", ["bh", "by"])
def test_q_values_are_scipys(rng, method):
    p = rng.random((4, 6)) ** 2
    expected = false_discovery_control(p.ravel(), method=method).reshape(4, 6)
    assert_allclose(q_values(p, method=method), expected, rtol=1e-12)


def test_unknown_p_values_do_not_count():
    q = q_values([0.01, np.nan, 0.04])
    assert_allclose(q, [0.02, np.nan, 0.04])
    assert np.isnan(q_values([np.nan])).all()
    assert q_values([]).shape == (0,)


def test_false_discoveries_are_controlled(rng):
    """80 true nulls, 20 clear effects: mean share of false discoveries 0.08 <= 0.1.

    It lies in [0, 1] with standard deviation below 0.1 (seen 0.06), so the mean of 500
    is below 0.08 + 5 x 0.1/sqrt(500) = 0.102 but for a chance of 3e-7.
    """
    shares = []
    for _ in range(500):
        p = np.r_[rng.random(80), rng.random(20) * 1e-4]
        found = q_values(p) <= 0.1
        shares.append(found[:80].sum() / max(1, found.sum()))
        assert found[80:].all()
    assert 0.04 < np.mean(shares) < 0.102


@pytest.mark.parametrize("alternative", ["greater", "less", "two-sided"])
def test_largest_scores_err_in_a_tenth_of_all_families(rng, alternative):
    """P(any p <= 0.1) = 0.1 with 19 draws for 40 dependent tests of a true null.

    Laws of different tails and scales; the count is within its 1e-6 quantiles.
    """
    n_families = 2000
    shared = rng.standard_normal((n_families, 1, 20))
    normal = (shared + rng.standard_normal((n_families, 20, 20))) * 7
    skewed = rng.standard_exponential((n_families, 20, 20)) ** 2
    wrong = 0
    for one, other in zip(normal, skewed, strict=True):
        tests = [(x[:, 0], x[:, 1:], alternative) for x in (one, other)]
        wrong += min(p.min() for p in max_statistic_p_values(tests)) <= 0.1 + 1e-12
    low, high = binom.ppf([5e-7, 1 - 5e-7], n_families, 0.1)
    assert low <= wrong <= high


def test_largest_scores_find_one_test_among_thousands(rng):
    draws = rng.standard_normal((3000, 39))
    observed = rng.standard_normal(3000)
    observed[17] = 30.0
    flat = (np.ones(2), np.ones((2, 60)), "greater")
    unknown = (np.array([np.nan]), np.zeros((1, 39)), "greater")
    found, no, nan = max_statistic_p_values(
        [(observed, draws, "greater"), flat, unknown]
    )
    assert np.flatnonzero(found <= 0.025).tolist() == [17]
    assert found[17] == 1 / 40
    assert no.tolist() == [1, 1]
    assert np.isnan(nan).all()


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: q_values([1.5]), "`p_values` must be numbers from 0 to 1"),
        (lambda: q_values([0.5], method="holm"), "`method` must be one of 'bh', 'by'"),
        (lambda: permutation_p_values([1.0], [1.0]), "`draws` must be of shape"),
        (
            lambda: permutation_p_values([1.0], [[1.0]], alternative="more"),
            "`alternative` must be one of",
        ),
    ],
)
def test_says_what_is_wrong(call, match):
    with pytest.raises(ValueError, match=match):
        call()
