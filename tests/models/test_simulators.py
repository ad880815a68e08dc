"""Promises that every simulator keeps: records, seeds, schedules, threads, progress."""

import numpy as np
import pytest

from eigenheads import _parallel, _run_blocks
from eigenheads.datasets import (
    GaussianPrompts,
    SignalTokens,
    SingleLocation,
    SpikedWishartPrompts,
    random_covariance,
)
from eigenheads.models import (
    location_start,
    pca_start,
    simulate_location,
    simulate_pca,
    simulate_signal,
)

SMALL = {"n_steps": 45, "n_runs": 4, "record_every": 10, "seed": 5}
COVARIANCE = random_covariance(4, np.random.default_rng(3))


def location(**options):
    defaults = {
        "inverse_temperature": lambda t: 2 / (1 + 0.01 * t),
        "step_size": 1e-2,
        "batch_size": 3,
    }
    return simulate_location(
        SingleLocation(d=8, n_tokens=5), **(SMALL | defaults | options)
    )


def signal(**options):
    law = SignalTokens(d=8, n_informative=3, n_nuisance=5, strength=0.8)
    defaults = {"step_size": lambda t: 0.2 / (1 + 0.1 * t)}
    return simulate_signal(law, **(SMALL | defaults | options))


def averaged_signal(**options):
    return signal(averaging=True, **options)


def pca(law=None, **options):
    defaults = {"inverse_temperature": 0.02, "step_size": 1e-3, "batch_size": 3}
    law = law or GaussianPrompts(COVARIANCE, 6)
    return simulate_pca(law, **(SMALL | defaults | options))


def in_context_pca(**options):
    law = SpikedWishartPrompts(4, 6, degrees_of_freedom=5, prompts_per_covariance=2)
    return pca(law, **options)


def rank_two_pca(**options):
    return pca(rank=2, **options)


# Simulator, curves, and the start that it draws for the seed of SMALL.
SYSTEMS = {
    "location": (
        location,
        ("kappa", "nu", "theta", "eta", "rho"),
        lambda: location_start(8, n_runs=4, seed=5),
    ),
    "signal": (signal, ("alignment",), lambda: signal()["alignment"][:, 0]),
    "averaged signal": (
        averaged_signal,
        ("alignment", "averaged_alignment"),
        lambda: signal()["alignment"][:, 0],
    ),
    "pca": (
        pca,
        ("alignment", "norm", "loss"),
        lambda: pca_start(4, n_runs=4, seed=5),
    ),
    "pca in context": (
        in_context_pca,
        ("alignment", "norm", "loss"),
        lambda: pca_start(4, n_runs=4, seed=5),
    ),
    "pca of rank 2": (
        rank_two_pca,
        ("alignment", "norm", "loss"),
        lambda: pca_start(4, n_runs=4, seed=5, rank=2),
    ),
}
pytestmark = pytest.mark.parametrize("system", SYSTEMS)
METHODS = pytest.mark.parametrize("method", ["exact", "full"])


def as_bytes(paths, runs=slice(None)):
    return [paths[name][runs].tobytes() for name in paths]


@METHODS
def test_records_are_made_at_multiples_of_record_every(system, method):
    simulate, names, _ = SYSTEMS[system]
    paths = simulate(method=method)
    np.testing.assert_array_equal(paths.steps, [0, 10, 20, 30, 40])
    assert tuple(paths) == names
    assert all(paths[name].shape == (4, 5) for name in names)
    fine, coarse = (simulate(method=method, record_every=r) for r in (1, 5))
    for name in names:
        np.testing.assert_array_equal(fine[name][:, ::5], coarse[name])


@METHODS
def test_bytes_depend_on_the_seed_and_the_run_alone(system, method, monkeypatch):
    simulate, _, drawn_start = SYSTEMS[system]
    whole = as_bytes(simulate(method=method))
    for count in (1, 3):
        with _parallel.threads(count):
            assert as_bytes(simulate(method=method)) == whole
    assert as_bytes(simulate(method=method, start=drawn_start())) == whole
    assert as_bytes(simulate(method=method, n_runs=7), slice(4)) == whole
    monkeypatch.setattr(_run_blocks, "BLOCK_NANOSECONDS", 1.0)
    assert as_bytes(simulate(method=method)) == whole
    assert as_bytes(simulate(method=method, seed=6)) != whole


def test_a_schedule_is_called_once_per_update_in_order(system):
    simulate, _, _ = SYSTEMS[system]
    calls = []

    def schedule(index):
        calls.append(index)
        return 1e-3

    paths = simulate(step_size=schedule)
    assert calls == list(range(45))
    assert as_bytes(paths) == as_bytes(simulate(step_size=1e-3))


@METHODS
def test_a_step_of_zero_moves_nothing(system, method):
    simulate, names, _ = SYSTEMS[system]
    paths = simulate(method=method, step_size=0.0)
    for name in set(names) - {"loss"}:  # a loss is that of fresh prompts
        steady = np.broadcast_to(paths[name][:, :1], paths[name].shape)
        np.testing.assert_allclose(paths[name], steady, atol=1e-14)


def test_updates_of_all_runs_are_reported(system):
    simulate, _, _ = SYSTEMS[system]
    reports = []
    with _parallel.reporting(reports.append):
        simulate()
    assert sum(reports) == 45 * 4


@METHODS
def test_an_overflow_names_the_step_the_update_and_the_run(system, method):
    simulate, _, _ = SYSTEMS[system]
    steps = [1e-3] * 7 + [1e300] * 38
    with pytest.raises(
        ValueError,
        match=r"simulate_\w+: `step_size` must be so small that .* got 1e\+300.* run 0",
    ) as failure:
        simulate(method=method, step_size=lambda t: steps[t])
    # A head of PCA that saturates is noticed at the end of a block.
    assert "update 7" in str(failure.value) or "pca" in system


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "exakt"}, "`method` must be one of .* Did you mean 'exact'"),
        ({"step_size": -1.0}, "`step_size` must be a finite number >= 0; got -1.0"),
        ({"step_size": lambda t: None}, "`step_size` must be a schedule .* got None"),
        ({"batch_size": 0}, "`batch_size` must be an integer .*; got 0"),
        ({"n_steps": 0}, "`n_steps` must be an integer from 1 to 10{15}; got 0"),
        ({"n_runs": 0}, "`n_runs` must be an integer from 1 to 1000000; got 0"),
        ({"record_every": 46}, "from 1 to 45; got 46. A run has 45 steps"),
        (
            {"n_steps": 10**12, "record_every": 1},
            "`record_every` must be large enough .* got 1, which makes",
        ),
        ({"seed": -1}, "`seed` must be an integer >= 0; got -1"),
    ],
)
def test_bad_arguments_are_named(system, options, message):
    simulate, _, _ = SYSTEMS[system]
    with pytest.raises(ValueError, match=r"simulate_\w+: .*" + message):
        simulate(**options)
