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


TABLE = np.linspace(0.0, 1.0, 12).reshape(4, 3)
NAN = float("nan")


def _read_only(array: Any) -> Any:
    array = array.copy()
    array.flags.writeable = False
    return array


def _masked(array: Any) -> Any:
    """Return the array with its first entry masked: no number may come from it."""
    mask = np.zeros(array.shape, dtype=bool)
    mask[(0,) * array.ndim] = True
    return np.ma.masked_array(array.copy(), mask)


def _lazy() -> Any:
    """Return a Dask array whose length nobody knows."""
    import dask.array

    rows = dask.array.from_array(TABLE, chunks=(2, 3))
    return rows[rows[:, 0] >= 0]


def _damaged() -> Any:
    """Return a sparse matrix whose indices point outside."""
    from scipy.sparse import csr_array

    matrix = csr_array(np.eye(4))
    matrix.indices[0] = 10**6
    return matrix


# The same for every argument, whatever it should be; a mark says that NaN is inside.
_ANYWHERE: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "-1": lambda: -1,
    "0": lambda: 0,
    "1.5": lambda: 1.5,
    "nan (NaN)": lambda: NAN,
    "inf": lambda: float("inf"),
    "-inf": lambda: float("-inf"),
    "1e308": lambda: 1e308,
    "1e-300": lambda: 1e-300,
    "10**30": lambda: 10**30,
    "10**9": lambda: 10**9,
    "1j": lambda: 1j,
    "empty text": lambda: "",
    "text": lambda: "nonsense",
    "escape sequence": lambda: "\x1b[2J\n",
    "formula": lambda: "$\\nonsense$",
    "bytes": lambda: b"x",
    "empty list": list,
    "ragged list": lambda: [[1.0], [1.0, 2.0]],
    "list of nan (NaN)": lambda: [NAN] * 3,
    "list of texts": lambda: ["a", "b"],
    "list of None and text": lambda: [None, "a", 1.0],
    "list with a masked array (NaN)": lambda: [_masked(TABLE), TABLE],
    "dict": dict,
    "object": object,
    "class": lambda: int,
    "function": lambda: len,
    "generator": lambda: (x for x in [1.0]),
    "array 0-d": lambda: np.array(1.0),
    "array empty": lambda: np.empty((0, 3)),
    "array 1-d": lambda: np.linspace(0.0, 1.0, 4),
    "array 2-d": lambda: TABLE.copy(),
    "array 4-d": lambda: np.ones((1, 2, 3, 4)),
    "array of objects": lambda: np.array([None, "a", 1.0], dtype=object),
    "array of texts": lambda: np.array([["a", "b"], ["c", "d"]]),
    "array complex": lambda: TABLE * 1j,
    "array of dates": lambda: np.zeros((4, 3), dtype="M8[s]"),
    "array of durations": lambda: np.zeros((4, 3), dtype="m8[s]"),
    "array record": lambda: np.zeros(3, dtype=[("a", "f8")]),
    "array with nan (NaN)": lambda: np.where(np.eye(4) > 0, np.nan, 1.0),
    "array read-only": lambda: _read_only(TABLE),
    "array masked (NaN)": lambda: _masked(TABLE),
    "Dask of unknown length": _lazy,
    "damaged sparse matrix": _damaged,
}
if hasattr(np.dtypes, "StringDType"):
    _ANYWHERE["array of long texts"] = lambda: np.array(["a"], np.dtypes.StringDType())
# Those of them that also take the place of an array within a container.
_IN_PLACE = {"None", "nan (NaN)", "text", "ragged list", "object", "array of objects"}
_TENSORS: dict[str, Callable[[Any], Any]] = {
    "requires grad": lambda x: x.double().requires_grad_(),
    "on meta": lambda x: x.to("meta"),
    "of halves": lambda x: x.half(),
    "of bfloat16": lambda x: x.bfloat16(),
    "of float8": lambda x: x.to(_torch().float8_e4m3fn),
    "of whole numbers": lambda x: x.long(),
    "sparse": lambda x: x.to_sparse(),
    "in CSR": lambda x: x.reshape(-1, x.shape[-1]).to_sparse_csr(),
    "a negative view": lambda x: _torch().complex(-x, -x).conj().imag,
    "nested": lambda x: _torch().nested.nested_tensor(list(x)),
}


def _torch() -> Any:
    import torch

    return torch


def _table_as_tensor(change: Callable[[Any], Any]) -> Any:
    return change(_torch().tensor(TABLE, dtype=_torch().float32))


def _spoilt(array: Any, value: float) -> Any:
    array = array.copy()
    array[(0,) * array.ndim] = value
    return array


