"""Checks that the functions on single-location regression share."""

from typing import NamedTuple

import numpy as np

from eigenheads._checks import Got, check_finite_array, check_number, fail
from eigenheads._limits import LARGEST
from eigenheads._typing import FloatArray

# Inner products of unit vectors, computed in float64, may pass 1 by rounding.
ROUNDING = 1e-9


class Law(NamedTuple):
    """The checked parameters of the law and of the head, as arrays that broadcast."""

    d: FloatArray
    n_tokens: FloatArray
    gamma: FloatArray
    inverse_temperature: FloatArray


def check_law(
    d: object,
    n_tokens: object,
    gamma: object,
    inverse_temperature: object,
    *,
    owner: str,
) -> Law:
    """Return the four as arrays, or raise."""
    law = Law(
        check_whole("d", d, minimum=2, owner=owner),
        check_whole("n_tokens", n_tokens, minimum=1, owner=owner),
        check_gamma(gamma, owner=owner),
        check_range(
            "inverse_temperature", inverse_temperature, 0.0, LARGEST, owner=owner
        ),
    )
    check_broadcast(law._asdict(), owner=owner)
    return law


def check_scalar_law(
    d: object,
    n_tokens: object,
    gamma: object,
    inverse_temperature: object,
    *,
    owner: str,
) -> Law:
    """Return the four as arrays without axes, or raise."""
    law = check_law(d, n_tokens, gamma, inverse_temperature, owner=owner)
    for name, array in law._asdict().items():
        if array.ndim:
            fail(name, "one number", array, owner=owner)
    return law


def check_gamma(gamma: object, *, owner: str) -> FloatArray:
    """Return the deciding token's standard deviation, or raise unless it is > 0."""
    array = check_finite_array("gamma", gamma, owner=owner)
    _refuse("gamma", array, array > 0, "a finite number > 0", owner=owner)
    return check_range("gamma", array, 1 / LARGEST, LARGEST, owner=owner)


def check_order(name: str, value: object, *, owner: str) -> FloatArray:
    """Return an inner product of unit vectors, or raise."""
    array = check_finite_array(name, value, owner=owner)
    _refuse(name, array, np.abs(array) <= 1 + ROUNDING, "from -1 to 1", owner=owner)
    return array


def check_noise(noise: object, *, owner: str) -> FloatArray:
    """Return the standard deviation of the target's noise, or raise."""
    return check_range("noise", noise, 0.0, LARGEST, owner=owner)


def check_range(
    name: str, value: object, minimum: float, maximum: float, *, owner: str
) -> FloatArray:
    """Return `value` as an array of numbers between two bounds, or raise."""
    array = check_finite_array(name, value, owner=owner)
    inside = (minimum <= array) & (array <= maximum)
    _refuse(name, array, inside, f"from {minimum:g} to {maximum:g}", owner=owner)
    return array


def check_broadcast(arrays: dict[str, FloatArray], *, owner: str) -> tuple[int, ...]:
    """Return the common shape, or raise and show the shapes that do not fit."""
    try:
        return np.broadcast_shapes(*(array.shape for array in arrays.values()))
    except ValueError:
        shapes = {name: array.shape for name, array in arrays.items() if array.ndim}
        names = list(shapes)
        got = Got(", ".join(f"{name} {shape}" for name, shape in shapes.items()))
        contract = "of a shape that broadcasts with the other arguments"
        fail(names[-1], contract, got, owner=owner)


def check_duration(duration: object, *, owner: str) -> float:
    """Return a positive time that float64 can integrate over, or raise."""
    number = check_number("duration", duration, owner=owner, minimum=0.0)
    if not 0 < number <= LARGEST:
        contract = f"a finite number > 0 and <= {LARGEST:g}"
        fail("duration", contract, duration, owner=owner)
    return number


def check_whole(name: str, value: object, *, minimum: int, owner: str) -> FloatArray:
    array = check_range(name, value, minimum, LARGEST, owner=owner)
    _refuse(name, array, array == np.floor(array), "a whole number", owner=owner)
    return array


def _refuse(
    name: str, array: FloatArray, good: np.ndarray, contract: str, *, owner: str
) -> None:
    if np.all(good):
        return
    index = tuple(int(i) for i in np.argwhere(~good)[0])
    where = f" at index {index}" if index else ""
    fail(name, contract, Got(f"{float(array[index])!r}{where}"), owner=owner)
