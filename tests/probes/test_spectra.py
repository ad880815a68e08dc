"""Eigenvalues of many small matrices are LAPACK's."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenheads.functional import centred_gram, feature_gram
from eigenheads.probes._spectra import symmetric_eigenvalues


def ours(matrices):
    return np.sort(symmetric_eigenvalues(matrices.copy()), axis=1)


@pytest.mark.parametrize("n", [1, 2, 3, 20, 65])
def test_any_symmetric_matrix(rng, n):
    matrices = rng.standard_normal((10, n, n))
    matrices = matrices + matrices.transpose(0, 2, 1)
    expected = np.linalg.eigvalsh(matrices)
    assert_allclose(ours(matrices), expected, atol=1e-13 * n)


@pytest.mark.parametrize("size", [1e-160, 1.0, 1e150])
def test_gram_matrices_of_any_size(rng, size):
    """The kernel of long keys is as small as e^-700: squares would vanish."""
    keys = rng.standard_normal((10, 30, 8))
    gram = size * centred_gram(feature_gram(keys, 0.4)[1])
    expected = np.linalg.eigvalsh(gram)
    assert_allclose(ours(gram), expected, atol=1e-14 * expected.max())


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_low_rank(rng, rank):
    factor = rng.standard_normal((5, 24, rank))
    matrices = factor @ factor.transpose(0, 2, 1)
    expected = np.linalg.eigvalsh(matrices)
    assert_allclose(ours(matrices), expected, atol=1e-12)


def test_blocks_and_diagonals():
    blocks = np.kron(np.diag([1.0, 2.0, 3.0]), [[0.0, 1.0], [1.0, 0.0]])
    matrices = np.stack([blocks, np.diag([5.0, 0.0, -1.0, 2.0, 2.0, 1e-300])])
    assert_allclose(ours(matrices), np.linalg.eigvalsh(matrices), atol=1e-14)


def test_what_is_not_finite_stays_so():
    assert np.isnan(symmetric_eigenvalues(np.full((1, 4, 4), np.nan))).all()