def _like_array(right: Any) -> dict[str, Callable[[], Any]]:
    """Return what may become of an array that is right."""
    changed: dict[str, Callable[[], Any]] = {
        "its list": right.tolist,
        "read-only": lambda: _read_only(right),
        "as texts": lambda: right.astype(str),
        "as objects": lambda: right.astype(object),
        "with a new axis": lambda: right[None],
        "ten new axes": lambda: right[(None,) * 10],
    }
    if right.ndim:
        changed |= {
            "without rows": lambda: right[:0],
            "its first row": lambda: right[0],
            "without columns": lambda: right[..., :0],
            "backwards": lambda: right[::-1],
            "in Fortran's order": lambda: np.asfortranarray(right),
            "one column": lambda: right[..., :1],
        }
    if right.dtype.kind != "f" or not right.size:
        return changed
    for power in (-300, -200, -8, 8, 200, 300):
        changed[f"in units of 1e{power}"] = lambda p=power: right * 10.0**p
    return changed | {
        "far from zero": lambda: right + 1e9,
        "a rare one": lambda: np.where(np.arange(right.size) == 0, 1.0, 0.0).reshape(
            right.shape
        ),
        "one nan (NaN)": lambda: _spoilt(right, np.nan),
        "one inf": lambda: _spoilt(right, np.inf),
        "all nan (NaN)": lambda: np.full_like(right, np.nan),
        "all inf": lambda: np.full_like(right, np.inf),
        "all zero": lambda: np.zeros_like(right),
        "all equal": lambda: np.ones_like(right),
        "float32": lambda: right.astype(np.float32),
        "float16": lambda: right.astype(np.float16),
        "long double": lambda: right.astype(np.longdouble),
        "complex": lambda: right.astype(complex),
        "big-endian": lambda: right.astype(right.dtype.newbyteorder(">")),
        "masked (NaN)": lambda: _masked(right),
    }


def _like_tensor(right: Any) -> dict[str, Callable[[], Any]]:
    fine = right.detach()

    def spoilt(value: float) -> Any:
        copied = fine.clone()
        copied.flatten()[0] = value
        return copied

    changed: dict[str, Callable[[], Any]] = {
        "as NumPy": fine.numpy,
        "without rows": lambda: fine[:0],
        "with a new axis": lambda: fine[None],
        "on meta": lambda: fine.to("meta"),
        "sparse": fine.to_sparse,
    }
    if not fine.is_floating_point() or not fine.numel():
        return changed
    return changed | {
        "one nan (NaN)": lambda: spoilt(NAN),
        "one inf": lambda: spoilt(float("inf")),
        "requires grad": lambda: fine.clone().requires_grad_(),
        "bfloat16": fine.bfloat16,
        "whole numbers": fine.long,
        "huge": lambda: fine * 1e30,
        "a negative view": lambda: _TENSORS["a negative view"](fine),
    }


def values_for(right: Any, *, with_torch: bool) -> list[Hostile]:
    """Return hostile values for an argument that was `right` in a right call."""
    makers = dict(_ANYWHERE)
    if with_torch:
        makers |= {
            f"tensor {label}": functools.partial(_table_as_tensor, change)
            for label, change in _TENSORS.items()
        }
    if isinstance(right, list | tuple) and right and _is_numeric(right):
        right = np.array(right)
    makers |= _like(right)
    if isinstance(right, list | tuple | dict):
        makers |= _inside(right)
    return [Hostile(label, make, "(NaN)" in label) for label, make in makers.items()]


def _like(right: Any) -> dict[str, Callable[[], Any]]:
    if isinstance(right, np.ndarray):
        return _like_array(right)
    is_tensor = type(right).__module__ == "torch" and hasattr(right, "detach")
    return _like_tensor(right) if is_tensor else {}


def _inside(right: Any) -> dict[str, Callable[[], Any]]:
    """Return containers one of whose arrays or tensors is replaced."""
    places = list(right) if isinstance(right, dict) else list(range(len(right)))
    changed = {}
    for place in places[:3]:
        values = _like(right[place])
        if values:
            values |= {label: _ANYWHERE[label] for label in _IN_PLACE}
        for label, make in values.items():
            replaced = functools.partial(_replaced, right, place, make)
            changed[f"its {place!r} {label}"] = replaced
    return changed


def _replaced(right: Any, place: Any, make: Callable[[], Any]) -> Any:
    if isinstance(right, dict):
        return {**right, place: make()}
    items = list(right)
    items[place] = make()
    is_plain = type(right) in (list, tuple)
    return type(right)(items) if is_plain else type(right)(*items)


def _is_numeric(right: Any) -> bool:
    try:
        return np.array(right).dtype.kind in "iuf"
    except (ValueError, TypeError):
        return False


def numbers_in(value: Any, depth: int = 3) -> list[np.ndarray]:
    """Return the floating-point numbers of a result, wherever they are."""
    if isinstance(value, bool | int | str | bytes | type(None)):
        return []
    if isinstance(value, float | np.floating):
        return [np.array(value, dtype=float)]
    if isinstance(value, np.ma.MaskedArray):
        # An array that kept its mask does not show what is behind it.
        value = value.filled(np.nan) if value.dtype.kind == "f" else None
    if isinstance(value, np.ndarray):
        return [value] if value.dtype.kind == "f" and value.size else []
    if hasattr(value, "detach") and hasattr(value, "layout"):
        has_numbers = value.is_floating_point() and value.device.type != "meta"
        dense = value.detach().to_dense().double().numpy() if has_numbers else None
        return [dense] if dense is not None and dense.size else []
    parts = _parts_of(value) if depth else []
    return [number for part in parts for number in numbers_in(part, depth - 1)]


def _parts_of(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, f.name, None) for f in dataclasses.fields(value)]
    if hasattr(value, "get_params"):  # what a fit has found
        return [part for name, part in vars(value).items() if name.endswith("_")]
    return []
