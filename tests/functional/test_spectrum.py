"""Shrinkage of singular values: against the full SVD, and as a proximal map."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenheads.functional import singular_value_threshold


def by_full_svd(x, tau):
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    return (u * np.maximum(s - tau, 0)[..., None, :]) @ vt


@pytest.mark.parametrize("shape", [(20, 20), (40, 7), (7, 40), (3, 1), (4, 9, 6)])
@pytest.mark.parametrize("tau", [0.0, 0.5, 3.0, 1e3])
def test_agrees_with_the_full_svd(rng, as_array, shape, tau):
    x = rng.standard_normal(shape)
    assert_allclose(
        singular_value_threshold(as_array(x), tau), by_full_svd(x, tau), atol=1e-12
    )


def test_is_the_proximal_map_of_the_nuclear_norm(rng):
    x, tau = rng.standard_normal((12, 9)), 2.0
    shrunk = singular_value_threshold(x, tau)
    # (x - L) / tau is a subgradient of the nuclear norm at L: spectral norm 1, and
    # its inner product with L is the norm.
    subgradient = (x - shrunk) / tau
    assert np.linalg.norm(subgradient, 2) <= 1 + 1e-12
    nuclear = np.linalg.norm(shrunk, "nuc")
    assert nuclear > 1  # or the equation below says nothing
    assert_allclose(np.sum(subgradient * shrunk), nuclear, rtol=1e-12)


def test_zero_stays_zero():
    assert not singular_value_threshold(np.zeros((4, 3)), 1.0).any()


def test_float32_stays(rng):
    x = rng.standard_normal((5, 4)).astype(np.float32)
    assert singular_value_threshold(x, 0.5).dtype == np.float32


def test_bad_input_is_a_sentence():
    with pytest.raises(ValueError, match="`threshold` must be a finite number >= 0"):
        singular_value_threshold(np.eye(2), -1.0)
    with pytest.raises(
        ValueError, match=r"`x` must be an array of shape \(\.\.\., n, d"
    ):
        singular_value_threshold(np.ones(3), 1.0)
