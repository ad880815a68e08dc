"""Thresholded factors are those of the full singular value decomposition."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenheads._numerics._thresholded_svd import thresholded_svd


@pytest.mark.parametrize("shape", [(30, 50), (50, 30)])
def test_factors_are_orthonormal_and_sorted(rng, shape):
    x = rng.standard_normal(shape)
    found = thresholded_svd(x, 4.0)
    values = np.linalg.svd(x, compute_uv=False)
    assert_allclose(found.singular_values, values[values > 4.0] - 4.0)
    assert 0 < found.rank < 30
    eye = np.eye(found.rank)
    assert_allclose(found.left.T @ found.left, eye, atol=1e-12)
    assert_allclose(found.right @ found.right.T, eye, atol=1e-12)


def test_zero_stays_zero():
    found = thresholded_svd(np.zeros((4, 3)), 1.0)
    assert found.rank == 0
    assert found.matrix().shape == (4, 3)
