"""The starts are the moments that single-location regression has."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenheads.datasets import SingleLocation
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location_coordinates import pooled_coordinates
from eigenheads.estimators._location_start import key_directions, ridge

LAW = SingleLocation(d=40, n_tokens=6)


def drawn(rng, *, decoy=1.0, n=5000):
    tokens, y, _ = LAW.sample(n, rng)
    tokens[..., 2] *= decoy
    bags = Bags(tokens.reshape(-1, LAW.d), LAW.n_tokens * np.arange(n + 1))
    return bags, (y - y.mean())[:, None]


def overlap(direction, coordinates):
    """Cosine of a whitened key, mapped to the tokens, with the planted one."""
    raw = coordinates.raw(direction)
    return abs(raw @ LAW.key_direction) / np.linalg.norm(raw)


# Noise of an overlap: sqrt(d L / n) = 0.2 times the spread of a term over the signal
# sqrt(d / 2) / 2 = 2.2, so cosines are near 0.99; 0.8 is many deviations away.
@pytest.mark.parametrize("decoy", [1.0, 9.0])
@pytest.mark.parametrize("name", ["moments", "spectral"])
def test_moments_find_the_key_with_and_without_a_decoy(rng, decoy, name):
    bags, responses = drawn(rng, decoy=decoy)
    weights = np.ones(len(bags))
    coordinates = pooled_coordinates(bags, weights, center=True)
    found = key_directions(bags, responses, weights, coordinates)[name]
    assert max(overlap(direction, coordinates) for direction in found) > 0.8


def test_the_principal_direction_is_the_key_only_without_a_decoy(rng):
    overlaps = []
    for decoy in (1.0, 9.0):
        bags, _ = drawn(rng, decoy=decoy)
        weights = np.ones(len(bags))
        # In standardised features the decoy is gone; turn the frame to keep it.
        turn, _ = np.linalg.qr(rng.standard_normal((LAW.d, LAW.d)))
        turned = Bags(bags.tokens @ turn, bags.offsets)
        coordinates = pooled_coordinates(turned, weights, center=True)
        principal = coordinates.principal / coordinates.scale
        key = LAW.key_direction @ turn
        overlaps.append(abs(principal @ key) / np.linalg.norm(principal))
    assert overlaps[0] > 0.8
    assert overlaps[1] < 0.5


def test_moment_matrix_is_the_product_of_key_and_value(rng):
    """E[y sum x x^T] = sqrt(d/2) gamma^2 (k v^T + v k^T)."""
    n = 200_000
    law = SingleLocation(d=3, n_tokens=2)
    tokens, y, _ = law.sample(n, rng)
    matrix = np.einsum("n,nli,nlj->ij", y, tokens, tokens) / n
    key, value = law.key_direction, law.value_direction
    expected = np.sqrt(1.5) * 0.5 * (np.outer(key, value) + np.outer(value, key))
    # Entries of variance below 4 a bag: six deviations at n bags.
    assert_allclose(matrix, expected, atol=6 * 2 / np.sqrt(n))


def test_ridge_counts_weights_as_repetitions(rng):
    features, responses = rng.standard_normal((20, 3)), rng.standard_normal((20, 2))
    counts = rng.integers(1, 4, size=20)
    repeated = ridge(
        np.repeat(features, counts, axis=0),
        np.repeat(responses, counts, axis=0),
        np.ones(counts.sum()),
    )
    weighted = ridge(features, responses, counts.astype(float))
    assert_allclose(weighted, repeated, rtol=1e-12)
