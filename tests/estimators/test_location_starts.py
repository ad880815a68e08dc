"""The starts are the moments that single-location regression has."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenheads.datasets import SingleLocation
from eigenheads.estimators._bag_targets import SQUARED
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location import _fit
from eigenheads.estimators._location._data import (
    HeadSettings,
    LabelledBags,
    data_in_memory,
)
from eigenheads.estimators._location._fit import Equations, prepare_tokens
from eigenheads.estimators._location._prepare import FitState

LAW = SingleLocation(d=40, n_tokens=6)
SETTINGS = HeadSettings(
    head="softmax",
    kind=SQUARED,
    alpha=0.05,
    l1_ratio=0.0,
    coherence=0.0,
    shrinkage=0.01,
    has_intercept=True,
    max_iter=10,
    tol=1e-4,
)


def state_of(rng, *, decoy=1.0, n=5000):
    """Return whitened bags of the law in a random frame, and the key in it."""
    tokens, y, _ = LAW.sample(n, rng)
    tokens[..., 2] *= decoy
    turn, _ = np.linalg.qr(rng.standard_normal((LAW.d, LAW.d)))
    bags = Bags(tokens.reshape(-1, LAW.d) @ turn, LAW.n_tokens * np.arange(n + 1))
    y = y - y.mean()
    data = data_in_memory(LabelledBags(bags, y, y[:, None], np.ones(n)))
    state = FitState(data, SETTINGS, print)
    return prepare_tokens(state), LAW.key_direction @ turn


def overlap(direction, state, key):
    raw = state.coordinates.raw(direction[None])[0]
    return abs(raw @ key) / np.linalg.norm(raw)


# Noise of an overlap: sqrt(d L / n) = 0.2 times the spread of a term over the signal
# sqrt(d / 2) / 2 = 2.2, so cosines are near 0.99; 0.8 is many deviations away.
@pytest.mark.parametrize("decoy", [1.0, 9.0])
@pytest.mark.parametrize("name", ["moments", "spectral"])
def test_moments_find_the_key_with_and_without_a_decoy(rng, decoy, name):
    state, key = state_of(rng, decoy=decoy)
    directions = _fit._directions(state)[name]
    assert max(overlap(direction, state, key) for direction in directions) > 0.8


def test_products_find_the_directions_of_the_matrix(rng, monkeypatch):
    """With many features the moment matrix is never computed."""
    state, _ = state_of(rng, n=500)
    whole = _fit._directions(state)["spectral"]
    monkeypatch.setattr(_fit, "_WIDE", 1)
    products = _fit._directions(state)["spectral"]
    for direction in whole:  # eigenvectors have no sign: sum and difference may swap
        cosines = [abs(direction @ other) / 2 for other in products]
        # Both have squared length 2; the eigenvectors are found to 1e-3.
        assert max(cosines) > 1 - 1e-4


@pytest.mark.parametrize("width", [3, 30])
def test_ridge_is_its_formula_for_few_and_many_features_and_any_batches(rng, width):
    features, responses = rng.standard_normal((20, width)), rng.standard_normal((20, 2))
    weights = rng.uniform(1, 2, 20)
    gram = (features * weights[:, None]).T @ features
    right = (features * weights[:, None]).T @ responses
    expected = np.linalg.solve(gram + 0.7 * np.eye(width), right)
    for size in (20, 6):
        equations = Equations(2)
        for first in range(0, 20, size):
            rows = slice(first, first + size)
            equations.add(features[rows], responses[rows], weights[rows])
        assert_allclose(equations.mean_square(), np.trace(gram) / weights.sum())
        assert_allclose(equations.ridge(0.7), expected, rtol=1e-9, atol=1e-12)
