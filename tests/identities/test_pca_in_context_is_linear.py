r"""In context, a softmax head is a linear head on the draws of the covariance.

Identity (docs/theory/pca.md, Proposition 3): with
:math:`\Sigma = \sum_i y_i y_i^\top`, :math:`y_i \sim N(0, V)`,

    E |x - λ Σ B x|² given Σ  =  Σ_i |y_i - λ Σ B y_i|²,

so the in-context risk with n degrees of freedom is n times the linear risk at L = n.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenheads.datasets import (
    GaussianPrompts,
    SpikedWishartPrompts,
    random_covariance,
)
from eigenheads.functional import pca_head
from eigenheads.theory import PCALandscape


def in_context_risk(mu, v, n):
    law = SpikedWishartPrompts(len(v), degrees_of_freedom=n)
    return PCALandscape(law, inverse_temperature=0.1, scale_matrix=v).risk(mu)


def linear_risk(mu, v, n_tokens):
    law = GaussianPrompts(v, n_tokens)
    return PCALandscape(law, inverse_temperature=0.1, head="linear").risk(mu)


@pytest.mark.parametrize("n", [1, 3, 10])
def test_the_risks_are_equal(rng, n):
    v, mu = random_covariance(4, rng), rng.standard_normal((7, 4))
    one, other = in_context_risk(mu, v, n), n * linear_risk(mu, v, n)
    assert_allclose(one, other, rtol=1e-12)


def test_they_are_equal_draw_by_draw(rng):
    """Not only on average: for each Σ, with the mean over x in closed form."""
    y, mu, sharp = rng.standard_normal((6, 3)), rng.standard_normal(3), 0.2
    sigma = y.T @ y
    map_ = np.eye(3) - sharp * sigma @ np.outer(mu, mu)
    in_context = np.trace(map_ @ sigma @ map_.T)
    losses = []
    for i in range(6):
        prompt = np.roll(y, -i, axis=0)
        output = pca_head(prompt, mu, inverse_temperature=sharp, head="linear")
        losses.append(np.sum((prompt[0] - output) ** 2))
    assert_allclose(sum(losses), in_context, rtol=1e-12)


def test_another_number_of_tokens_breaks_it(rng):
    v, mu = random_covariance(4, rng), rng.standard_normal(4)
    one, other = in_context_risk(mu, v, 5), 5 * linear_risk(mu, v, 6)
    assert abs(one / other - 1) > 0.01
