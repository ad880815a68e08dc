"""The pursuit converges, and its stopping rule means what the theory page says."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenheads.estimators import RobustPCA
from eigenheads.estimators._robust_pca_pursuit import (
    CentredNuclearNorm,
    SparseSplitting,
)
from eigenheads.functional import attention_pursuit, soft_threshold


def noisy(rng, n=50, d=20):
    """Low rank, gross errors and dense noise: the minimum is no planted answer."""
    x = rng.standard_normal((n, 2)) @ rng.standard_normal((2, d))
    x += 0.1 * rng.standard_normal((n, d))
    x[rng.random((n, d)) < 0.1] += 10.0
    return x - np.median(x, axis=0)


def fixed(x, observed=None):
    observed = np.ones(x.shape, dtype=bool) if observed is None else observed
    return SparseSplitting(
        x,
        observed,
        prox=CentredNuclearNorm(),
        sparsity=1 / np.sqrt(max(x.shape)),
        by_row=False,
        is_balanced=False,
    )


def objective(x, low_rank, sparsity):
    centred = low_rank - low_rank.mean(axis=0)
    return np.linalg.norm(centred, "nuc") + sparsity * np.abs(x - low_rank).sum()


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_with_a_fixed_penalty_residual_and_distance_never_grow(rng, missing):
    x = noisy(rng)
    observed = rng.random(x.shape) >= missing
    x = np.where(observed, x, 0.0)
    one, other = fixed(x, observed), fixed(x, observed)
    other.driver = 10 * rng.standard_normal(x.shape)
    other.sparse = soft_threshold(other.driver, other.weights / other.penalty)
    moves, distances = [], []
    for _ in range(300):
        distances.append(np.linalg.norm(one.driver - other.driver))
        one.step()
        other.step()
        moves.append(np.linalg.norm(one.move))
    assert (np.diff(moves) <= 1e-10 * moves[0]).all()
    assert (np.diff(distances) <= 1e-10 * distances[0]).all()
    assert moves[-1] < 1e-2 * moves[0]


def test_the_residual_falls_at_least_as_fast_as_the_theorem_says(rng):
    x = noisy(rng)
    running = fixed(x)
    moves = []
    for _ in range(600):
        running.step()
        moves.append(np.linalg.norm(running.move))
    # The run begins at 0 and is near its limit: |v_0 - v*| is |v|.
    squares, k = np.square(moves[:200]), np.arange(1, 201)
    assert (k * squares <= 1.01 * np.linalg.norm(running.driver) ** 2).all()


def test_the_free_mean_is_a_proximal_map(rng):
    x = rng.standard_normal((15, 6)) + 3.0
    penalty = np.full((1, 1), 0.4)
    found = CentredNuclearNorm()(x, penalty)
    subgradient = penalty * (x - found)
    centred = found - found.mean(axis=0)
    assert np.linalg.norm(centred, "nuc") > 0.1
    assert_allclose(subgradient.sum(axis=0), 0.0, atol=1e-12)
    assert np.linalg.norm(subgradient, 2) <= 1 + 1e-12
    nuclear = np.linalg.norm(centred, "nuc")
    assert_allclose(np.sum(subgradient * found), nuclear, rtol=1e-10)


def test_the_lower_bound_closes_with_the_tolerance(rng):
    x = noisy(rng)
    gaps = []
    for tol in (1e-2, 1e-4, 1e-6):
        model = RobustPCA(tol=tol, max_iter=5000).fit(x)
        assert model.residual_[-1] <= tol
        assert len(model.objective_) == len(model.residual_) == model.n_iter_
        value = objective(x, model.low_rank_, model.sparsity_)
        assert_allclose(model.objective_[-1], value, rtol=1e-9)
        gaps.append(model.duality_gap_)
    assert gaps[0] > gaps[1] > gaps[2] >= 0
    assert gaps[2] < 1e-4


def growing_penalty(x, sparsity, tol=1e-7):
    """The inexact augmented Lagrangian with mu *= 1.5 (Lin, Chen, Ma), free mean."""
    mu, prox = 1.25 / np.linalg.norm(x, 2), CentredNuclearNorm()
    y = x / max(np.linalg.norm(x, 2), np.abs(x).max() / sparsity)
    s, left = np.zeros_like(x), x
    while np.linalg.norm(left) > tol * np.linalg.norm(x):
        low_rank = prox(x - s + y / mu, np.full((1, 1), mu))
        rest = x - low_rank + y / mu
        s = np.sign(rest) * np.maximum(np.abs(rest) - sparsity / mu, 0)
        left = x - low_rank - s
        y, mu = y + mu * left, 1.5 * mu
    return low_rank


def test_a_growing_penalty_stops_at_points_that_are_no_minimum(rng):
    # Its residual falls because the penalty grows, whatever the objective does.
    x = noisy(rng, n=300, d=20)
    model = RobustPCA(tol=1e-7, max_iter=5000).fit(x)
    assert model.duality_gap_ < 1e-5
    stopped = growing_penalty(x, model.sparsity_)
    # Far more above our objective than that can be above the minimum.
    excess = objective(x, stopped, model.sparsity_) / model.objective_[-1] - 1
    assert excess > 5 * model.duality_gap_


def test_the_attention_step_is_no_proximal_map(rng):
    """Proximal maps bring points together; one attention drives two keys apart."""
    keys = 2 * rng.standard_normal((2, 20, 8))
    keys[1] = keys[0] + 0.01 * rng.standard_normal((20, 8))
    # Without flags the first step is softmax(K K^T / sqrt(D)) V.
    values = np.broadcast_to(5 * rng.standard_normal((20, 8)), keys.shape)
    steps = attention_pursuit(keys, values, n_iter=1, sparsity=1e6).output
    apart = np.linalg.norm(steps[0] - steps[1]) / np.linalg.norm(keys[0] - keys[1])
    assert apart > 1.5
    penalty = np.full((1, 1), 0.5)
    low = [CentredNuclearNorm()(k, penalty) for k in keys]
    assert np.linalg.norm(low[0] - low[1]) <= np.linalg.norm(keys[0] - keys[1])
