"""Softmax heads on finite prompts against their limit."""

import numpy as np
import pytest

from eigenheads.datasets import GaussianPrompts
from eigenheads.functional import pca_head
from eigenheads.theory import PCALandscape, pca_prompt_error

COVARIANCE = np.diag([2.0, 1.0, 0.5])


def measured(mu, scale, n_tokens, rng, n=40_000):
    """Return the mean squared distance to the limit, and its standard error."""
    tokens = rng.standard_normal((n, n_tokens, 3)) * np.sqrt(np.diag(COVARIANCE))
    outputs = pca_head(tokens, mu, inverse_temperature=scale)
    limit = scale * (tokens[:, 0] @ mu)[:, None] * (COVARIANCE @ mu)
    squares = np.sum((outputs - limit) ** 2, axis=1)
    return squares.mean(), squares.std() / np.sqrt(n)


def test_the_first_order_is_what_simulations_give_in_any_direction(rng):
    mu = np.array([0.2, 0.25, -0.3])  # c = 0.375 for a scale of 2
    mu *= np.sqrt(0.2 / (2 * mu @ COVARIANCE @ mu))
    error = pca_prompt_error(GaussianPrompts(COVARIANCE), mu, inverse_temperature=2.0)
    found, spread = measured(mu, 2.0, 100, rng)
    assert error.exponent == -1
    # The next order is a few percent at 100 tokens.
    assert abs(100 * found / error.coefficient - 1) < 0.04 + 4 * 100 * spread


def test_a_head_that_does_not_look_averages_the_tokens():
    error = pca_prompt_error(
        GaussianPrompts(COVARIANCE), np.zeros(3), inverse_temperature=1.0
    )
    assert error.coefficient == pytest.approx(np.trace(COVARIANCE))


def test_the_rate_is_slower_at_the_minimiser_and_continuous_before():
    law = GaussianPrompts(COVARIANCE)
    minimiser = PCALandscape(law, inverse_temperature=0.3).minimiser()
    at_minimum = pca_prompt_error(law, minimiser, inverse_temperature=0.3)
    assert at_minimum.exponent == pytest.approx(-2 / 3)
    assert np.isnan(at_minimum.coefficient)
    # λ μ·Σμ = 1 at the minimiser; its squared length is scaled to just above 1/√2.
    edge = minimiser * (0.5 + 1e-9) ** 0.25
    assert pca_prompt_error(law, edge, inverse_temperature=0.3)[0] == pytest.approx(-1)


def test_the_distance_falls_more_slowly_at_the_minimiser(rng):
    minimiser = PCALandscape(
        GaussianPrompts(COVARIANCE), inverse_temperature=0.3
    ).minimiser()
    short, long = (measured(minimiser, 0.3, n, rng, 20_000)[0] for n in (10, 160))
    # 1/L would be a factor of 16; L^(−2/3) is 6.3.
    assert 3 < short / long < 11


def test_wrong_arguments_are_named():
    law = GaussianPrompts(COVARIANCE)
    with pytest.raises(ValueError, match="direction"):
        pca_prompt_error(law, [1.0, 2.0], inverse_temperature=1.0)
    with pytest.raises(ValueError, match="inverse_temperature"):
        pca_prompt_error(law, [1.0, 2.0, 3.0], inverse_temperature=0.0)
