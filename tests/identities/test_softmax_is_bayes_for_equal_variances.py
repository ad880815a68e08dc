r"""The softmax head is the Bayes predictor when all tokens have one covariance.

Identity (docs/theory/location.md, Proposition 6): for gamma = 1

    log N(x; m k*, I) - log N(x; 0, I) = m x.k* - m²/2,    m = sqrt(d/2)

so the posterior of the location is softmax(m X k*) and the posterior mean of the
target is softmax(m X k*)' X v*.
"""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenheads.datasets import SingleLocation
from eigenheads.functional import location_predictor

# Log-densities of size d are subtracted: rounding d * 1e-16 in the exponent.
RTOL = 1e-10


def posterior_mean(law, tokens):
    """Bayes' rule with the two densities, nothing cancelled by hand."""
    mean = math.sqrt(law.d / 2) * law.key_direction
    planted = -0.5 * ((tokens - mean) ** 2).sum(-1) / law.gamma**2
    planted -= law.d * math.log(law.gamma)
    log_odds = planted + 0.5 * (tokens**2).sum(-1)
    odds = np.exp(log_odds - log_odds.max(axis=-1, keepdims=True))
    weights = odds / odds.sum(axis=-1, keepdims=True)
    return (weights * (tokens @ law.value_direction)).sum(-1)


def softmax_prediction(law, tokens, as_array=np.asarray):
    return location_predictor(
        as_array(tokens),
        as_array(law.key_direction),
        as_array(law.value_direction),
        inverse_temperature=math.sqrt(law.d / 2),
        head="softmax",
    )


@pytest.mark.parametrize("d", [2, 7, 400])
def test_equal_for_gamma_one(rng, as_array, d):
    law = SingleLocation(d=d, n_tokens=5, gamma=1.0)
    tokens = law.sample(200, rng).tokens
    # Small values are differences of weighted tokens of size 1: absolute error too.
    assert_allclose(
        np.asarray(softmax_prediction(law, tokens, as_array)),
        posterior_mean(law, tokens),
        rtol=RTOL,
        atol=RTOL,
    )


@pytest.mark.parametrize("gamma", [0.7, 1.4])
def test_differ_for_other_gamma(rng, gamma):
    """The hypothesis is needed: the posterior then also weighs the tokens' lengths.

    Among 200 prompts some hold two tokens between which the two rules disagree.
    """
    law = SingleLocation(d=4, n_tokens=5, gamma=gamma)
    tokens = law.sample(200, rng).tokens
    gap = np.abs(softmax_prediction(law, tokens) - posterior_mean(law, tokens))
    assert gap.max() > 0.1
