"""Softmax, its logarithm and erf against SciPy and PyTorch."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import special

from eigenheads._arrays import erf, log_sum_exp, stable_softmax


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4])
def test_softmax_and_logarithm_are_those_of_scipy(as_array, rng, scale):
    scores = scale * rng.standard_normal((3, 50))
    ours = np.asarray(stable_softmax(as_array(scores)))
    assert_allclose(ours, special.softmax(scores, axis=-1), rtol=1e-13, atol=1e-300)
    logs = np.asarray(log_sum_exp(as_array(scores)))
    assert_allclose(logs, special.logsumexp(scores, axis=-1), rtol=1e-13)


def test_hidden_entries_have_no_weight(as_array):
    scores = as_array(np.array([[0.0, -np.inf, 0.0], [-np.inf] * 3]))
    assert_array_equal(np.asarray(stable_softmax(scores)), [[0.5, 0.0, 0.5], [0.0] * 3])


def test_a_score_that_is_no_number_is_not_hidden(as_array):
    scores = as_array(np.array([0.0, np.nan]))
    assert np.isnan(np.asarray(stable_softmax(scores))).all()


def test_error_function_is_that_of_scipy(as_array):
    x = np.linspace(-7, 7, 201)
    assert_allclose(np.asarray(erf(as_array(x))), special.erf(x), rtol=1e-13)


@pytest.mark.torch
def test_the_gradient_is_that_of_torch(rng):
    import torch

    numbers = rng.standard_normal((2, 5))
    gradients = []
    for function in (stable_softmax, lambda x: torch.softmax(x, dim=-1)):
        scores = torch.tensor(numbers, requires_grad=True)
        (function(scores) ** 2).sum().backward()
        gradients.append(scores.grad.numpy())
    assert_allclose(*gradients, rtol=1e-12, atol=1e-15)
