"""The attention output of one query, on NumPy and PyTorch arrays."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenheads.functional import signal_output, signal_output_gradient

# Rounding of sums of a few dozen products of numbers of size 1, with margin.
RTOL = 1e-12


@pytest.fixture
def prompt(rng):
    """Three by two prompts of four tokens in R^5, and a query."""
    return rng.standard_normal((3, 2, 4, 5)), rng.standard_normal(5)


def test_two_tokens_by_hand(as_array):
    tokens = as_array(np.array([[2.0, 3.0], [-1.0, 5.0]]))
    query = as_array(np.array([1.0, 0.0]))
    first = np.exp(3 * 0.5) / (1 + np.exp(3 * 0.5))
    by_hand = first * np.array([2.0, 3.0]) + (1 - first) * np.array([-1.0, 5.0])
    output = signal_output(tokens, query, inverse_temperature=0.5)
    assert_allclose(np.asarray(output), by_hand, rtol=RTOL)
    # With two tokens o = x_2 + p (x_1 - x_2), and p' = β p (1 - p) (x_1 - x_2).
    gap = np.array([3.0, -2.0])
    slope = 2 * (by_hand @ gap) * 0.5 * first * (1 - first) * gap
    gradient = signal_output_gradient(tokens, query, inverse_temperature=0.5)
    assert_allclose(np.asarray(gradient), slope, rtol=RTOL)


@pytest.mark.parametrize("function", [signal_output, signal_output_gradient])
def test_batch_axes_are_prompts_of_their_own(prompt, as_array, function):
    tokens, query = prompt
    together = function(as_array(tokens), as_array(query), inverse_temperature=0.7)
    one_by_one = [
        [function(x, query, inverse_temperature=0.7) for x in row] for row in tokens
    ]
    assert_allclose(np.asarray(together), one_by_one, rtol=RTOL, atol=1e-14)


@pytest.mark.parametrize("function", [signal_output, signal_output_gradient])
def test_order_of_the_tokens_does_not_matter(prompt, rng, function):
    tokens, query = prompt
    shuffled = tokens[:, :, rng.permutation(4)]
    assert_allclose(function(shuffled, query), function(tokens, query), rtol=1e-11)


def test_gradient_by_finite_differences(prompt):
    tokens, query = prompt
    bumps = 1e-5 * np.eye(5)

    def objective(q):
        return np.sum(signal_output(tokens, q, inverse_temperature=0.8) ** 2, axis=-1)

    expected = np.stack(
        [(objective(query + b) - objective(query - b)) / 2e-5 for b in bumps], axis=-1
    )
    ours = signal_output_gradient(tokens, query, inverse_temperature=0.8)
    # Central differences: h² times a third derivative, and 1e-16 / h of rounding.
    assert_allclose(ours, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.torch
@pytest.mark.parametrize("beta", [0.0, 0.8, 30.0])
def test_gradient_is_autograds(prompt, beta):
    import torch

    tokens, query = (torch.asarray(array) for array in prompt)
    query.requires_grad_()
    output = signal_output(tokens, query, inverse_temperature=beta)
    (expected,) = torch.autograd.grad((output**2).sum(), query)
    ours = signal_output_gradient(tokens, query.detach(), inverse_temperature=beta)
    total = ours.sum(dim=(0, 1)).numpy()
    assert_allclose(total, expected.numpy(), rtol=1e-10, atol=1e-11)


def test_flat_head_returns_the_mean_and_has_no_slope(prompt):
    tokens, query = prompt
    flat = signal_output(tokens, query, inverse_temperature=0.0)
    assert_allclose(flat, tokens.mean(axis=-2), rtol=RTOL)
    assert np.all(signal_output_gradient(tokens, query, inverse_temperature=0.0) == 0)


@pytest.mark.parametrize("scale", [1e2, 1e4, 1e8])
def test_large_logits_pick_the_largest(prompt, as_array, scale):
    tokens, query = prompt
    output = signal_output(
        as_array(tokens), as_array(query), inverse_temperature=scale * 1e4
    )
    largest = (tokens @ query).argmax(axis=-1)
    picked = np.take_along_axis(tokens, largest[..., None, None], axis=-2)[..., 0, :]
    assert_allclose(np.asarray(output), picked, rtol=RTOL)


def test_output_stays_in_the_hull_of_the_tokens(prompt):
    tokens, query = prompt
    output = signal_output(tokens, query, inverse_temperature=2.0)
    assert (output <= tokens.max(axis=-2) + 1e-14).all()
    assert (output >= tokens.min(axis=-2) - 1e-14).all()


@pytest.mark.parametrize("function", [signal_output, signal_output_gradient])
@pytest.mark.parametrize(
    ("tokens", "query", "beta", "error", "message"),
    [
        (np.ones((2, 3)), [1.0, 2.0, 3.0], 1.0, TypeError, "`query` must be an array"),
        (np.ones((2, 3), int), np.ones(3), 1.0, TypeError, "`tokens` must be an array"),
        (
            np.ones((2, 3)),
            np.ones(3, "f4"),
            1.0,
            TypeError,
            "`query` must be of the dt",
        ),
        (np.ones(3), np.ones(3), 1.0, ValueError, "`tokens` must be of shape"),
        (np.ones((0, 3)), np.ones(3), 1.0, ValueError, ".*with n_tokens >= 1"),
        (
            np.ones((2, 3)),
            np.ones(4),
            1.0,
            ValueError,
            r"`query` must be of shape \(3,",
        ),
        (np.ones((2, 3)), np.ones(3), -1.0, ValueError, "`inverse_temperature` must"),
        (np.ones((2, 3)), np.ones(3), np.nan, ValueError, "`inverse_temperature` must"),
    ],
)
def test_bad_arguments_get_a_sentence(function, tokens, query, beta, error, message):
    with pytest.raises(error, match=f"{function.__name__}: {message}"):
        function(tokens, query, inverse_temperature=beta)
