"""The exact engine, the full simulation and plain NumPy have one law.

Each test makes many comparisons and divides one false-alarm probability among them;
the same comparison rejects engines that were made wrong on purpose.
"""

import copy
import math
from functools import lru_cache

import numpy as np
import pytest
from scipy import special, stats
from tests.models.same_law import FALSE_ALARM, corrected_p_value

from eigenheads.datasets import SingleLocation
from eigenheads.models import (
    _location,
    location_start,
    simulate_location,
)
from eigenheads.models._model import load_module

NAMES = ("kappa", "nu", "theta", "eta", "rho")
GENERIC = [0.4, 0.3, 0.2, -0.3, 0.1]
# Small prompts, large steps: after a few updates nothing is left of the start.
SETTING = {"inverse_temperature": 0.6, "step_size": 0.12, "batch_size": 2}


def simulated(d, *, seed, n_runs=4000, start=GENERIC, **options):
    """Return order parameters after 3 and after 12 updates, (n_runs, 10)."""
    law = SingleLocation(d=d, n_tokens=3, gamma=0.3, noise=0.2)
    paths = simulate_location(
        law,
        n_steps=12,
        record_every=3,
        n_runs=n_runs,
        seed=seed,
        start=start,
        **(SETTING | options),
    )
    return np.hstack([paths[name][:, [1, 4]] for name in NAMES])


@lru_cache
def generic_full(seed, d=6):
    return simulated(d, seed=seed + 1000, method="full")


@pytest.mark.parametrize("d", [5, 6, 20, 80])
def test_exact_and_full_agree_in_law(rng_seed, d):
    exact = simulated(d, seed=rng_seed)
    full = generic_full(rng_seed, d)
    assert exact.std(axis=0).min() > 0.05  # the runs have moved
    assert corrected_p_value(exact, full) > FALSE_ALARM


@pytest.mark.parametrize(
    "start",
    [
        pytest.param([1, 1, 0, 0, 0], id="oracle"),
        pytest.param([-1, -1, 0, 0, 0], id="minus the oracle"),
        pytest.param([0, 0, 1, 1, 0], id="swapped"),
        pytest.param([0.5, 0.3, 0.5, 0.3, 1], id="k = v"),
        pytest.param([0, 0, 0, 0, -1], id="k = -v, orthogonal to both"),
        pytest.param(None, id="sphere"),
    ],
)
def test_exact_and_full_agree_in_law_from_the_corners(rng_seed, start):
    exact = simulated(6, seed=rng_seed, start=start)
    full = simulated(6, seed=rng_seed + 1000, start=start, method="full")
    assert corrected_p_value(exact, full) > FALSE_ALARM


MUTATIONS = {
    "two degrees of freedom too many": [
        ("times_bartlett(rng, d - n_axes", "times_bartlett(rng, 2.0 + d - n_axes")
    ],
    "the deciding token's scale forgotten": [("tokens[row, i] *= scale[i]", "pass")],
    "frame not turned back": [("reframe(state, n_planted)", "pass")],
    "tokens without the planted shift": [("tokens[0, i] += mean[0, i]", "pass")],
    "loss summed over the batch": [("1.0 / batch_size", "1.0")],
    "fields without the residual of v": [(" + s6 * x3", "")],
}


# Every wrong engine is compiled: two on every change, all with `make test-all`.
QUICK = ("two degrees of freedom too many", "frame not turned back")


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in MUTATIONS
    ],
)
def test_comparison_rejects_a_wrong_engine(rng_seed, name, monkeypatch):
    model = _location.location_model(3, 0.3)
    wrong = copy.copy(model)
    start = model.source.index("def exact_block")
    stop = model.source.index("@njit", start)
    source = model.source[start:stop]
    for old, new in MUTATIONS[name]:
        assert source.count(old) == 1
        source = source.replace(old, new)
    head = model.source[:start]
    wrong.__dict__["compiled"] = load_module(head + source)
    monkeypatch.setattr(_location, "location_model", lambda *args: wrong)
    # Over seeds, the p-values of the mutations lie between 1e-200 and 1e-7.
    wrong_runs = simulated(6, seed=rng_seed)
    assert corrected_p_value(wrong_runs, generic_full(rng_seed)) < FALSE_ALARM


