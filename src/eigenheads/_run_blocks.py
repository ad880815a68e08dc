"""The loop of every simulation and descent: runs in threads, block by block.

A system consists of a check of its arguments, a start, a compiled kernel and one call
of :func:`run_blocks`. The loop evaluates the schedules, advances all runs by a block
of updates, stops at the first run that diverges, and reports progress.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

import numpy as np

from eigenheads._checks import Got, as_float, check_count, check_number, fail, shown
from eigenheads._limits import LARGEST, MAX_RUNS, MAX_STEPS
from eigenheads._parallel import RunPool, advance, blocks
from eigenheads._trajectories import (
    Trajectories,
    check_record_every,
    record_steps,
)
from eigenheads._typing import FloatArray, Schedule


def check_schedule(name: str, schedule: object) -> Schedule:
    """Return `schedule`, or raise unless it is a number >= 0 or a callable.

    The values of a callable are checked when :func:`schedule_values` evaluates it.
    """
    if callable(schedule):
        return schedule
    return check_number(name, schedule, minimum=0.0)


def schedule_values(
    name: str,
    schedule: Schedule,
    start: int,
    stop: int,
    *,
    maximum: float = math.inf,
    minimum: float = 0.0,
) -> FloatArray:
    """Return the values at updates `start` … ``stop - 1``, finite and within bounds.

    Examples
    --------
    >>> schedule_values("step_size", lambda t: 1 / (1 + t), 0, 3)
    array([1.        , 0.5       , 0.33333333])
    >>> schedule_values("step_size", lambda t: "soon", 0, 3)
    Traceback (most recent call last):
    ...
    eigenheads._errors.UsageValueError:
    schedule_values: `step_size` must be a schedule that returns a finite number
    >= 0; got 'soon' at update 0.
    """
    if not callable(schedule):
        if schedule > maximum:
            fail(name, f"<= {maximum:g}", schedule)
        return np.full(stop - start, float(schedule))
    values = np.empty(stop - start)
    for index in range(start, stop):
        value = schedule(index)
        number = value if type(value) is float else as_float(value)
        if not (math.isfinite(number) and number >= minimum):
            got = Got(f"{shown(value)} at update {index}")
            contract = "a schedule that returns a finite number"
            if math.isfinite(minimum):
                contract += f" >= {minimum:g}"
            fail(name, contract, got)
        values[index - start] = number
    over = np.flatnonzero(values > maximum)
    if len(over):
        at = int(over[0])
        got = Got(f"{float(values[at])!r} at update {start + at}")
        fail(name, f"a schedule that returns numbers <= {maximum:g}", got)
    return values


# Duration of a block per run: short enough for a prompt Ctrl-C and progress bar, long
# enough that the overhead of Python per block does not count.
BLOCK_NANOSECONDS = 20e6
_STEP_SIZE = "step_size"


class RunCounts(NamedTuple):
    """Checked numbers of updates and runs, and of updates between two records."""

    n_steps: int
    n_runs: int
    record_every: int


def check_run_counts(
    n_steps: object,
    n_runs: object,
    record_every: object,
    *,
    n_curves: int,
    max_runs: int = MAX_RUNS,
) -> RunCounts:
    """Return the three counts, or raise; the records must fit into memory."""
    steps = check_count("n_steps", n_steps, maximum=MAX_STEPS)
    runs = check_count("n_runs", n_runs, maximum=max_runs)
    every = check_record_every(
        record_every, n_steps=steps, n_runs=runs, n_curves=n_curves
    )
    return RunCounts(steps, runs, every)


def run_blocks(  # noqa: PLR0913 -- one argument per part of a system
    kernel: Callable[..., int],
    states: Sequence[Any] | FloatArray,
    *,
    curves: Sequence[str],
    start: FloatArray | None,
    schedules: Mapping[str, Schedule],
    constants: tuple[Any, ...] = (),
    generators: Sequence[np.random.Generator] | None = None,
    n_steps: int,
    record_every: int,
    nanoseconds: float,
    is_lost: Callable[[Any], bool] | None = None,
    diverged: Callable[[int, int, float], NoReturn] | None = None,
) -> Trajectories:
    """Advance runs by `n_steps` updates each, and return their records.

    Parameters
    ----------
    kernel
        Advances one run by a block of updates, in place::

            kernel([rng,] state, *values, *constants, first, record_every, records)

        `values` are one array per schedule, of the length of the block; `first` is
        the 0-based index of the block's first update. After update t (so that t + 1
        updates are made) the kernel writes row ``(t + 1) // record_every`` of
        `records` (n_records, n_curves) if `record_every` divides t + 1. It returns
        -1, or the index of the update at which the state stopped being finite. It
        must release the interpreter lock for runs to be parallel.
    states
        State of each run: an array, or a tuple of arrays. Overwritten.
    curves
        Names of the recorded quantities.
    start
        Record 0, (n_runs, n_curves). None for a kernel that writes row
        ``t // record_every`` before update t. The loop then makes one more update of
        step size 0, so that the last row is written too.
    schedules
        Numbers, or functions of the index of the update, by name, in the order in
        which the kernel takes them. ``"step_size"`` must be among them.
    constants
        Further arguments of the kernel.
    generators
        Random generator of each run; None for a deterministic kernel.
    n_steps, record_every
        Checked by :func:`check_run_counts`.
    nanoseconds
        Estimated duration of one update; decides how long a block is.
    is_lost
        Whether a state has diverged although it is finite; called after each block.
    diverged
        Raises the error for ``(run, update, step_size)``. The default names all three.

    Returns
    -------
    trajectories
        One curve per name. Neither the number of threads nor the length of a block
        changes a number.
    """
    stop_with_error = diverged or partial(_fail_overflow)
    n_runs, is_late = len(states), start is not None
    steps = record_steps(n_steps, record_every)
    records = np.empty((n_runs, len(steps), len(curves)))
    if start is not None:
        records[:, 0] = start
    broken = [-1] * n_runs
    size = max(1, int(BLOCK_NANOSECONDS / nanoseconds))
    n_updates = n_steps if is_late else n_steps + 1
    with RunPool(n_runs) as pool:
        for first, stop in blocks(n_updates, size=size):
            values = {
                name: _block_values(name, schedule, first, stop, n_steps)
                for name, schedule in schedules.items()
            }
            block = (*values.values(), *constants, first, record_every)

            def work(run: int, block: tuple[Any, ...] = block) -> None:
                rng = () if generators is None else (generators[run],)
                broken[run] = kernel(*rng, states[run], *block, records[run])

            pool.each(work)
            last = min(stop, n_steps)
            for run, state in enumerate(states):
                index = broken[run]
                if index < 0 and is_lost is not None and is_lost(state):
                    index = last
                if index >= 0:
                    # A kernel that records first shows the overflow one update later.
                    update = index if is_late else max(index - 1, 0)
                    value = float(values[_STEP_SIZE][max(update - first, 0)])
                    stop_with_error(run, update, value)
            advance((last - first) * n_runs)
    table = np.ascontiguousarray(np.moveaxis(records, 2, 0))
    return Trajectories(steps, dict(zip(curves, table, strict=True)))


def _block_values(
    name: str, schedule: Schedule, first: int, stop: int, n_steps: int
) -> FloatArray:
    """Return a schedule on a block; the update after the last has step size 0."""
    is_step = name == _STEP_SIZE
    maximum = math.inf if is_step else LARGEST
    last = min(stop, n_steps)
    values = schedule_values(name, schedule, first, last, maximum=maximum)
    if stop == last:
        return values
    beyond = np.zeros(1)
    if not is_step:
        beyond = schedule_values(name, schedule, n_steps - 1, n_steps, maximum=maximum)
    return np.append(values, beyond)


def _fail_overflow(run: int, update: int, step_size: float) -> NoReturn:
    contract = "so small that no update overflows"
    got = Got(f"{step_size!r} at update {update}, where run {run} overflowed")
    fail(_STEP_SIZE, contract, got)
