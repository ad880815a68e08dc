"""Traces of quotients are those of NumPy's linear solver."""

import numpy as np
import pytest

from eigenheads._numerics._quotient_trace import quotient_trace


def random_pair(rng, size):
    factor, form = rng.standard_normal((2, size, size + 2))
    return factor @ factor.T, form @ form.T


@pytest.mark.parametrize("size", [1, 2, 7, 32])
def test_trace_is_that_of_the_linear_solver(rng, size):
    gram, form = random_pair(rng, size)
    expected = np.trace(np.linalg.solve(gram, form))
    found = quotient_trace(gram.copy(), form, size, np.empty(size), 0.0)
    np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_only_the_leading_lower_halves_are_read(rng):
    gram, form = random_pair(rng, 5)
    expected = np.trace(np.linalg.solve(gram[:3, :3], form[:3, :3]))
    lower = [np.tril(x) + np.triu(np.full((5, 5), np.nan), 1) for x in (gram, form)]
    found = quotient_trace(*lower, 3, np.empty(5), 0.0)
    np.testing.assert_allclose(found, expected)


def test_a_small_pivot_gives_nan(rng):
    column = rng.standard_normal((4, 1))
    singular = column @ column.T
    assert np.isnan(quotient_trace(singular, np.eye(4), 4, np.empty(4), 1e-8))
