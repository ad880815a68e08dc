"""Cheapest matchings have the totals of SciPy's, whatever the costs."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import linear_sum_assignment

from eigenheads.functional._assignment import cheapest_matchings


def totals(costs):
    return [cost[linear_sum_assignment(cost)].sum() for cost in costs]


@pytest.mark.parametrize("n", [1, 2, 3, 8, 40])
@pytest.mark.parametrize("kind", ["continuous", "ties", "low rank", "constant"])
def test_totals_are_least(rng, n, kind):
    costs = rng.standard_normal((20, n, n))
    if kind == "ties":  # rows that bid for equally good columns
        costs = np.round(costs)
    elif kind == "low rank":  # cosines of few dimensions: all rows want one column
        costs = rng.standard_normal((20, n, 2)) @ rng.standard_normal((20, 2, n))
    elif kind == "constant":
        costs[:] = 0.25
    assert_allclose(cheapest_matchings(costs), totals(costs), atol=1e-11)


def test_large_and_small_costs_together(rng):
    costs = rng.standard_normal((20, 12, 12)) * np.geomspace(1e-6, 1e6, 12)
    assert_allclose(cheapest_matchings(costs), totals(costs), rtol=1e-12)


def test_costs_stay_as_they_are(rng):
    costs = rng.standard_normal((3, 6, 6))
    before = costs.copy()
    cheapest_matchings(costs)
    assert np.array_equal(costs, before)
