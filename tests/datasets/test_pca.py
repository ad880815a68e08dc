"""Laws of prompts: moments, and what they refuse."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenheads.datasets import (
    GaussianPrompts,
    SpikedWishartPrompts,
    random_covariance,
)


def test_tokens_have_the_covariance():
    """Entries of a sample covariance of n tokens: standard error ≤ 2σ₁/√n."""
    rng = np.random.default_rng(0)
    covariance = random_covariance(4, rng)
    tokens = GaussianPrompts(covariance, 5).sample(40_000, rng).reshape(-1, 4)
    error = 2 * np.linalg.eigvalsh(covariance)[-1] / np.sqrt(len(tokens))
    assert_allclose(tokens.T @ tokens / len(tokens), covariance, atol=5 * error)


def test_a_singular_covariance_is_fine():
    tokens = GaussianPrompts(np.diag([1.0, 0.0]), 3).sample(4, np.random.default_rng(0))
    assert_allclose(tokens[..., 1], 0.0)


def test_wishart_covariances_have_their_mean_and_prompts_share_them():
    law = SpikedWishartPrompts(3, 2, degrees_of_freedom=4, prompts_per_covariance=3)
    tokens, covariances = law.sample(30_000, np.random.default_rng(0))
    assert tokens.shape == (30_000, 2, 3)
    assert_allclose(covariances[0], covariances[2])
    assert np.abs(covariances[0] - covariances[3]).max() > 1e-3
    # Standard error of an entry: about √(2n) V / √groups = 0.085; five of them.
    assert_allclose(covariances.mean(axis=0), 4 * law.scale_matrix, atol=0.45)
    given = np.einsum("nld,nle->de", tokens, tokens) / 60_000
    assert_allclose(given, 4 * law.scale_matrix, atol=0.6)


def test_a_last_group_may_be_smaller():
    law = SpikedWishartPrompts(2, 2, prompts_per_covariance=4)
    assert law.sample(6, np.random.default_rng(0)).tokens.shape == (6, 2, 2)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: GaussianPrompts([[1.0, 2.0], [0.0, 1.0]]), "a symmetric matrix"),
        (lambda: GaussianPrompts([[-1.0]]), "positive semi-definite"),
        (lambda: GaussianPrompts([[1.0]], 0), "`n_tokens` must be an integer >= 1"),
        (lambda: SpikedWishartPrompts(0), "`d` must be an integer >= 1"),
        (lambda: SpikedWishartPrompts(2, spike=-1.0), "`spike` must be"),
        (lambda: SpikedWishartPrompts(2, scale=0.0), "`scale` must be"),
        (lambda: random_covariance(2, None, ridge=-1), "`ridge` must be"),
    ],
)
def test_bad_input_is_named(make, match):
    with pytest.raises(ValueError, match=match):
        make()
