"""The warm decomposition equals the one from the start, on slowly changing matrices."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenheads.estimators._robust_pca_svd import WarmThresholdedSVD
from eigenheads.functional import singular_value_threshold


@pytest.mark.parametrize("shape", [(300, 150), (150, 300), (200, 20), (20, 200)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_equals_the_decomposition_from_the_start(rng, shape, dtype):
    n, d = shape
    x = 10 * rng.standard_normal((n, 4)) @ rng.standard_normal((4, d)) + 3.0
    warm = WarmThresholdedSVD()
    for _ in range(6):
        x = x + 0.1 * rng.standard_normal(shape)
        found = warm(x.astype(dtype), 20.0)
    expected = singular_value_threshold(x - x.mean(axis=0), 20.0)
    sizes = np.linalg.svd(expected, compute_uv=False)[:4]
    mean = x.mean(axis=0)
    # A mean near zero has the rounding of the numbers that it is made of.
    assert_allclose(warm.mean, mean, atol=1e-5 * np.abs(mean).max())
    assert found.rank == 4
    assert_allclose(found.singular_values, sizes, rtol=1e-4)
    scale = np.abs(expected).max()
    assert_allclose(found.matrix(), expected, atol=1e-4 * scale)
    eye = np.eye(4)
    assert_allclose(found.left.T @ found.left, eye, atol=1e-5)
    assert_allclose(found.right @ found.right.T, eye, atol=1e-5)


def test_the_block_grows_with_the_rank(rng):
    warm = WarmThresholdedSVD()
    low = rng.standard_normal((400, 2)) @ rng.standard_normal((2, 300))
    assert warm(low, 1.0).rank == 2
    high = rng.standard_normal((400, 30)) @ rng.standard_normal((30, 300))
    assert warm(high, 1.0).rank == 30
    assert warm(0 * high, 1.0).rank == 0


def test_weighted_rows(rng):
    x = rng.standard_normal((12, 5)) + 1.0
    roots = np.sqrt(rng.integers(1, 4, (12, 1)).astype(float))
    found = WarmThresholdedSVD(roots)(roots * x, 0.5)
    repeated = np.repeat(x, (roots[:, 0] ** 2).round().astype(int), axis=0)
    sizes = np.linalg.svd(repeated - repeated.mean(axis=0), compute_uv=False)
    assert_allclose(found.singular_values, sizes[sizes > 0.5] - 0.5)
