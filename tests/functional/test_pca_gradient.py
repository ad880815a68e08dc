"""The loss of a prompt is that of the head, and its gradient is its derivative."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenheads.functional import pca_head, pca_prompt_loss


@pytest.fixture
def prompts():
    return np.random.default_rng(0).standard_normal((3, 7, 4))


@pytest.mark.parametrize("head", ["softmax", "linear"])
def test_loss_is_the_mean_over_queries_of_the_heads_error(prompts, head):
    M = np.random.default_rng(1).standard_normal((4, 2)) / 2
    squares = []
    for first in range(7):
        turned = np.roll(prompts, -first, axis=1)
        output = pca_head(turned, M, inverse_temperature=0.3, head=head)
        squares.append(np.sum((turned[:, 0] - output) ** 2, axis=-1))
    result = pca_prompt_loss(prompts, M, inverse_temperature=0.3, head=head)
    assert_allclose(result.loss, np.mean(squares), rtol=1e-12)


@pytest.mark.parametrize("head", ["softmax", "linear"])
def test_gradient_is_the_derivative_of_the_loss(prompts, head):
    rng = np.random.default_rng(2)
    M, along = rng.standard_normal((2, 4, 2)) / 2
    loss = [
        pca_prompt_loss(prompts, M + h * along, inverse_temperature=0.3, head=head).loss
        for h in (1e-5, -1e-5)
    ]
    gradient = pca_prompt_loss(prompts, M, inverse_temperature=0.3, head=head).gradient
    # Central differences: error h² times a third derivative of order 1e3 here.
    assert_allclose((loss[0] - loss[1]) / 2e-5, np.sum(gradient * along), rtol=1e-6)


def test_other_heads_are_refused(prompts):
    with pytest.raises(ValueError, match=r"`head` must be one of 'softmax', 'linear'"):
        pca_prompt_loss(prompts, np.ones((4, 1)), inverse_temperature=1.0, head="relu")
    with pytest.raises(ValueError, match="pca_prompt_loss: `directions`"):
        pca_prompt_loss(prompts, np.ones((3, 1)), inverse_temperature=1.0)
