"""Positive and negative controls of the probes, with stated error probability.

Level. One head a call, with a seed of its own, so that p-values are independent; with
19 draws P(p <= 0.05) = 1/20 exactly. Each count of rejections among M calls is within
the 1e-6 quantiles of Binomial(M, 1/20): a right program fails one of these (about 25)
with probability below 3e-5.

Power. Were the power below 0.95, all of 200 planted heads would be found with
probability below 0.95^200 < 4e-5. Draws are shared by 50 heads a call; given the
draws, heads are independent.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import binom

from eigenheads.probes import (
    covariance_probe,
    kernel_pca_probe,
    planted_heads,
    q_values,
)

N_CALLS = 200
LOW, HIGH = binom.ppf([5e-7, 1 - 5e-7], N_CALLS, 0.05)


def assert_nominal(results):
    """Rejections at 0.05, statistic by statistic and null by null.

    Two-sided p-values with 19 draws are multiples of 0.1: looked at at 0.1.
    """
    wide = binom.ppf([5e-7, 1 - 5e-7], len(results), 0.1)
    first = results[0].statistics
    for name, statistic in first.items():
        is_two_sided = statistic.alternative == "two-sided"
        low, high = wide if is_two_sided else (LOW, HIGH)
        level = 0.1 if is_two_sided else 0.05
        for null in statistic.nulls:
            p = np.array([r.statistics[name].p_value[null][0] for r in results])
            count = np.sum(p <= level + 1e-12)
            assert low <= count <= high, (name, null, count)


def test_random_heads_are_rejected_at_the_nominal_rate():
    results = [
        kernel_pca_probe(
            *planted_heads(2, 1, n_tokens=10, d_head=3, strength=0, seed=seed),
            n_permutations=19,
            seed=seed,
        )
        for seed in range(N_CALLS)
    ]
    assert_nominal(results)


def test_random_value_matrices_are_rejected_at_the_nominal_rate(rng):
    """Keys and values of the same tokens: the null of random projections holds."""
    results = []
    for seed in range(N_CALLS):
        tokens = rng.standard_normal((2, 12, 6))
        weights = rng.standard_normal((3, 6, 4))
        heads = [(tokens @ w)[:, None] for w in weights]
        results.append(
            kernel_pca_probe(*heads, tokens=tokens, n_permutations=19, seed=seed)
        )
    for name, statistic in results[0].statistics.items():
        if "random_projections" in statistic.nulls:
            p = [r.statistics[name].p_value["random_projections"][0] for r in results]
            assert LOW <= np.sum(np.array(p) <= 0.05 + 1e-12) <= HIGH, name


def test_permuted_tokens_are_rejected_by_untrained_heads_of_common_tokens(rng):
    """Why a rejection says little: values know their tokens' keys before training.

    100 random heads on tokens of low rank; at the nominal rate more than 25 rejections
    have probability below 1e-10. Random projections of the same tokens are not fooled.
    """
    tokens = rng.standard_normal((4, 24, 3)) @ rng.standard_normal((3, 16))
    weights = rng.standard_normal((3, 100, 16, 4)) / 16
    heads = [np.einsum("bnd,hdw->bhnw", tokens, w) for w in weights]
    result = kernel_pca_probe(*heads, tokens=tokens, n_permutations=19)
    p = result.statistics["captured_variance"].p_value
    assert np.sum(p["permuted_tokens"] <= 0.05 + 1e-12) > 25
    assert np.sum(p["random_projections"] <= 0.05 + 1e-12) <= 25


FOUND_BY = {
    False: (
        "gamma_difference",
        "eigen_residual",
        "captured_variance",
        "linear_cka",
        "rbf_cka",
    ),
    True: ("captured_variance", "linear_cka", "rbf_cka"),
}


@pytest.mark.parametrize("is_mixed", [False, True])
def test_planted_heads_are_found(is_mixed):
    for seed in range(4):
        heads = planted_heads(
            2, 50, n_tokens=20, d_head=4, is_mixed=is_mixed, seed=seed
        )
        result = kernel_pca_probe(*heads, n_permutations=39, seed=seed)
        captured = result.statistics["captured_variance"].observed
        assert_allclose(captured, 1, rtol=1e-6)
        if not is_mixed:
            for name in ("gamma_difference", "eigen_residual"):
                assert (result.statistics[name].observed < 1e-6).all()
        for name in FOUND_BY[is_mixed]:
            statistic = result.statistics[name]
            for null, p in statistic.p_value.items():
                assert (q_values(p) <= 0.05 + 1e-12).all(), (name, null)
                sign = 1 if statistic.alternative == "greater" else -1
                assert (sign * statistic.effect_size[null] > 2).all(), (name, null)


def test_half_planted_heads_are_found_with_more_sequences():
    """Half of the values' variance is noise; 6 sequences make up for it."""
    heads = planted_heads(6, 50, n_tokens=20, d_head=4, strength=0.5, seed=0)
    result = kernel_pca_probe(*heads, n_permutations=39, seed=0)
    for name in ("captured_variance", "linear_cka"):
        p = result.statistics[name].p_value["permuted_tokens"]
        assert (q_values(p) <= 0.05 + 1e-12).all(), name


def weights_of(rng, width=3, d=8):
    return rng.standard_normal((4, 1, width, d))


def test_random_forms_are_rejected_at_the_nominal_rate(rng):
    results = []
    for seed in range(N_CALLS):
        w_query, w_key, w_value, w_output = weights_of(rng)
        tokens = rng.standard_normal((1, 30, 8))
        results.append(
            covariance_probe(
                tokens,
                w_query,
                w_key,
                w_value=w_value,
                w_output=np.swapaxes(w_output, 1, 2),
                n_permutations=19,
                seed=seed,
            )
        )
    assert_nominal(results)


def test_heads_that_read_the_principal_directions_are_found(rng):
    """200 heads whose keys read a noisy basis of the top directions."""
    d, k = 24, 3
    levels = np.r_[4 * np.ones(k), np.ones(d - k)]
    tokens = rng.standard_normal((10, 40, d)) * levels
    weights = np.eye(d)[None, :k] + 0.2 * rng.standard_normal((200, k, d))
    result = covariance_probe(tokens, weights, weights, n_permutations=39)
    for name in ("qk_covariance_cosine", "qk_covariance_overlap"):
        for null, p in result.statistics[name].p_value.items():
            assert (q_values(p) <= 0.05 + 1e-12).all(), (name, null)
