r"""A head is a weighted mean: unbounded influence, and what bounds it.

Statements (docs/theory/robust_heads.md, Propositions 1 to 3):

1. The output z = Σ_j a_j v_j has ∂z/∂v_j = a_j I: one value moves it anywhere.
2. Reweighting steps (Huber) that start at the weighted mean stay unbounded in the
   outlier, whatever their number; started at a median they are bounded.
3. The geometric median of values of which the mass 1 − A > 1/2 lies within R of c is
   within R (1 − A) / √(1 − 2A) of c.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose


def attention(scores, values):
    weights = np.exp(scores - scores.max())
    return weights / weights.sum(), weights @ values / weights.sum()


def huber_steps(weights, values, start, n_steps, width=1.0):
    """Return the weighted mean after reweighting by min(1, width / distance)."""
    z = start
    for _ in range(n_steps):
        distance = np.linalg.norm(values - z, axis=-1)
        own = weights * np.minimum(1.0, width / np.maximum(distance, 1e-12))
        z = own @ values / own.sum()
    return z


def geometric_median(weights, values, n_steps=500):
    z = np.median(values, axis=0)
    for _ in range(n_steps):
        own = weights / (np.linalg.norm(values - z, axis=-1) + 1e-9)
        z = own @ values / own.sum()
    return z


@pytest.mark.parametrize("size", [1.0, 1e6])
def test_one_value_moves_the_output_by_its_weight(rng, size):
    scores, values = rng.standard_normal(9), rng.standard_normal((9, 4))
    weights, before = attention(scores, values)
    step = rng.standard_normal(4) * size
    moved = values.copy()
    moved[3] += step
    assert_allclose(
        attention(scores, moved)[1] - before, weights[3] * step, rtol=1e-9, atol=1e-12
    )


def outlying(rng, far, mass=0.3, n=40, d=16):
    good = rng.standard_normal((n, d))
    bad = np.full((1, d), far / d**0.5)
    weights = np.append(np.full(n, (1 - mass) / n), mass)
    return weights, np.concatenate([good, bad])


@pytest.mark.parametrize("n_steps", [1, 2, 4])
def test_steps_from_the_mean_grow_with_the_outlier(rng, n_steps):
    found = []
    for far in (4e3, 4e6):
        weights, values = outlying(np.random.default_rng(0), far)
        z = huber_steps(weights, values, weights @ values, n_steps)
        found.append(np.linalg.norm(z))
    # Proportional to the outlier: a thousand times as far, a thousand times as wrong.
    assert found[0] > 10
    assert found[1] / found[0] == pytest.approx(1000, rel=0.1)


def test_steps_from_a_median_do_not(rng):
    found = []
    for far in (4e3, 4e6):
        weights, values = outlying(np.random.default_rng(0), far)
        z = huber_steps(weights, values, np.median(values, axis=0), 4)
        found.append(np.linalg.norm(z))
    assert found[1] == pytest.approx(found[0], rel=1e-2)
    assert found[1] < 5


def test_the_geometric_median_is_within_its_bound(rng):
    largest = 0.0
    for _ in range(40):
        mass = rng.uniform(0.05, 0.45)
        good = rng.standard_normal((40, 5))
        good *= rng.random((40, 1)) / np.linalg.norm(good, axis=-1, keepdims=True)
        bad = rng.standard_normal((1, 5))
        bad *= 10 ** rng.uniform(0, 3) / np.linalg.norm(bad)
        weights = np.append(np.full(40, (1 - mass) / 40), mass)
        z = geometric_median(weights, np.concatenate([good, bad]))
        bound = (1 - mass) / np.sqrt(1 - 2 * mass)
        largest = max(largest, np.linalg.norm(z) / bound)
    assert 0.1 < largest <= 1.0


def test_with_half_of_the_mass_the_median_breaks(rng):
    weights, values = outlying(rng, 4e6, mass=0.51)
    assert np.linalg.norm(geometric_median(weights, values)) > 1e3
