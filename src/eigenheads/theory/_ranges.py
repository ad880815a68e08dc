"""Argument checks that the modules of this package share: numbers within bounds."""

from __future__ import annotations

import numpy as np

from eigenheads._checks import Got, check_finite_array, check_number, fail
from eigenheads._limits import LARGEST
from eigenheads._typing import FloatArray

# Inner products of unit vectors, computed in float64, may exceed 1 by rounding.
ROUNDING = 1e-9


def check_inner_product(name: str, value: object) -> FloatArray:
    """Return inner products of unit vectors, or raise."""
    array = check_finite_array(name, value)
    good = np.abs(array) <= 1 + ROUNDING
    _refuse(name, array, good, "from -1 to 1")
    return array


def check_range(name: str, value: object, minimum: float, maximum: float) -> FloatArray:
    """Return `value` as an array of numbers between two bounds, or raise."""
    array = check_finite_array(name, value)
    inside = (minimum <= array) & (array <= maximum)
    _refuse(name, array, inside, f"from {minimum:g} to {maximum:g}")
    return array


def check_integers(name: str, value: object, *, minimum: int) -> FloatArray:
    """Return `value` as an array of integers, or raise."""
    array = check_range(name, value, minimum, LARGEST)
    _refuse(name, array, array == np.floor(array), "an integer")
    return array


def check_broadcast(arrays: dict[str, FloatArray]) -> tuple[int, ...]:
    """Return the common shape, or raise and show the shapes that do not fit."""
    try:
        return np.broadcast_shapes(*(array.shape for array in arrays.values()))
    except ValueError:
        shapes = {name: array.shape for name, array in arrays.items() if array.ndim}
        names = list(shapes)
        got = Got(", ".join(f"{name} {shape}" for name, shape in shapes.items()))
        contract = "of a shape that broadcasts with the other arguments"
        fail(names[-1], contract, got)


def check_duration(duration: object) -> float:
    """Return a positive time that float64 can integrate over, or raise."""
    number = check_number("duration", duration, minimum=0.0)
    if not 0 < number <= LARGEST:
        contract = f"a finite number > 0 and <= {LARGEST:g}"
        fail("duration", contract, duration)
    return number


def check_alignments(name: str, value: object) -> FloatArray:
    """Return alignments (n_runs,) clipped to [-1, 1], or raise; a number is one run."""
    array = np.atleast_1d(check_inner_product(name, value))
    if array.ndim != 1 or not len(array):
        fail(name, "one number or of shape (n_runs,)", array)
    return np.clip(array, -1.0, 1.0)


def check_law(law: object, kinds: tuple[type, ...]) -> None:
    """Raise unless `law` is of one of these classes of `eigenheads.datasets`."""
    if not isinstance(law, kinds):
        contract = " or ".join(f"a {kind.__name__}" for kind in kinds)
        hint = "Import it from eigenheads.datasets."
        fail("law", contract, law, hint=hint, error=TypeError)


def _refuse(name: str, array: FloatArray, good: np.ndarray, contract: str) -> None:
    if np.all(good):
        return
    index = tuple(int(i) for i in np.argwhere(~good)[0])
    where = f" at index {index}" if index else ""
    fail(name, contract, Got(f"{float(array[index])!r}{where}"))