def stepped(law, start, rng, n, *, inverse_temperature, step_size, batch_size):
    """One update of n heads in R^d, written with the law and NumPy alone."""
    kappa, nu, theta, eta, rho = start
    k, v = np.zeros(law.d), np.zeros(law.d)
    k[:3] = kappa, eta, math.sqrt(1 - kappa**2 - eta**2)
    v[:3] = theta, nu, (rho - kappa * theta - eta * nu) / k[2]
    v[3] = math.sqrt(1 - v @ v)
    tokens, targets, _ = law.sample(n * batch_size, rng)
    scores, values = inverse_temperature * (tokens @ k), tokens @ v
    attention = special.erf(scores)
    error = 2 * (np.sum(attention * values, axis=1) - targets)
    slope = inverse_temperature * 2 / math.sqrt(math.pi) * np.exp(-(scores**2))
    for_key = np.einsum("n,nl,nld->nd", error, slope * values, tokens)
    for_value = np.einsum("n,nl,nld->nd", error, attention, tokens)
    moved = []
    for vector, gradient in ((k, for_key), (v, for_value)):
        gradient = gradient.reshape(n, batch_size, law.d).mean(axis=1)
        tangent = gradient - np.outer(gradient @ vector, vector)
        after = vector - step_size * tangent
        moved.append(after / np.linalg.norm(after, axis=1, keepdims=True))
    k, v = moved
    rho = np.sum(k * v, axis=1)
    return np.column_stack([k[:, 0], v[:, 1], v[:, 0], k[:, 1], rho])


@pytest.mark.parametrize("method", ["exact", "full"])
@pytest.mark.parametrize("d", [5, 9])
def test_one_update_has_the_mean_and_covariance_of_plain_numpy(rng, d, method):
    law = SingleLocation(d=d, n_tokens=4, gamma=0.5, noise=0.3)
    n = 8000
    direct = stepped(law, GENERIC, rng, n, **SETTING)
    paths = simulate_location(
        law,
        n_steps=1,
        record_every=1,
        n_runs=n,
        seed=17,
        start=GENERIC,
        method=method,
        **SETTING,
    )
    ours = np.column_stack([paths.final(name) for name in NAMES])
    center = np.vstack([ours, direct]).mean(axis=0)
    first, second = np.triu_indices(5)

    def moments(rows):
        rows = rows - center
        return np.hstack([rows, rows[:, first] * rows[:, second]])

    # 5 means and 15 second moments.
    test = stats.ttest_ind(moments(ours), moments(direct), equal_var=False)
    assert test.pvalue.min() * 20 > FALSE_ALARM
    assert corrected_p_value(ours, direct) > FALSE_ALARM


@pytest.mark.parametrize("d", [2, 3, 5, 40])
def test_start_on_the_sphere_is_uniform(rng, d):
    n = 4000
    k, v = rng.standard_normal((2, n, d))
    k /= np.linalg.norm(k, axis=1, keepdims=True)
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    rho = np.sum(k * v, axis=1)
    direct = np.column_stack([k[:, 0], v[:, 1], v[:, 0], k[:, 1], rho])
    ours = location_start(d, n_runs=n, seed=3)
    # Triple products see the joint law, too.
    direct = np.column_stack([direct, direct[:, 4] * direct[:, 0] * direct[:, 2]])
    ours = np.column_stack([ours, ours[:, 4] * ours[:, 0] * ours[:, 2]])
    assert corrected_p_value(ours, direct) > FALSE_ALARM


@pytest.mark.parametrize("d", [4, 30])
def test_start_on_the_manifold_is_uniform_given_the_manifold(rng, d):
    n = 4000
    k, v = rng.standard_normal((2, n, d))
    k[:, 1] = 0.0
    k /= np.linalg.norm(k, axis=1, keepdims=True)
    # Off k* and k: first off k*, then off the part of k that is left.
    v[:, 0] = 0.0
    part = k.copy()
    part[:, 0] = 0.0
    part /= np.linalg.norm(part, axis=1, keepdims=True)
    v -= np.sum(v * part, axis=1, keepdims=True) * part
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    ours = location_start(d, n_runs=n, seed=3, on_manifold=True)
    np.testing.assert_array_equal(ours[:, 2:], 0.0)
    pairs = np.column_stack([k[:, 0], v[:, 1]])
    assert corrected_p_value(ours[:, :2], pairs) > FALSE_ALARM
