"""The exact engine, the full simulation and plain NumPy have one law.

Each test makes many comparisons and divides one false-alarm probability among them;
the same comparison rejects engines that were made wrong on purpose.
"""

import copy
from functools import lru_cache

import numpy as np
import pytest
from scipy import stats
from tests.models.same_law import FALSE_ALARM, corrected_p_value

from eigenheads.datasets import SignalTokens
from eigenheads.functional import signal_output_gradient
from eigenheads.models import _signal, simulate_signal
from eigenheads.models._model import load_module

NAMES = ("alignment", "averaged_alignment")


def law(d, **changes):
    fields = {
        "n_informative": 2,
        "n_nuisance": 4,
        "strength": 0.9,
        "inverse_temperature": 0.9,
    }
    return SignalTokens(d=d, **(fields | changes))


def simulated(d, *, seed, n_runs=4000, start=0.4, batch_size=1, method="exact", **law_):
    """Return both alignments after 2 and after 8 updates, (n_runs, 4)."""
    # Large steps: after a few updates nothing is left of the start.
    paths = simulate_signal(
        law(d, **law_),
        step_size=1.2 / d,
        n_steps=8,
        record_every=2,
        n_runs=n_runs,
        seed=seed,
        start=start,
        averaging=True,
        batch_size=batch_size,
        method=method,
    )
    return np.hstack([paths[name][:, [1, 4]] for name in NAMES])


@lru_cache
def generic_full(seed, d=5, batch_size=1):
    return simulated(d, seed=seed + 1000, batch_size=batch_size, method="full")


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("d", [3, 4, 5, 40])
def test_exact_and_full_agree_in_law(rng_seed, d, batch_size):
    exact = simulated(d, seed=rng_seed, batch_size=batch_size)
    full = generic_full(rng_seed, d, batch_size)
    assert exact.std(axis=0).min() > 0.03  # the runs have moved
    assert corrected_p_value(exact, full) > FALSE_ALARM


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"start": 1.0}, id="at u"),
        pytest.param({"start": -1.0}, id="at minus u"),
        pytest.param({"start": 0.0}, id="orthogonal"),
        pytest.param({"start": None}, id="sphere"),
        pytest.param({"signs": "fixed"}, id="fixed signs"),
        pytest.param({"n_informative": 0}, id="no signal"),
        pytest.param({"n_nuisance": 0}, id="no nuisance"),
    ],
)
def test_exact_and_full_agree_in_law_in_the_corners(rng_seed, changes):
    exact = simulated(5, seed=rng_seed, **changes)
    full = simulated(5, seed=rng_seed + 1000, method="full", **changes)
    assert corrected_p_value(exact, full) > FALSE_ALARM


MUTATIONS = {
    "two degrees of freedom too many": [
        ("(rng, d - n_axes - 1, factor)", "(rng, d - n_axes + 1.0, factor)"),
        ("d - n_axes - n_extra - 1,", "d - n_axes - n_extra + 1.0,"),
        ("(rng, d - n_axes, n_extra,", "(rng, d - n_axes + 2.0, n_extra,"),
    ],
    "tokens without the signal": [("tokens[0, i] += mean[0, i]", "pass")],
    "output without its new axis": [
        ("coordinates[0, 2] = t2", "coordinates[0, 2] = t2 = 0.0")
    ],
    "frame not turned back": [("reframe(state, n_planted)", "pass")],
    "ascent instead of descent on minus the energy": [
        ("share = 1.0 / batch_size", "share = -1.0 / batch_size")
    ],
    "doubled inverse temperature": [("q0 = parameters[0]", "q0 = 2.0 * parameters[0]")],
    "what is outside the frame forgotten": [
        ("write_columns(outside, n_axes, gradient)", "pass")
    ],
}


# Every wrong engine is compiled: three on every change, all with `make test-all`.
QUICK = (
    "two degrees of freedom too many",
    "frame not turned back",
    "doubled inverse temperature",
)


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in MUTATIONS
    ],
)
def test_comparison_rejects_a_wrong_engine(rng_seed, name, monkeypatch):
    setting = law(5)
    model = _signal.signal_model(2, 4, setting.amplitude, True)
    start = model.source.index("def exact_block")
    stop = model.source.index("@njit", start)
    source = model.source[start:stop]
    for old, new in MUTATIONS[name]:
        assert source.count(old) == 1
        source = source.replace(old, new)
    wrong = copy.copy(model)
    wrong.__dict__["compiled"] = load_module(model.source[:start] + source)
    monkeypatch.setattr(_signal, "signal_model", lambda *args: wrong)
    wrong_runs = simulated(5, seed=rng_seed)
    assert corrected_p_value(wrong_runs, generic_full(rng_seed)) < FALSE_ALARM


def stepped(which, start, rng, n, *, step_size, batch_size):
    """One update of n queries in R^d, written with the law and the functional."""
    q = np.zeros(which.d)
    q[:2] = start, np.sqrt(1 - start**2)
    tokens = which.sample(n * batch_size, rng).tokens
    gradient = signal_output_gradient(
        tokens, q, inverse_temperature=which.inverse_temperature
    )
    gradient = gradient.reshape(n, batch_size, which.d).mean(axis=1)
    moved = q + step_size * (gradient - np.outer(gradient @ q, q))
    return moved[:, :1] / np.linalg.norm(moved, axis=1, keepdims=True)


@pytest.mark.parametrize("method", ["exact", "full"])
@pytest.mark.parametrize("signs", ["random", "fixed"])
@pytest.mark.parametrize("d", [3, 9])
def test_one_update_is_that_of_plain_numpy(rng, d, signs, method):
    n, setting = 8000, {"step_size": 0.3, "batch_size": 2}
    direct = stepped(law(d, signs=signs), 0.4, rng, n, **setting)
    paths = simulate_signal(
        law(d, signs=signs),
        n_steps=1,
        record_every=1,
        n_runs=n,
        seed=17,
        start=0.4,
        method=method,
        **setting,
    )
    ours = paths["alignment"][:, 1:]
    assert corrected_p_value(ours, direct) > FALSE_ALARM


@pytest.mark.parametrize("d", [3, 40])
def test_start_on_the_sphere_is_uniform(d):
    paths = simulate_signal(
        law(d), step_size=0.0, n_steps=1, record_every=1, n_runs=4000, seed=3
    )
    squares = paths["alignment"][:, 0] ** 2
    uniform = stats.beta(0.5, (d - 1) / 2)
    assert stats.kstest(squares, uniform.cdf).pvalue > FALSE_ALARM
