"""Medians of similar rows are those of the sorted rows."""

import numpy as np
import pytest

from eigenheads._numerics._medians import lower_medians


@pytest.mark.parametrize("n", [1, 2, 5, 64, 2016])
@pytest.mark.parametrize("guess", [np.inf, 0.0, 0.5, 1e308])
def test_medians_are_those_of_sorted_rows(n, guess):
    rng = np.random.default_rng(n)
    alike = rng.random((6, n))
    scales = np.array([1.0, 1.0, 0.0, 100.0, 1e300, 1e-300])[:, None]
    spread = 10 ** rng.uniform(-300, 300, (6, n))
    for rows in (alike, alike.round(1), alike * scales, spread):
        expected = np.sort(rows, axis=1)[:, (n - 1) // 2]
        np.testing.assert_array_equal(lower_medians(rows, guess), expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_of_many_infinite_numbers_has_no_median(bad):
    rows = np.array([[bad] * 20 + [1.0] * 10, [bad] * 4 + [2.0] * 26])
    found = lower_medians(rows, np.inf)
    assert np.isnan(found[0])
    assert found[1] == 2.0
