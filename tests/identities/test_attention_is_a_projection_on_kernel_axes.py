r"""With kernel-PCA values a head projects the query's feature on principal axes.

Identity (docs/theory/kernel.md, Proposition 1): softmax(c q·k) V̂ are the coordinates
of φ(q)/g(q), not centred, on the unit principal axes of the centred keys' features.
Checked against explicit features: the Taylor expansion of exp in tensor powers.
"""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenheads.functional import (
    gamma_ratios,
    kernel_coefficients,
    kernel_pca,
    kernel_pca_values,
    log_feature_norms,
    relative_differences,
)

# Rounding: eigenvalues down to 1e-3 of the largest, through one division by the root.
ATOL = 1e-10
N, D, DEGREE = 9, 2, 40


def features(points, scale):
    r"""φ(x) with φ(x)·φ(y) = exp(c x·y) in coordinates, D = 2.

    (c x·y)^m / m! = Σ_j binom(m, j)/m! (√c x_1)^j (√c x_2)^(m-j) (same of y): one
    coordinate a monomial. Truncated at degree 40:
    |c x·y| <= 3.2 here, and 3.2⁴¹/41! < 1e-28.
    """
    x = math.sqrt(scale) * points
    columns = [
        x[:, 0] ** j
        * x[:, 1] ** (m - j)
        / math.sqrt(math.factorial(j) * math.factorial(m - j))
        for m in range(DEGREE + 1)
        for j in range(m + 1)
    ]
    return np.stack(columns, axis=1)


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@pytest.fixture
def head(rng):
    keys = rng.uniform(-1.5, 1.5, (N, D))
    queries = rng.uniform(-1.5, 1.5, (5, D))
    return queries, keys, 1 / math.sqrt(D)


def normalised(points, keys, scale):
    phi = features(points, scale)
    return phi / (phi @ features(keys, scale).T).sum(1, keepdims=True)


def test_features_have_the_kernel(head):
    queries, keys, scale = head
    product = features(queries, scale) @ features(keys, scale).T
    assert_allclose(product, np.exp(scale * queries @ keys.T), rtol=1e-11)


def test_head_output_is_the_projection(head):
    """PCA by an SVD of the explicit features; nothing of the library's Gram matrix."""
    queries, keys, scale = head
    cloud = normalised(keys, keys, scale)
    _, singular, axes = np.linalg.svd(cloud - cloud.mean(0), full_matrices=False)
    expected = normalised(queries, keys, scale) @ axes[:4].T

    found = kernel_pca(keys)
    values = kernel_pca_values(found, 4)
    outputs = softmax(scale * queries @ keys.T) @ values
    signs = np.sign((outputs * expected).sum(0))
    assert_allclose(outputs * signs, expected, atol=ATOL)
    assert_allclose(found.eigenvalues[:4], singular[:4] ** 2, rtol=1e-9)
    assert_allclose(found.trace, (cloud**2).sum(), rtol=1e-11)


def test_wrong_scaling_is_off_by_the_root_of_the_eigenvalue(head):
    _, keys, _ = head
    cloud = kernel_pca(keys)
    unit = kernel_pca_values(cloud, 3)
    other = kernel_pca_values(cloud, 3, unit_axes=False)
    assert_allclose(other, unit * np.sqrt(cloud.eigenvalues[:3]), rtol=1e-12)


def test_projection_shortens(head):
    """So the norm ratio of the probe is at most 0 for unit axes."""
    queries, keys, scale = head
    outputs = softmax(scale * queries @ keys.T) @ kernel_pca_values(kernel_pca(keys), 6)
    feature = normalised(queries, keys, scale)
    logs = log_feature_norms(queries, keys)
    assert_allclose(logs, np.log((feature**2).sum(1)), rtol=1e-10)
    assert (np.log((outputs**2).sum(1)) <= logs + 1e-12).all()


def test_gamma_is_the_eigenvalue_for_kernel_values_and_only_then(head, rng):
    _, keys, _ = head
    cloud = kernel_pca(keys)
    values = kernel_pca_values(cloud, 3)
    ratios = gamma_ratios(cloud.gram, kernel_coefficients(cloud, 5 * values))
    assert_allclose(ratios, np.tile(cloud.eigenvalues[:3], (N, 1)), rtol=1e-8)
    assert (relative_differences(ratios) < 1e-8).all()
    other = kernel_coefficients(cloud, rng.standard_normal((N, 3)))
    assert (relative_differences(gamma_ratios(cloud.gram, other)) > 0.1).all()


@pytest.mark.parametrize("n", [2, 3, 17, 60])
@pytest.mark.parametrize("size", [0.01, 1.0, 3.0, 30.0])
def test_eigenvalues_are_bounded_by_the_trace_and_the_trace_by_n(rng, n, size):
    """Proposition 2; and for keys of mean zero the trace is at most 1, with its bound.

    Margin for rounding only.
    """
    for shift in (0.0, 2.0):
        keys = size * rng.standard_normal((20, n, 5)) + shift
        cloud = kernel_pca(keys)
        assert (cloud.eigenvalues >= 0).all()
        assert (cloud.eigenvalues.sum(-1) <= cloud.trace * (1 + 1e-9)).all()
        assert (cloud.trace <= n).all()
        centred = kernel_pca(keys - keys.mean(-2, keepdims=True))
        bound = n * (4 * (n - 1)) ** (-(n - 1) / n)
        assert (centred.trace <= bound * (1 + 1e-9)).all()
        assert bound <= 1 + 1e-12


def test_the_bound_is_nearly_reached(rng):
    """Orthogonal keys with e^{c|k|²} = N: each diagonal entry is N/(2N - 1)²."""
    n = 50
    keys = math.sqrt(math.log(n)) * np.eye(n)
    cloud = kernel_pca(keys, scale=1.0)
    assert_allclose(cloud.trace, n**2 / (2 * n - 1) ** 2, rtol=1e-12)


def test_long_keys_overflow_nothing(rng):
    """Scores of 1e6: exp would be infinite."""
    keys = 1e3 * rng.standard_normal((6, 4))
    cloud = kernel_pca(keys, scale=1.0)
    assert np.isfinite(cloud.gram).all()
    assert np.isfinite(log_feature_norms(keys, keys)).all()
    assert np.isfinite(kernel_coefficients(cloud, keys)).all()
