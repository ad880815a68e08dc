"""Values that no caller should pass, and what each of them contains."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np


class Hostile(NamedTuple):
    """A value for an argument, made anew for each call."""

    label: str
    make: Callable[[], Any]
    has_nan: bool = False


def _array(label: str, make: Callable[[], Any], has_nan: bool = False) -> Hostile:
    return Hostile(f"array {label}", make, has_nan)


def _read_only() -> Any:
    array = np.linspace(0.0, 1.0, 12).reshape(4, 3)
    array.flags.writeable = False
    return array


# The same for every argument, whatever it should be.
ANYWHERE = (
    Hostile("None", lambda: None),
    Hostile("True", lambda: True),
    Hostile("-1", lambda: -1),
    Hostile("0", lambda: 0),
    Hostile("1.5", lambda: 1.5),
    Hostile("nan", lambda: float("nan"), True),
    Hostile("inf", lambda: float("inf")),
    Hostile("-inf", lambda: float("-inf")),
    Hostile("1e308", lambda: 1e308),
    Hostile("1e-300", lambda: 1e-300),
    Hostile("10**30", lambda: 10**30),
    Hostile("10**9", lambda: 10**9),
    Hostile("1j", lambda: 1j),
    Hostile("empty text", lambda: ""),
    Hostile("text", lambda: "nonsense"),
    Hostile("escape sequence", lambda: "\x1b[2J\n"),
    Hostile("bytes", lambda: b"x"),
    Hostile("empty list", list),
    Hostile("ragged list", lambda: [[1.0], [1.0, 2.0]]),
    Hostile("list of nan", lambda: [float("nan")] * 3, True),
    Hostile("list of texts", lambda: ["a", "b"]),
    Hostile("dict", dict),
    Hostile("object", object),
    Hostile("class", lambda: int),
    Hostile("function", lambda: len),
    Hostile("generator", lambda: (x for x in [1.0])),
    _array("0-d", lambda: np.array(1.0)),
    _array("empty", lambda: np.empty((0, 3))),
    _array("1-d", lambda: np.linspace(0.0, 1.0, 4)),
    _array("2-d", lambda: np.linspace(0.0, 1.0, 12).reshape(4, 3)),
    _array("4-d", lambda: np.ones((1, 2, 3, 4))),
    _array("of objects", lambda: np.array([None, "a", 1.0], dtype=object)),
    _array("of texts", lambda: np.array([["a", "b"], ["c", "d"]])),
    _array("complex", lambda: np.ones((4, 3)) * 1j),
    _array("of dates", lambda: np.zeros((4, 3), dtype="M8[s]")),
    _array("record", lambda: np.zeros(3, dtype=[("a", "f8")])),
    _array("with nan", lambda: np.where(np.eye(4) > 0, np.nan, 1.0), True),
    _array("read-only", _read_only),
    _array(
        "masked", lambda: np.ma.masked_greater(np.arange(12.0).reshape(4, 3), 5), True
    ),
)
# Those of them that also take the place of an array within a container.
IN_PLACE = {"None", "nan", "text", "ragged list", "object", "array of objects"}


def _tensor(label: str, change: Callable[[Any, Any], Any]) -> Hostile:
    def make() -> Any:
        import torch

        return change(torch, torch.linspace(0.0, 1.0, 12).reshape(4, 3))

    return Hostile(f"tensor {label}", make)


TENSORS = (
    _tensor("that requires grad", lambda torch, x: x.double().requires_grad_()),
    _tensor("on meta", lambda torch, x: x.to("meta")),
    _tensor("of halves", lambda torch, x: x.half()),
    _tensor("of whole numbers", lambda torch, x: x.long()),
    _tensor("sparse", lambda torch, x: x.to_sparse()),
)


def _spoilt(array: Any, value: float) -> Any:
    array = array.copy()
    array[(0,) * array.ndim] = value
    return array


def _masked(array: Any) -> Any:
    """Return the array with its first entry masked: no number may come from it."""
    mask = np.zeros(array.shape, dtype=bool)
    mask[(0,) * array.ndim] = True
    return np.ma.masked_array(array.copy(), mask)


def _like_array(given: Any) -> list[Hostile]:
    """Return what may become of an array that is right."""
    fine = given.copy

    def read_only() -> Any:
        array = fine()
        array.flags.writeable = False
        return array

    changed = [
        Hostile("its list", given.tolist),
        Hostile("read-only", read_only),
        Hostile("as texts", lambda: fine().astype(str)),
        Hostile("as objects", lambda: fine().astype(object)),
        Hostile("with a new axis", lambda: fine()[None]),
        Hostile("ten new axes", lambda: fine()[(None,) * 10]),
    ]
    if given.ndim:
        changed += [
            Hostile("without rows", lambda: fine()[:0]),
            Hostile("its first row", lambda: fine()[0]),
            Hostile("without columns", lambda: fine()[..., :0]),
            Hostile("backwards", lambda: fine()[::-1]),
            Hostile("in Fortran's order", lambda: np.asfortranarray(fine())),
            Hostile("one column", lambda: fine()[..., :1]),
        ]
    if given.dtype.kind != "f" or not given.size:
        return changed
    return [
        *changed,
        Hostile("one nan", lambda: _spoilt(given, np.nan), True),
        Hostile("one inf", lambda: _spoilt(given, np.inf)),
        Hostile("all nan", lambda: np.full_like(given, np.nan), True),
        Hostile("all inf", lambda: np.full_like(given, np.inf)),
        Hostile("all zero", lambda: np.zeros_like(given)),
        Hostile("all equal", lambda: np.ones_like(given)),
        Hostile("huge", lambda: given * 1e200),
        Hostile("tiny", lambda: given * 1e-200),
        Hostile("float32", lambda: given.astype(np.float32)),
        Hostile("float16", lambda: given.astype(np.float16)),
        Hostile("long double", lambda: given.astype(np.longdouble)),
        Hostile("complex", lambda: given.astype(complex)),
        Hostile("big-endian", lambda: given.astype(given.dtype.newbyteorder(">"))),
        Hostile("masked", lambda: _masked(given), True),
    ]


def _like_tensor(given: Any) -> list[Hostile]:
    import torch

    def filled(value: float) -> Any:
        other = given.detach().clone()
        other.flatten()[0] = value
        return other

    changed = [
        Hostile("as NumPy", lambda: given.detach().numpy()),
        Hostile("without rows", lambda: given.detach()[:0]),
        Hostile("with a new axis", lambda: given.detach()[None]),
        Hostile("on meta", lambda: given.detach().to("meta")),
        Hostile("sparse", lambda: given.detach().to_sparse()),
    ]
    if not given.is_floating_point() or not given.numel():
        return changed
    return [
        *changed,
        Hostile("one nan", lambda: filled(float("nan")), True),
        Hostile("one inf", lambda: filled(float("inf"))),
        Hostile("requires grad", lambda: given.detach().clone().requires_grad_()),
        Hostile("bfloat16", lambda: given.detach().to(torch.bfloat16)),
        Hostile("whole numbers", lambda: given.detach().long()),
        Hostile("huge", lambda: given.detach() * 1e30),
    ]


def values_for(given: Any, *, with_torch: bool) -> list[Hostile]:
    """Return hostile values for an argument that was `given` in a right call."""
    values = list(ANYWHERE)
    if with_torch:
        values += TENSORS
    if isinstance(given, np.ndarray):
        values += _like_array(given)
    elif with_torch and type(given).__module__.startswith("torch"):
        import torch

        if isinstance(given, torch.Tensor):
            values += _like_tensor(given)
    elif isinstance(given, list | tuple) and given and _is_numeric(given):
        values += _like_array(np.array(given))
    elif isinstance(given, list | tuple | dict):
        values += _inside(given)
    return values


def _inside(given: Any) -> list[Hostile]:
    """Return containers one of whose arrays or tensors is replaced."""
    places = list(given) if isinstance(given, dict) else list(range(len(given)))
    changed = []
    for place in places[:3]:
        item = given[place]
        if isinstance(item, np.ndarray):
            values = _like_array(item)
        elif type(item).__module__ == "torch" and hasattr(item, "detach"):
            values = _like_tensor(item)
        else:
            continue
        for hostile in [*values, *(one for one in ANYWHERE if one.label in IN_PLACE)]:
            make = functools.partial(_replaced, given, place, hostile.make)
            label = f"its {place!r} {hostile.label}"
            changed.append(Hostile(label, make, hostile.has_nan))
    return changed


def _replaced(given: Any, place: Any, make: Callable[[], Any]) -> Any:
    if isinstance(given, dict):
        return {**given, place: make()}
    items = list(given)
    items[place] = make()
    is_plain = type(given) in (list, tuple)
    return type(given)(items) if is_plain else type(given)(*items)


def _is_numeric(given: Any) -> bool:
    try:
        return np.array(given).dtype.kind in "iuf"
    except ValueError:
        return False


def _numbers_of_array(array: np.ndarray) -> list[np.ndarray]:
    if array.dtype.kind != "f" or not array.size:
        return []
    # An array that kept its mask does not show what is behind it.
    is_masked = isinstance(array, np.ma.MaskedArray)
    return [array.filled(np.nan) if is_masked else array]


def _numbers_of_tensor(tensor: Any) -> list[np.ndarray]:
    if not hasattr(tensor, "layout") or tensor.device.type == "meta":
        return []
    is_float = tensor.is_floating_point() and tensor.numel()
    return [tensor.to_dense().double().numpy()] if is_float else []


def numbers_in(value: Any, depth: int = 3) -> list[np.ndarray]:
    """Return the floating-point numbers of a result, wherever they are."""
    if isinstance(value, bool | int | str | bytes | type(None)):
        return []
    if isinstance(value, float | np.floating):
        return [np.array(value, dtype=float)]
    if isinstance(value, np.ndarray):
        return _numbers_of_array(value)
    if type(value).__module__.startswith("torch") and hasattr(value, "detach"):
        return _numbers_of_tensor(value.detach())
    if depth == 0:
        return []
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, list | tuple):
        parts = list(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, f.name, None) for f in dataclasses.fields(value)]
    elif hasattr(value, "get_params"):  # what a fit has found
        fitted = vars(value).items()
        parts = [v for name, v in fitted if name.endswith("_")]
    else:
        return []
    return [number for part in parts for number in numbers_in(part, depth - 1)]
