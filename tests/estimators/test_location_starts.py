"""The starts are the moments that single-location regression has."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenheads.datasets import SingleLocation
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location import _starts
from eigenheads.estimators._location._objective import pooled_whitening
from eigenheads.estimators._location._problem import LabelledBags, data_in_memory
from eigenheads.estimators._location._starts import key_directions, ridge_values

LAW = SingleLocation(d=40, n_tokens=6)


def drawn(rng, *, decoy=1.0, n=5000):
    tokens, y, _ = LAW.sample(n, rng)
    tokens[..., 2] *= decoy
    return data_of(tokens.reshape(-1, LAW.d), y - y.mean())


def data_of(rows, y):
    bags = Bags(rows, LAW.n_tokens * np.arange(len(y) + 1))
    return data_in_memory(LabelledBags(bags, y, y[:, None], np.ones(len(y))))


def overlap(direction, coordinates):
    """Cosine of a whitened key, mapped to the tokens, with the planted one."""
    raw = coordinates.raw(direction)
    return abs(raw @ LAW.key_direction) / np.linalg.norm(raw)


# Noise of an overlap: sqrt(d L / n) = 0.2 times the spread of a term over the signal
# sqrt(d / 2) / 2 = 2.2, so cosines are near 0.99; 0.8 is many deviations away.
@pytest.mark.parametrize("decoy", [1.0, 9.0])
@pytest.mark.parametrize("name", ["moments", "spectral"])
def test_moments_find_the_key_with_and_without_a_decoy(rng, decoy, name):
    data = drawn(rng, decoy=decoy)
    coordinates = pooled_whitening(data, center=True)
    found = key_directions(data, coordinates)[name]
    assert max(overlap(direction, coordinates) for direction in found) > 0.8


def test_the_principal_direction_is_the_key_only_without_a_decoy(rng):
    overlaps = []
    for decoy in (1.0, 9.0):
        (batch,) = drawn(rng, decoy=decoy).read()
        # In standardised features the decoy is gone; turn the frame to keep it.
        turn, _ = np.linalg.qr(rng.standard_normal((LAW.d, LAW.d)))
        turned = data_of(batch.bags.tokens @ turn, batch.targets)
        coordinates = pooled_whitening(turned, center=True)
        principal = coordinates.principal / coordinates.scale
        key = LAW.key_direction @ turn
        overlaps.append(abs(principal @ key) / np.linalg.norm(principal))
    assert overlaps[0] > 0.8
    assert overlaps[1] < 0.5


def test_ridge_counts_weights_as_repetitions(rng):
    features, responses = rng.standard_normal((20, 3)), rng.standard_normal((20, 2))
    counts = rng.integers(1, 4, size=20)
    repeated = ridge_values(
        np.repeat(features, counts, axis=0),
        np.repeat(responses, counts, axis=0),
        np.ones(counts.sum()),
    )
    weighted = ridge_values(features, responses, counts.astype(float))
    assert_allclose(weighted, repeated, rtol=1e-12)


@pytest.mark.parametrize("width", [3, 30])
def test_ridge_is_its_formula_for_few_and_many_features(rng, width):
    features, responses = rng.standard_normal((20, width)), rng.standard_normal((20, 2))
    weights = rng.uniform(1, 2, 20)
    gram = (features * weights[:, None]).T @ features
    right = (features * weights[:, None]).T @ responses
    ridge = np.trace(gram) / weights.sum() * np.eye(width)
    expected = np.linalg.solve(gram + ridge, right).T
    found = ridge_values(features, responses, weights)
    assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_products_find_the_directions_of_the_matrix(rng, monkeypatch):
    """With many features the moment matrix is never computed."""
    data = drawn(rng, n=500)
    coordinates = pooled_whitening(data, center=True)
    whole = key_directions(data, coordinates)["spectral"]
    monkeypatch.setattr(_starts, "_WIDE", 1)
    found = key_directions(data, coordinates)["spectral"]
    for one in whole:  # eigenvectors have no sign, so sum and difference may swap
        cosines = [abs(one @ other) / 2 for other in found]
        # Both have squared length 2; the eigenvectors are found to 1e-3.
        assert max(cosines) > 1 - 1e-4
