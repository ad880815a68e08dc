"""What the nulls draw has the law and the invariants that it should."""

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from eigenheads._rng import stream
from eigenheads.probes._nulls import (
    centred_frames,
    frames,
    helmert,
    permutations,
    rotated,
)


def test_permutations_start_with_the_identity_and_are_permutations():
    orders = permutations(stream(0), 50, 7)
    assert_array_equal(orders[0], np.arange(7))
    assert_array_equal(np.sort(orders, axis=1), np.tile(np.arange(7), (51, 1)))


def test_helmert_is_an_orthonormal_basis_of_mean_zero():
    basis = helmert(6)
    assert_allclose(basis.T @ basis, np.eye(5), atol=1e-14)
    assert_allclose(basis.sum(0), 0, atol=1e-14)


def test_frames_are_uniform():
    """Entries have mean 0 and variance 1/n; 20 000 frames, 6 standard errors.

    With Householder's signs the mean of the first entry would be -0.4.
    """
    drawn = frames(stream(1), 20_000, 4, 2)
    assert_allclose(np.swapaxes(drawn, 1, 2) @ drawn, [np.eye(2)] * 20_000, atol=1e-12)
    assert np.abs(drawn.mean(0)).max() < 6 * 0.5 / np.sqrt(20_000)
    assert np.abs((drawn**2).mean(0) - 0.25).max() < 6 * 0.25 / np.sqrt(20_000)


def test_rotated_clouds_keep_mean_and_covariance(rng):
    for n, d in ((9, 4), (4, 9), (5, 4)):
        cloud = rng.standard_normal((n, d)) @ rng.standard_normal((d, d)) + 3
        drawn = rotated(cloud, centred_frames(stream(2), 5, n, min(n - 1, d)))
        assert_allclose(drawn.mean(1), [cloud.mean(0)] * 5, atol=1e-12)
        for one in drawn:
            assert_allclose(np.cov(one.T), np.cov(cloud.T), atol=1e-11)
            assert np.abs(one - cloud).max() > 0.1


def test_streams_differ_by_place_and_by_nothing_else():
    assert stream(0, 1, 2).random() == stream(0, 1, 2).random()
    places = {stream(0, *p).random() for p in [(), (0,), (1,), (0, 1), (1, 0)]}
    assert len(places) == 5
