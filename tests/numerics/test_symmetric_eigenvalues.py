"""Eigenvalues of stacks of symmetric matrices, against LAPACK."""

import numpy as np
import pytest

from eigenheads._numerics._symmetric_eigenvalues import (
    LANES,
    MOST_ROWS,
    symmetric_eigenvalues,
)


def of_random(rng, count, n):
    """Products of random matrices, one in three of low rank."""
    left = rng.standard_normal((count, n, n))
    left *= 10.0 ** rng.integers(-3, 4, (count, 1, 1))
    left[::3, :, n // 2 :] = 0.0
    return left @ left.swapaxes(1, 2)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 16, 64, MOST_ROWS, MOST_ROWS + 1])
@pytest.mark.parametrize("count", [1, LANES, LANES + 3])
def test_eigenvalues_are_those_of_lapack(rng, count, n):
    stack = of_random(rng, count, n)
    expected = np.linalg.eigvalsh(stack)
    found = symmetric_eigenvalues(stack)
    # Each method errs by a few roundings of the largest eigenvalue.
    error = np.abs(found - expected).max(axis=1)
    assert (error <= 1e-13 * np.abs(expected).max(axis=1)).all()


def test_negative_eigenvalues_and_splits_are_found(rng):
    """Blocks, diagonals and multiples of the identity have subdiagonals of zero."""
    x = rng.standard_normal((5, 6, 6))
    x += x.swapaxes(1, 2)
    x[1, :3, 3:] = x[1, 3:, :3] = 0.0
    x[2] = np.diag([3.0, -1.0, 0.0, 0.0, 2.0, 2.0])
    x[3] = -np.eye(6)
    x[4] = 0.0
    np.testing.assert_allclose(
        symmetric_eigenvalues(x), np.linalg.eigvalsh(x), rtol=0, atol=1e-13
    )


def test_a_matrix_does_not_depend_on_its_stack(rng):
    stack = of_random(rng, 2 * LANES, 12)
    whole = symmetric_eigenvalues(stack)
    for part in (slice(0, 1), slice(3, 50), slice(60, None)):
        np.testing.assert_array_equal(symmetric_eigenvalues(stack[part]), whole[part])


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_sizes_do_not_matter(rng, size):
    x = rng.standard_normal((3, 5, 5))
    x += x.swapaxes(1, 2)
    found = symmetric_eigenvalues(size * x) / size
    np.testing.assert_allclose(found, symmetric_eigenvalues(x), rtol=0, atol=1e-13)


def test_only_the_upper_half_is_read(rng):
    stack = of_random(rng, 3, 5)
    np.testing.assert_array_equal(
        symmetric_eigenvalues(np.triu(stack)), symmetric_eigenvalues(stack)
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_give_nan_and_leave_others_alone(rng, bad):
    stack = of_random(rng, 3, 5)
    expected = symmetric_eigenvalues(stack)
    stack[1, 0, 2] = bad
    found = symmetric_eigenvalues(stack)
    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(found[::2], expected[::2])
