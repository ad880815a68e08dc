"""The loop of all simulations, with kernels in plain Python."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from eigenheads import _run_blocks
from eigenheads._parallel import reporting
from eigenheads._run_blocks import check_run_counts, run_blocks


def summed(state, scale, step_size, offset, first, record_every, records):
    """Add the schedules to a sum; record after the update; -1 at infinity."""
    for i in range(len(step_size)):
        with np.errstate(over="ignore"):
            state += scale[i] * step_size[i] + offset
        if not np.isfinite(state).all():
            return first + i
        if (first + i + 1) % record_every == 0:
            records[(first + i + 1) // record_every] = state
    return -1


def recorded_first(rng, state, scale, step_size, first, record_every, records):
    """Record before the update: the sum, and a number of fresh noise."""
    total, count = state
    for i in range(len(step_size)):
        noise = rng.standard_normal()
        if not np.isfinite(total).all():
            return first + i
        if (first + i) % record_every == 0:
            records[(first + i) // record_every] = total[0], noise
        total += scale[i] * step_size[i]
        count += 1
    return -1


SETTING = {
    "schedules": {"scale": lambda t: t, "step_size": 2.0},
    "n_steps": 7,
    "record_every": 3,
    "nanoseconds": 1.0,
}


@pytest.mark.parametrize("block", [1.0, 2.0, 100.0])
def test_a_kernel_gets_its_schedules_block_by_block(block, monkeypatch):
    monkeypatch.setattr(_run_blocks, "BLOCK_NANOSECONDS", block)
    states = np.array([[0.0], [10.0]])
    paths = run_blocks(
        summed, states, curves=["x"], start=states, constants=(1.0,), **SETTING
    )
    assert_array_equal(paths.steps, [0, 3, 6])
    # Sums of 2 t + 1 over t < n are n².
    assert_array_equal(paths["x"], [[0, 9, 36], [10, 19, 46]])
    assert_array_equal(states, [[49.0], [59.0]])


@pytest.mark.parametrize("block", [1.0, 3.0, 8.0])
def test_a_kernel_that_records_first_gets_one_update_of_step_zero(block, monkeypatch):
    monkeypatch.setattr(_run_blocks, "BLOCK_NANOSECONDS", block)
    states = [(np.zeros(1), np.zeros(1))]
    paths = run_blocks(
        recorded_first,
        states,
        curves=["x", "noise"],
        start=None,
        generators=[np.random.default_rng(0)],
        **SETTING | {"record_every": 7},
    )
    assert_array_equal(paths["x"], [[0.0, 42.0]])  # the sum of 2 t over t < 7
    normals = np.random.default_rng(0).standard_normal(8)
    assert_array_equal(paths["noise"], [normals[[0, 7]]])
    assert_array_equal(states[0][1], 8)


def test_the_update_of_step_zero_is_not_reported():
    reports = []
    with reporting(reports.append):
        run_blocks(
            recorded_first,
            [(np.zeros(1), np.zeros(1))],
            curves=["x", "noise"],
            start=None,
            generators=[np.random.default_rng(0)],
            **SETTING,
        )
    assert sum(reports) == 7


def test_a_run_that_overflows_is_named():
    states = np.array([[0.0], [0.0]])
    schedules = {"scale": 1e10, "step_size": lambda t: 1e300 if t == 4 else 1.0}
    message = (
        r"run_blocks: `step_size` must be .* got 1e\+300 at update 4, where run 0 over"
    )
    with pytest.raises(ValueError, match=message):
        run_blocks(
            summed,
            states,
            curves=["x"],
            start=states,
            constants=(0.0,),
            **SETTING | {"schedules": schedules},
        )


def test_a_run_that_is_lost_gets_the_error_of_its_system():
    def diverged(run, update, step_size):
        raise ArithmeticError(run, update, step_size)

    with pytest.raises(ArithmeticError) as failure:
        run_blocks(
            recorded_first,
            [(np.zeros(1), np.zeros(1)), (np.ones(1), np.zeros(1))],
            curves=["x", "noise"],
            start=None,
            generators=[np.random.default_rng(run) for run in range(2)],
            is_lost=lambda state: state[0][0] > 42.5,
            diverged=diverged,
            **SETTING,
        )
    assert failure.value.args == (1, 6, 2.0)


def test_counts_are_checked_together():
    counts = check_run_counts(10, 3, 5, n_curves=2)
    assert counts == (10, 3, 5)
    with pytest.raises(
        ValueError, match="check_run_counts: `n_runs` must be an integer from 1 to"
    ):
        check_run_counts(10, 10**7, 5, n_curves=2)
    with pytest.raises(
        ValueError, match="check_run_counts: `record_every` must be large enough"
    ):
        check_run_counts(10**9, 10, 1, n_curves=2)
