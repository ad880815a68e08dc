"""Compiled passes over draws, against the formulas they stand for."""

import numpy as np
import pytest

from eigenheads.functional import (
    gamma_ratios,
    kernel_coefficients,
    kernel_pca,
    log_feature_norms,
    relative_differences,
)
from eigenheads.functional._kernel import centred_gram
from eigenheads.functional._similarity import rbf_gram
from eigenheads.probes._heads import LayerHeads
from eigenheads.probes._kernel_compiled import (
    differences_of_sorted,
    norms_and_ratios,
)
from eigenheads.probes._kernel_reading import _unit_gram, captured_traces


@pytest.fixture
def draws():
    """A kernel PCA of 9 keys and four draws of five columns of values."""
    rng = np.random.default_rng(0)
    cloud = kernel_pca(rng.standard_normal((9, 3)))
    values = rng.standard_normal((4, 9, 5))
    weights = np.exp(cloud.log_normaliser - cloud.log_normaliser.max())
    return cloud, values, weights


def in_memory(values):
    return np.ascontiguousarray(values.transpose(2, 0, 1))


def test_one_pass_reads_norms_residuals_and_ratios(draws):
    cloud, values, weights = draws
    rng = np.random.default_rng(1)
    other = rng.standard_normal((9, 8))  # six queries and two columns of a target
    readout = np.concatenate([other, weights[:, None] * cloud.gram], axis=1)
    drawn = in_memory(values)
    outputs, ratios = np.empty((4, 6)), np.empty(drawn.shape, dtype=np.uint64)
    crosses, residuals = np.empty(4), np.empty(4)
    norms_and_ratios(
        drawn, weights[None], drawn @ readout, outputs, crosses, residuals, ratios
    )
    products = np.swapaxes(values, 1, 2) @ other
    np.testing.assert_allclose(outputs, (products[..., :6] ** 2).sum(axis=1))
    np.testing.assert_allclose(crosses, (products[..., 6:] ** 2).sum(axis=(1, 2)))
    a = kernel_coefficients(cloud, values)
    image = cloud.gram @ a
    inner = np.sum(a * image, axis=1) ** 2
    whole = np.sum(a * a, axis=1) * np.sum(image * image, axis=1)
    np.testing.assert_allclose(residuals, np.sqrt(1 - inner / whole).mean(axis=1))
    ratios.sort(axis=-1)
    expected = relative_differences(gamma_ratios(cloud.gram, a)).mean(axis=-1)
    np.testing.assert_allclose(differences_of_sorted(ratios), expected)


@pytest.mark.parametrize("width", [1, 2, 5])
def test_the_trace_is_that_of_the_projected_gram_matrix(draws, width):
    cloud, values, weights = draws
    a = kernel_coefficients(cloud, values[..., :width])
    found = captured_traces(
        in_memory(values[..., :width]), weights, in_memory(cloud.gram @ a)
    )
    basis = np.linalg.qr(a)[0]
    expected = np.einsum("bnr,nm,bmr->b", basis, cloud.gram, basis)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_dependent_columns_are_told_unless_a_ridge_parts_them(draws):
    cloud, values, weights = draws
    twice = np.concatenate([values[..., :2], values[..., :2]], axis=-1)
    image = cloud.gram @ kernel_coefficients(cloud, twice)
    arrays = in_memory(twice), weights, in_memory(image)
    assert np.isnan(captured_traces(*arrays)).all()
    once = cloud.gram @ kernel_coefficients(cloud, values[..., :2])
    expected = captured_traces(in_memory(values[..., :2]), weights, in_memory(once))
    np.testing.assert_allclose(captured_traces(*arrays, 1e-10), expected, rtol=1e-4)


@pytest.mark.parametrize("n", [7, 12])
def test_values_that_are_all_equal_have_no_gaussian_gram_matrix(n):
    assert np.isnan(_unit_gram(np.full((1, n, 3), 0.3))).all()


def test_gaussian_gram_matrices_have_mean_zero_and_norm_one(rng):
    points = rng.standard_normal((2, 3, 7, 4))
    points[1, 1] = 2.0  # equal tokens: a constant Gram matrix
    found = _unit_gram(points)
    gram = centred_gram(rbf_gram(points))
    norm = np.linalg.norm(gram, axis=(-2, -1), keepdims=True)
    assert np.isnan(found[1, 1]).all()
    found[1, 1], norm[1, 1] = 0.0, 1.0
    np.testing.assert_allclose(found, gram / norm, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("n_queries", [6, 4])
def test_feature_norms_of_drawn_keys_are_the_formula(rng, is_causal, n_queries):
    queries, keys = rng.standard_normal((n_queries, 3)), rng.standard_normal((5, 6, 3))
    arrays = queries[None], keys[:1], keys[:1]
    heads = LayerHeads([arrays], [0], None, [], scale=0.4, is_causal=is_causal)
    expected = log_feature_norms(queries[None], keys, scale=0.4, is_causal=is_causal)
    np.testing.assert_allclose(heads.log_features(queries, keys), expected)
