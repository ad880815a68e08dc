"""The pursuit converges, and its stopping rule means what the theory page says."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenheads.estimators import RobustPCA
from eigenheads.estimators._robust_pca_pursuit import CentredNuclearNorm
from eigenheads.estimators._robust_pca_splitting import (
    RELAXATION,
    ErrorPenalty,
    SparseSplitting,
)
from eigenheads.functional import attention_pursuit, singular_value_threshold


def noisy(rng, n=50, d=20):
    """Low rank, gross errors and dense noise: the minimum is no planted answer."""
    x = rng.standard_normal((n, 2)) @ rng.standard_normal((2, d))
    x += 0.1 * rng.standard_normal((n, d))
    x[rng.random((n, d)) < 0.1] += 10.0
    return x - np.median(x, axis=0)


def fixed(x, observed=None, noise=0.0, of_rows=False):
    observed = np.ones(x.shape, dtype=bool) if observed is None else observed
    return SparseSplitting(
        x,
        observed,
        prox=CentredNuclearNorm(),
        errors=ErrorPenalty(1 / np.sqrt(max(x.shape)), noise, of_rows),
        by_row=False,
        is_balanced=False,
    )


def low_rank(x, penalty):
    factors = CentredNuclearNorm()(x, penalty)
    return factors.left @ factors.right


def objective(x, found, sparsity):
    centred = found - found.mean(axis=0)
    return np.linalg.norm(centred, "nuc") + sparsity * np.abs(x - found).sum()


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize(
    ("noise", "of_rows"), [(0.0, False), (2.0, False), (0.5, True)]
)
def test_with_a_fixed_penalty_residual_and_distance_never_grow(
    rng, missing, noise, of_rows
):
    x = noisy(rng)
    observed = rng.random(x.shape) >= missing
    x = np.where(observed, x, 0.0)
    one, other = (fixed(x, observed, noise, of_rows) for _ in range(2))
    other.driver = 10 * rng.standard_normal(x.shape)
    moves, distances = [], []
    for _ in range(300):
        distances.append(np.linalg.norm(one.driver - other.driver))
        one.step()
        other.step()
        moves.append(float(one.move[0, 0]))
    assert (np.diff(moves) <= 1e-10 * moves[0]).all()
    assert (np.diff(distances) <= 1e-10 * distances[0]).all()
    assert moves[-1] < 1e-2 * moves[0]


def test_the_residual_falls_at_least_as_fast_as_the_theorem_says(rng):
    x = noisy(rng)
    running = fixed(x)
    moves = []
    for _ in range(600):
        running.step()
        moves.append(float(running.move[0, 0]))
    # The run begins at 0 and is near its limit: |v_0 - v*| is |v|.
    squares, k = np.square(moves[:200]), np.arange(1, 201)
    bound = np.linalg.norm(running.driver) ** 2 / (RELAXATION * (2 - RELAXATION))
    assert (k * squares <= 1.01 * bound).all()


def test_the_free_mean_is_a_proximal_map(rng):
    x = rng.standard_normal((15, 6)) + 3.0
    penalty = np.full((1, 1), 0.4)
    found = low_rank(x, penalty)
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
        model = RobustPCA(sparsity=1.0, tol=tol, max_iter=5000).fit(x)
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
        factors = prox(x - s + y / mu, np.full((1, 1), mu))
        found = factors.left @ factors.right
        rest = x - found + y / mu
        s = np.sign(rest) * np.maximum(np.abs(rest) - sparsity / mu, 0)
        left = x - found - s
        y, mu = y + mu * left, 1.5 * mu
    return found


def test_a_growing_penalty_stops_at_points_that_are_no_minimum(rng):
    # Its residual falls because the penalty grows, whatever the objective does.
    x = noisy(rng, n=300, d=20)
    model = RobustPCA(sparsity=1.0, tol=1e-7, max_iter=5000).fit(x)
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
    low = [low_rank(k, penalty) for k in keys]
    assert np.linalg.norm(low[0] - low[1]) <= np.linalg.norm(keys[0] - keys[1])


def test_without_errors_the_stable_pursuit_is_the_proximal_map(rng):
    # Errors that cost more than any entry leave min |L|_* + |X - L|^2 / (2 nu).
    x = noisy(rng, n=30, d=12)
    running = fixed(x, noise=0.5)
    running.errors = ErrorPenalty(1e6, 0.5)
    for _ in range(400):
        running.step()
    wanted = low_rank(x, np.full((1, 1), 2.0))
    assert_allclose(running.low_rank.block(slice(None)), wanted, atol=1e-8)


@pytest.mark.parametrize("shape", [(300, 150), (150, 300), (200, 20), (20, 200)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_warm_low_rank_step_equals_the_one_from_the_start(rng, shape, dtype):
    n, d = shape
    x = 10 * rng.standard_normal((n, 4)) @ rng.standard_normal((4, d)) + 3.0
    warm = CentredNuclearNorm()
    for _ in range(6):
        x = x + 0.1 * rng.standard_normal(shape)
        found = warm(x.astype(dtype), np.full((1, 1), 1 / 20))
    mean = x.mean(axis=0)
    expected = singular_value_threshold(x - mean, 20.0)
    sizes = np.linalg.svd(expected, compute_uv=False)[:4]
    # A mean near zero has the rounding of the numbers that it is made of.
    assert_allclose(warm.mean, mean, atol=1e-5 * np.abs(mean).max())
    assert_allclose(warm.singular_values, sizes, rtol=1e-4)
    scale = np.abs(expected).max()
    assert_allclose(warm.left @ warm.right, expected, atol=1e-4 * scale)
    assert_allclose(found.block(slice(None)) - mean, expected, atol=1e-4 * scale)
    assert_allclose(warm.right @ warm.right.T, np.eye(4), atol=1e-5)
    lengths = np.linalg.norm(warm.left, axis=0)
    assert_allclose(lengths, warm.singular_values, rtol=1e-5)


def test_the_block_of_the_low_rank_step_grows_with_the_rank(rng):
    warm, penalty = CentredNuclearNorm(), np.full((1, 1), 1.0)
    for rank in (2, 30, 0):
        x = rng.standard_normal((400, rank)) @ rng.standard_normal((rank, 300))
        warm(x, penalty)
        assert len(warm.singular_values) == rank
