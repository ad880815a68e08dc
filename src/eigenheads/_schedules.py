"""Schedules: step sizes and inverse temperatures that change during a run."""

import math

import numpy as np

from eigenheads._checks import Got, as_float, check_number, fail, shown
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
