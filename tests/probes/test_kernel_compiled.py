"""Compiled passes over draws, against the formulas they stand for."""

import numpy as np
import pytest

from eigenheads.functional import (
    gamma_ratios,
    kernel_coefficients,
    kernel_pca,
    relative_differences,
)
from eigenheads.probes._kernel_compiled import (
    captured_traces,
    differences_of_sorted,
    norms_and_ratios,
)


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
        in_memory(values[..., :width]), weights[None], in_memory(cloud.gram @ a), 0.0
    )
    basis = np.linalg.qr(a)[0]
    expected = np.einsum("bnr,nm,bmr->b", basis, cloud.gram, basis)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_dependent_columns_are_told_unless_a_ridge_parts_them(draws):
    cloud, values, weights = draws
    twice = np.concatenate([values[..., :2], values[..., :2]], axis=-1)
    image = cloud.gram @ kernel_coefficients(cloud, twice)
    arrays = in_memory(twice), weights[None], in_memory(image)
    assert np.isnan(captured_traces(*arrays, 0.0)).all()
    once = cloud.gram @ kernel_coefficients(cloud, values[..., :2])
    expected = captured_traces(
        in_memory(values[..., :2]), weights[None], in_memory(once), 0.0
    )
    np.testing.assert_allclose(captured_traces(*arrays, 1e-10), expected, rtol=1e-4)
