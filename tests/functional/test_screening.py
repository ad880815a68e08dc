"""Distances of tokens from their prediction: against explicit regressions."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenheads.functional._screening import (
    conditional_means,
    flag_tokens,
    token_distances,
)


def gaussian(rng, n_tokens=6, r=2):
    """A covariance, its precision, and draws."""
    size = n_tokens * r
    root = rng.standard_normal((size, size)) / size**0.5 + 0.5 * np.eye(size)
    covariance = root @ root.T
    draws = (rng.standard_normal((400, size)) @ root.T).reshape(-1, n_tokens, r)
    return covariance, np.linalg.inv(covariance), draws


def test_a_distance_is_that_of_the_regression_on_all_others(rng, as_array):
    covariance, precision, draws = gaussian(rng)
    found = token_distances(as_array(draws), as_array(precision))
    for token in range(6):
        own = slice(2 * token, 2 * token + 2)
        rest = np.setdiff1d(np.arange(12), np.arange(12)[own])
        flat = draws.reshape(len(draws), -1)
        slope = np.linalg.solve(covariance[np.ix_(rest, rest)], covariance[rest, own])
        error = flat[:, own] - flat[:, rest] @ slope
        left = covariance[own, own] - covariance[own, rest] @ slope
        squares = np.einsum("ni,ij,nj->n", error, np.linalg.inv(left), error)
        assert_allclose(np.asarray(found)[:, token], np.sqrt(squares), rtol=1e-8)


def test_squares_are_chi_squared(rng):
    _, precision, draws = gaussian(rng)
    squares = token_distances(draws, precision) ** 2
    assert abs(squares.mean() - 2) < 0.15  # two numbers per token


def test_hidden_tokens_are_imputed_and_do_not_disturb_the_others(rng, as_array):
    covariance, precision, draws = gaussian(rng)
    hidden = rng.random(draws.shape[:2]) < 0.3
    spoiled = np.where(hidden[..., None], 1e3, draws)
    imputed = np.asarray(
        conditional_means(as_array(spoiled), as_array(precision), as_array(hidden))
    )
    for row in range(20):
        gone = np.repeat(hidden[row], 2)
        flat = draws[row].ravel()
        if gone.all() or not gone.any():
            continue
        slope = np.linalg.solve(
            covariance[np.ix_(~gone, ~gone)], covariance[np.ix_(~gone, gone)]
        )
        assert_allclose(imputed[row].ravel()[gone], flat[~gone] @ slope, atol=1e-6)
    clean = token_distances(
        as_array(draws), as_array(precision), hidden=as_array(hidden)
    )
    dirty = token_distances(
        as_array(spoiled), as_array(precision), hidden=as_array(hidden)
    )
    keep = ~hidden
    assert_allclose(np.asarray(dirty)[keep], np.asarray(clean)[keep], atol=1e-5)


def test_odd_tokens_are_flagged_and_dense_noise_flags_nothing(rng, as_array):
    common = rng.standard_normal((200, 1, 2))
    draws = common + 0.2 * rng.standard_normal((200, 10, 2))
    flat = draws.reshape(200, -1)
    precision = np.linalg.inv(flat.T @ flat / 200 + 0.01 * np.eye(20))
    limits = np.quantile(token_distances(draws, precision), 0.98, axis=0)
    odd = draws.copy()
    odd[:, [2, 7]] = rng.permutation(draws)[:, [2, 7]] + 2
    found = np.asarray(
        flag_tokens(as_array(odd), as_array(precision), as_array(limits))
    )
    assert found[:, [2, 7]].mean() > 0.9
    assert np.delete(found, [2, 7], axis=1).mean() < 0.1
    noisy = draws + 3 * rng.standard_normal(draws.shape)
    found = flag_tokens(as_array(noisy), as_array(precision), as_array(limits))
    assert np.asarray(found).mean() < 0.05


def test_a_precision_of_another_size_is_refused(rng):
    with pytest.raises(ValueError, match=r"`precision` must be of shape \(12, 12\)"):
        token_distances(np.zeros((6, 2)), np.eye(10))
