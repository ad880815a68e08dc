"""The predictor of single-location regression, on NumPy and PyTorch arrays."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from eigenheads.functional import location_predictor

HEADS = ["erf", "softmax"]

# Rounding of sums of a few dozen products of numbers of size 1, with margin.
RTOL = 1e-12


@pytest.fixture
def prompt(rng):
    """Three by two prompts of four tokens in R^5, a key and a value."""
    return (
        rng.standard_normal((3, 2, 4, 5)),
        rng.standard_normal(5),
        rng.standard_normal(5),
    )


def test_two_tokens_by_hand(as_array):
    tokens = as_array(np.array([[2.0, 3.0], [-1.0, 5.0]]))
    key, value = as_array(np.array([1.0, 0.0])), as_array(np.array([0.0, 1.0]))

    erf = location_predictor(tokens, key, value, inverse_temperature=0.5)
    softmax = location_predictor(
        tokens, key, value, inverse_temperature=0.5, head="softmax"
    )

    assert float(erf) == pytest.approx(3 * math.erf(1.0) - 5 * math.erf(0.5), rel=RTOL)
    first, second = math.exp(1.0), math.exp(-0.5)
    by_hand = (3 * first + 5 * second) / (first + second)
    assert float(softmax) == pytest.approx(by_hand, rel=RTOL)


@pytest.mark.parametrize("head", HEADS)
def test_batch_axes_are_prompts_of_their_own(prompt, as_array, head):
    tokens, key, value = prompt
    together = location_predictor(
        as_array(tokens),
        as_array(key),
        as_array(value),
        inverse_temperature=0.7,
        head=head,
    )
    one_by_one = [
        [
            location_predictor(x, key, value, inverse_temperature=0.7, head=head)
            for x in row
        ]
        for row in tokens
    ]
    assert together.shape == (3, 2)
    assert_allclose(np.asarray(together), one_by_one, rtol=RTOL)


@pytest.mark.parametrize("head", HEADS)
def test_order_of_the_tokens_does_not_matter(prompt, rng, head):
    tokens, key, value = prompt
    shuffled = tokens[:, :, rng.permutation(4)]
    assert_allclose(
        location_predictor(shuffled, key, value, inverse_temperature=0.7, head=head),
        location_predictor(tokens, key, value, inverse_temperature=0.7, head=head),
        rtol=RTOL,
    )


def test_erf_head_is_odd_in_the_key(prompt):
    tokens, key, value = prompt
    plus = location_predictor(tokens, key, value, inverse_temperature=0.7)
    minus = location_predictor(tokens, -key, value, inverse_temperature=0.7)
    assert_allclose(minus, -plus, rtol=RTOL)


@pytest.mark.parametrize("head", HEADS)
def test_linear_in_the_value(prompt, rng, head):
    tokens, key, value = prompt
    other = rng.standard_normal(5)

    def predict(v):
        return location_predictor(tokens, key, v, inverse_temperature=1.3, head=head)

    assert_allclose(
        predict(2 * value - 3 * other),
        2 * predict(value) - 3 * predict(other),
        rtol=1e-10,
    )


def test_flat_heads(prompt):
    tokens, key, value = prompt
    assert np.all(location_predictor(tokens, key, value, inverse_temperature=0.0) == 0)
    flat = location_predictor(
        tokens, key, value, inverse_temperature=0.0, head="softmax"
    )
    assert_allclose(flat, (tokens @ value).mean(axis=-1), rtol=RTOL)


def test_sharp_heads_take_signs_and_the_largest(prompt, as_array):
    tokens, key, value = prompt
    arrays = as_array(tokens), as_array(key), as_array(value)
    logits, values = tokens @ key, tokens @ value

    sharp = location_predictor(*arrays, inverse_temperature=1e12)
    assert_allclose(np.asarray(sharp), (np.sign(logits) * values).sum(-1), rtol=RTOL)

    sharp = location_predictor(*arrays, inverse_temperature=1e12, head="softmax")
    largest = np.take_along_axis(values, logits.argmax(-1)[..., None], -1)[..., 0]
    assert_allclose(np.asarray(sharp), largest, rtol=RTOL)


@pytest.mark.torch
@pytest.mark.parametrize("head", HEADS)
def test_gradients_flow_through_all_three_arrays(prompt, head):
    import torch

    arrays = [torch.asarray(array).requires_grad_() for array in prompt]

    def predict(tokens, key, value):
        return location_predictor(
            tokens, key, value, inverse_temperature=0.7, head=head
        )

    assert torch.autograd.gradcheck(predict, arrays)


def test_keeps_the_dtype(prompt, as_array):
    arrays = [as_array(array.astype(np.float32)) for array in prompt]
    single = location_predictor(*arrays, inverse_temperature=0.7)
    assert single.dtype == arrays[0].dtype


def test_unknown_head(prompt):
    with pytest.raises(ValueError, match="Did you mean 'softmax'"):
        location_predictor(*prompt, inverse_temperature=1.0, head="sofmax")


@pytest.mark.parametrize("sharpness", [-1.0, math.nan, math.inf, "one", None])
def test_temperature_must_be_a_number(prompt, sharpness):
    message = "location_predictor: `inverse_temperature` must be a finite number >= 0"
    with pytest.raises(ValueError, match=message):
        location_predictor(*prompt, inverse_temperature=sharpness)


def test_shapes_must_fit(prompt):
    tokens, key, value = prompt
    with pytest.raises(ValueError, match=r"`key` must be of shape \(5,\).*got \(4,\)"):
        location_predictor(tokens, key[:4], value, inverse_temperature=1.0)
    with pytest.raises(ValueError, match=r"`value` must be of shape \(5,\)"):
        location_predictor(tokens, key, value[None], inverse_temperature=1.0)
    with pytest.raises(ValueError, match=r"`tokens` must be of shape .*got \(5,\)"):
        location_predictor(key, key, value, inverse_temperature=1.0)
    with pytest.raises(ValueError, match="n_tokens >= 1"):
        location_predictor(tokens[:, :, :0], key, value, inverse_temperature=1.0)


def test_types_must_fit(prompt):
    tokens, key, value = prompt
    with pytest.raises(TypeError, match="`tokens` must be an array of NumPy or"):
        location_predictor(tokens.tolist(), key, value, inverse_temperature=1.0)
    with pytest.raises(TypeError, match="`key` must be an array of floats; got dtype"):
        location_predictor(tokens, key.astype(int), value, inverse_temperature=1.0)
    with pytest.raises(TypeError, match="`value` must be of the dtype of `tokens`"):
        location_predictor(
            tokens, key, value.astype(np.float32), inverse_temperature=1.0
        )


@pytest.mark.torch
def test_libraries_do_not_mix(prompt):
    import torch

    tokens, key, value = prompt
    with pytest.raises(TypeError, match="got Tensor, ndarray, ndarray"):
        location_predictor(torch.asarray(tokens), key, value, inverse_temperature=1.0)


@given(
    logit=st.floats(-1e150, 1e150),
    other=st.floats(-1e150, 1e150),
    head=st.sampled_from(HEADS),
)
def test_huge_logits_stay_within_the_values(logit, other, head):
    """Two tokens of value 1 and 2: no overflow, and a bounded answer."""
    tokens = np.array([[logit, 1.0], [other, 2.0]])
    prediction = location_predictor(
        tokens, *np.eye(2), inverse_temperature=1e150, head=head
    )
    low, high = (1.0, 2.0) if head == "softmax" else (-3.0, 3.0)
    assert low <= prediction <= high
