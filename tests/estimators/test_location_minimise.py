"""Compiled minimisation: the function of the plain objective, the minimum of SciPy."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

from eigenheads.estimators import SingleLocationClassifier, SingleLocationRegressor
from eigenheads.estimators._location import _minimise
from eigenheads.estimators._location._fit import find_directions, profile_directions
from eigenheads.estimators._location._problem import data_in_memory


def state_of(rng, head, n_outputs, *, is_class=False, has_intercept=True):
    """A state of 40 ragged bags with a random vector of coefficients."""
    X = [rng.standard_normal((n, 5)) + 1 for n in rng.integers(2, 6, size=40)]
    y = (
        rng.standard_normal((40, n_outputs))
        + np.array([bag.mean() for bag in X])[:, None]
    )
    y = y[:, 0] if n_outputs == 1 else y
    kind = SingleLocationClassifier if is_class else SingleLocationRegressor
    model = kind(head=head, alpha=0.1, fit_intercept=has_intercept)
    y = y > 1 if is_class else y
    encoding = model._encoding(y)
    batch = model._labelled(X, y, rng.uniform(0.5, 2.0, 40), encoding)
    return model._prepared(data_in_memory(batch), encoding.kind)


CASES = [
    ("softmax", 1, False, True),
    ("softmax", 2, False, False),
    ("radial", 1, False, True),
    ("radial", 2, True, True),
    ("erf", 1, False, True),
    ("sigmoid", 1, True, True),
    ("logsumexp", 1, True, True),
]


@pytest.mark.parametrize(("head", "n_outputs", "is_class", "has_intercept"), CASES)
def test_compiled_and_plain_objective_are_equal(
    rng, head, n_outputs, is_class, has_intercept
):
    state = state_of(
        rng, head, n_outputs, is_class=is_class, has_intercept=has_intercept
    )
    width = len(state.coordinates.mean)
    size = (1 + state.data.n_outputs) * width + state.data.n_outputs
    attended = rng.standard_normal((1, width))
    if head == "radial":
        attended[:, -1] = 0.0
    for mean in (None, attended / np.linalg.norm(attended)):
        objective = state.objective()
        objective.attended, flat = mean, rng.standard_normal(size)
        gradient = np.empty(size)
        arrays = objective.compiled_arguments()
        value = _minimise._penalised(flat, arrays, gradient)
        wanted, by_flat = objective(flat)
        assert_allclose(value, wanted, rtol=1e-12)
        assert_allclose(gradient, by_flat, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("head", ["softmax", "radial", "erf"])
def test_the_minimum_is_that_of_scipy(rng, head):
    state = profile_directions(find_directions(state_of(rng, head, 1)))
    start = state.profiles[0]
    flat = np.concatenate([start.key, start.values.ravel(), [0.0]])
    objective = state.objective()
    found = _minimise.minimise(objective, flat, max_iter=2000, tol=1e-8)
    options = {"gtol": 1e-8, "ftol": 1e-12, "maxiter": 2000}
    wanted = minimize(objective, flat, jac=True, method="L-BFGS-B", options=options)
    assert found.success
    assert np.abs(objective(found.x)[1]).max() < 1e-5
    assert_allclose(found.fun, wanted.fun, rtol=1e-6)


def test_the_search_stops_where_it_is_told_to(rng):
    objective = state_of(rng, "softmax", 1).objective()
    flat = np.full(11, 0.5)
    given = flat.copy()
    found = _minimise.minimise(objective, flat, max_iter=2, tol=1e-9)
    assert (found.nit, found.success) == (2, False)
    assert found.fun < objective(flat)[0]
    assert_allclose(flat, given)  # the start is not overwritten
    at_minimum = _minimise.minimise(objective, flat, max_iter=500, tol=1e-6)
    again = _minimise.minimise(objective, at_minimum.x, max_iter=500, tol=1e-3)
    assert (again.nit, again.success) == (0, True)
