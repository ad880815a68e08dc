import numpy as np
import pytest
from scipy import special

from eigenheads._arrays import stable_softmax as reference
from eigenheads.models._emit import fast_softmax
from eigenheads.models._vectors import attend


def weights(logits):
    logits = np.asarray(logits, dtype=np.float64)
    out, scratch = np.empty_like(logits), np.empty_like(logits)
    fast_softmax(logits, out, scratch)
    return out


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e3, 1e4, 1e12])
def test_softmax_is_that_of_functional(rng, scale):
    logits = scale * rng.standard_normal(1001)
    # Nothing below 1e-300 of the largest is required; above, a few units of rounding.
    np.testing.assert_allclose(
        weights(logits), reference(logits), rtol=4e-15, atol=1e-300
    )


@pytest.mark.parametrize("scale", [-3.0, 0.0, 0.1, 500.0])
def test_weights_of_pca_are_those_of_functional(rng, scale):
    products, out = rng.standard_normal(100), np.empty(100)
    attend(products, scale, True, out)
    expected = reference(scale * products)
    # The product is taken before or after the difference: 500 roundings of 1e-16.
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-200)
    attend(products, scale, False, out)
    np.testing.assert_array_equal(out, scale * products)


def test_exponential_is_right_to_a_unit_over_its_range():
    # A zero in front makes the others exponentials, up to one common factor.
    x = np.concatenate([[0.0], -np.linspace(0, 707, 5001)])
    ours = weights(x)
    np.testing.assert_allclose(ours / ours[0], np.exp(x), rtol=2e-15)


def test_equal_logits_share_alike():
    np.testing.assert_array_equal(weights(np.full(8, 1e4)), 0.125)
    np.testing.assert_array_equal(weights([7.0]), 1.0)


def test_weights_that_are_not_numbers_stay_so():
    assert np.isnan(weights([0.0, np.nan])).all()
    assert np.isnan(weights([0.0, np.inf])).any()


def test_minus_infinity_is_no_weight():
    assert weights([0.0, -np.inf])[1] < 1e-300
    assert special.softmax([0.0, -np.inf])[1] == 0
