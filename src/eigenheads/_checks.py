"""Argument checks: one grammar for every error a caller can cause.

Grammar: ``<owner>: `<name>` must be <contract>; got <value>. <what to do>``
"""

import difflib
import math
import re
from collections.abc import Collection, Iterable, Mapping
from numbers import Integral, Real
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
from array_api_compat import array_namespace, is_numpy_array, is_torch_array
from numpy.typing import NDArray

from eigenheads._errors import (
    UsageError,
    UsageRuntimeError,
    UsageTypeError,
    UsageValueError,
    public_call,
)
from eigenheads._typing import Array, FloatArray

_USAGE_ERRORS: dict[type[Exception], type[UsageError]] = {
    ValueError: UsageValueError,
    TypeError: UsageTypeError,
    RuntimeError: UsageRuntimeError,
}

_Kind = TypeVar("_Kind")
# Characters that a terminal obeys instead of showing: C0 and C1 control codes, marks
# that reverse the direction of writing, and halves of surrogate pairs.
# What rounding may do to a matrix, relative to its largest entry or eigenvalue.
_ROUNDING = 1e-10
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
    r"\ud800-\udfff]"
)
_NOT_PLAIN = re.compile(r"[\t\n]|[^\x00-\x7f]")


def escape_controls(text: str) -> str:
    r"""Return `text` with control characters written out, safe to print.

    Tabs and line breaks stay. Names of files, stored texts and messages of other
    libraries pass through here before they reach a terminal.

    Examples
    --------
    >>> print(escape_controls("a\x1b[2Jb"))
    a\x1b[2Jb
    """
    return _CONTROLS.sub(_written_out, text)


def _written_out(character: re.Match[str]) -> str:
    """Return a character as itself if it can be printed, else as in its `repr`."""
    return repr(character.group())[1:-1]


def shown(value: object, *, limit: int = 60) -> str:
    """Return a short text of `value` for an error message; arrays by shape and dtype.

    Examples
    --------
    >>> shown(np.zeros((2, 3)))
    'an array of shape (2, 3) and dtype float64'
    """
    if isinstance(value, np.ndarray) and value.ndim:
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    try:
        if hasattr(value, "columns") and hasattr(value, "dtypes"):
            return _shown_frame(value, limit)
        text = repr(value.item() if isinstance(value, np.generic) else value)
    except Exception:  # for example an integer of 5000 digits
        text = f"a value of type {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _shown_frame(frame: Any, limit: int) -> str:
    """Return a text of a DataFrame that names the columns which are not numbers."""
    text = f"a DataFrame of shape {tuple(frame.shape)}"
    names = [
        escape_controls(str(name))
        for name, kind in zip(frame.columns, frame.dtypes, strict=True)
        if not str(kind).lower().startswith(("int", "uint", "float", "bool"))
    ]
    listed = ", ".join(names)
    if len(listed) > limit:
        listed = listed[: limit - 1] + "…"
    return f"{text} whose columns {listed} are not numbers" if names else text


def fail(
    name: str,
    contract: str,
    value: object,
    *,
    hint: str = "",
    error: type[Exception] = ValueError,
) -> NoReturn:
    """Raise a usage error of kind `error`, with a message in the house grammar.

    The error raised is a subclass of both `error` and
    :class:`~eigenheads._errors.UsageError`.

    Examples
    --------
    >>> fail("d", "an integer >= 5", 3, hint="Use full.")
    Traceback (most recent call last):
    ...
    eigenheads._errors.UsageValueError:
    eigenheads: `d` must be an integer >= 5; got 3. Use full.
    """
    got = value if isinstance(value, Got) else shown(value)
    tail = f" {hint}" if hint else ""
    kind = _USAGE_ERRORS.get(error, error)
    message = f"{public_call()}: `{name}` must be {contract}; got {got}.{tail}"
    # Names in files may also have line breaks, and characters that no version of
    # Unicode knows.
    raise kind(_NOT_PLAIN.sub(_written_out, escape_controls(message)))


class Got(str):
    """Description of a wrong value, used in a message in place of its `repr`."""

    __slots__ = ()


def check_number(
    name: str, value: object, *, minimum: float = -math.inf, maximum: float = math.inf
) -> float:
    """Return `value` as a float, or raise if it is not finite and within bounds.

    Examples
    --------
    >>> check_number("noise", -1.0, minimum=0.0)
    Traceback (most recent call last):
    ...
    eigenheads._errors.UsageValueError:
    eigenheads: `noise` must be a finite number >= 0; got -1.0.
    """
    number = as_float(value)
    if math.isfinite(number) and minimum <= number <= maximum:
        return number
    contract = "a finite number"
    if math.isfinite(minimum) and math.isfinite(maximum):
        contract += f" from {minimum:g} to {maximum:g}"
    elif math.isfinite(minimum):
        contract += f" >= {minimum:g}"
    elif math.isfinite(maximum):
        contract += f" <= {maximum:g}"
    fail(name, contract, value)


def check_positive(name: str, value: object) -> float:
    """Return `value` as a float, or raise if it is not finite and > 0.

    Examples
    --------
    >>> check_positive("gamma", 0.0)
    Traceback (most recent call last):
    ...
    eigenheads._errors.UsageValueError:
    eigenheads: `gamma` must be a finite number > 0; got 0.0.
    """
    number = as_float(value)
    if 0 < number < math.inf:
        return number
    fail(name, "a finite number > 0", value)


def check_count(
    name: str,
    value: object,
    *,
    minimum: int = 1,
    maximum: int | None = None,
    hint: str = "",
) -> int:
    """Return `value` as an int, or raise if it is not an integer in range.

    Floats with integer values are accepted, so that ``1e9`` may be written.

    Examples
    --------
    >>> check_count("n_steps", 1e3)
    1000
    >>> check_count("n_steps", 0)
    Traceback (most recent call last):
    ...
    eigenheads._errors.UsageValueError:
    eigenheads: `n_steps` must be an integer >= 1; got 0.
    """
    whole = (isinstance(value, Integral) and not isinstance(value, bool)) or (
        as_float(value).is_integer()
    )
    if whole:
        number = int(value)  # type: ignore[call-overload]
        if number >= minimum and (maximum is None or number <= maximum):
            return int(number)
    contract = f"an integer >= {minimum}"
    if maximum is not None:
        contract = f"an integer from {minimum} to {maximum}"
    fail(name, contract, value, hint=hint)


def check_choice(
    name: str,
    value: object,
    choices: Collection[str],
    *,
    error: type[Exception] = ValueError,
) -> str:
    """Return `value`, or raise and name the closest valid choice.

    Examples
    --------
    >>> check_choice("method", "exakt", ["exact", "full"])
    Traceback (most recent call last):
    ...
    eigenheads._errors.UsageValueError:
    eigenheads: `method` must be one of 'exact', 'full'; got
    'exakt'. Did you mean 'exact'?
    """
    if isinstance(value, str) and value in choices:
        return value
    text = value if isinstance(value, str) else ""
    close = difflib.get_close_matches(text, choices, n=1, cutoff=0.4)
    listed = ", ".join(repr(choice) for choice in choices)
    hint = f"Did you mean {close[0]!r}?" if close else ""
    fail(name, f"one of {listed}", value, hint=hint, error=error)


def check_flag(name: str, value: object) -> bool:
    """Return `value` as a bool, or raise unless it is True or False.

    Examples
    --------
    >>> check_flag("flag", "no")
    Traceback (most recent call last):
    ...
    eigenheads._errors.UsageValueError:
    eigenheads: `flag` must be True or False; got 'no'.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    fail(name, "True or False", value)


def check_instance(name: str, value: object, kind: type[_Kind]) -> _Kind:
    """Return `value`, or raise TypeError unless it is an instance of `kind`.

    Examples
    --------
    >>> check_instance("law", 3, dict)
    Traceback (most recent call last):
    ...
    eigenheads._errors.UsageTypeError:
    eigenheads: `law` must be an instance of dict; got 3.
    """
    if isinstance(value, kind):
        return value
    contract = f"an instance of {kind.__name__}"
    fail(name, contract, value, error=TypeError)


def check_text(name: str, value: object) -> str:
    """Return `value`, or raise TypeError unless it is a text."""
    if isinstance(value, str):
        return value
    fail(name, "a text", value, error=TypeError)


def check_items(name: str, value: object, contract: str) -> list[Any]:
    """Return the items of `value` as a list, or raise TypeError with `contract`.

    Texts, mappings and single numbers are refused, although some can be iterated.

    Examples
    --------
    >>> check_items("strengths", 0.5, "a sequence of numbers")
    Traceback (most recent call last):
    ...
    eigenheads._errors.UsageTypeError:
    eigenheads: `strengths` must be a sequence of numbers; got 0.5.
    """
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        try:
            return list(value)
        except (TypeError, RuntimeError):  # an array or tensor without axes, or data
            pass
    fail(name, contract, value, error=TypeError)


def check_callable(name: str, value: _Kind, contract: str) -> _Kind:
    """Return `value`, or raise TypeError with `contract` unless it can be called."""
    if callable(value):
        return value
    fail(name, contract, value, error=TypeError)


def check_path(name: str, value: object) -> Path:
    """Return `value` as a path, or raise unless it is one that a file may have."""
    if not isinstance(value, str | PathLike) or not isinstance(fspath(value), str):
        fail(name, "a path", value, error=TypeError)
    if "\0" in fspath(value):
        fail(name, "a path without null characters", value)
    if not fspath(value):
        fail(name, "a path that is not empty", value)
    return Path(value)


def check_finite_array(name: str, value: object) -> FloatArray:
    """Return `value` as a float64 array, or raise unless every entry is finite.

    Examples
    --------
    >>> check_finite_array("kappa", [0.0, float("nan")])
    Traceback (most recent call last):
    ...
    eigenheads._errors.UsageValueError:
    eigenheads: `kappa` must be finite numbers; got nan at index (1,).
    """
    try:
        array = as_numpy(name, value)
        if array.dtype.kind not in "biuf":
            raise TypeError
        array = array.astype(np.float64)
    except TypeError:
        fail(name, "finite numbers", value)
    _check_finite(name, array, array_namespace(array))
    return array


def check_covariance(name: str, value: object) -> FloatArray:
    """Return a symmetric positive semi-definite matrix that is not 0, or raise."""
    matrix = check_finite_array(name, value)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        fail(name, "a square matrix (d, d)", matrix)
    largest = float(np.abs(matrix).max())
    gap = float(np.abs(matrix - matrix.T).max())
    if gap > _ROUNDING * largest:
        got = Got(f"entries that differ from their mirror image by up to {gap:.3g}")
        hint = "Pass (C + C.T) / 2 if the difference is rounding."
        fail(name, "a symmetric matrix", got, hint=hint)
    # With exact symmetry it does not matter which triangle `eigh` reads.
    matrix = (matrix + matrix.T) / 2
    smallest = float(np.linalg.eigvalsh(matrix)[0])
    if smallest < -_ROUNDING * largest:
        got = Got(f"smallest eigenvalue {smallest:.3g}")
        fail(name, "a positive semi-definite matrix", got)
    if largest == 0:
        fail(name, "a matrix that is not zero", matrix)
    return matrix


def check_numbers(name: str, value: object) -> FloatArray:
    """Return `value` as a float64 array, NaN and infinities included, or raise."""
    try:
        array = as_numpy(name, value)
        if array.dtype.kind not in "biuf":
            raise TypeError
    except TypeError:
        fail(name, "an array of numbers", value, error=TypeError)
    return array.astype(np.float64)


def as_numpy(name: str, value: object) -> np.ndarray[Any, Any]:
    """Return `value` as a NumPy array; tensors are detached, masks are refused.

    Raises a bare TypeError, to which the caller adds a message, if it is no array.

    Examples
    --------
    >>> as_numpy("x", np.ma.masked_invalid([1.0, np.nan]))
    Traceback (most recent call last):
    ...
    eigenheads._errors.UsageValueError:
    eigenheads: `x` must be an array without masked entries; got 1 masked
    of 2. Drop or fill them.
    """
    _check_unmasked(name, value)
    if is_torch_array(value):
        _check_has_data(name, value)
        value = value.detach().cpu().resolve_conj().resolve_neg()
        if str(value.dtype).startswith(("torch.bfloat", "torch.float8")):
            value = value.float()  # NumPy has no such numbers
    try:
        return np.asarray(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise TypeError from error


def check_array_like(name: str, value: object, contract: str) -> np.ndarray[Any, Any]:
    """Return `value` as an array of any type, or raise with `contract`.

    Examples
    --------
    >>> check_array_like("by", [[1], [1, 2]], "one id per row")
    Traceback (most recent call last):
    ...
    eigenheads._errors.UsageTypeError:
    eigenheads: `by` must be one id per row; got [[1], [1, 2]].
    """
    try:
        return as_numpy(name, value)
    except TypeError as error:
        if isinstance(error, UsageError):
            raise
        fail(name, contract, value, error=TypeError)


def without_traps(name: str, value: _Kind) -> _Kind | NDArray[Any]:
    """Return `value` for scikit-learn to check: tensors as arrays, no masked array.

    Its checks drop masks, cannot convert tensors with gradients or without data, take
    dates for numbers, and read sparse matrices whose indices point outside them.
    """
    if getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M"):
        hint = 'Divide durations by `np.timedelta64(1, "s")`.'
        got = Got(f"dtype {value.dtype}")  # type: ignore[attr-defined]
        fail(name, "free of dates and durations", got, hint=hint)
    if hasattr(value, "check_format"):
        try:
            value.check_format(full_check=True)
        except ValueError as error:
            got = Got(f"a damaged one: {error}")
            fail(name, "a valid sparse matrix", got)
    if is_torch_array(value) or isinstance(value, np.ma.MaskedArray):
        return check_array_like(name, value, "an array")
    return value


def check_float_arrays(*, finite: bool = True, **arrays: Array) -> Any:
    """Return the library of `arrays`, or raise unless all are arrays of finite floats.

    All arrays must be of NumPy or all of PyTorch. Tensors keep their graph, so that
    gradients flow through what is computed from them.

    Examples
    --------
    >>> check_float_arrays(points=np.array([[1.0, np.nan]]))
    Traceback (most recent call last):
    ...
    eigenheads._errors.UsageValueError:
    eigenheads: `points` must be finite numbers; got nan at index (0, 1).
    """
    for name, array in arrays.items():
        if not (is_numpy_array(array) or is_torch_array(array)):
            contract = "an array of NumPy or PyTorch"
            fail(name, contract, array, error=TypeError)
        _check_unmasked(name, array)
    if len({is_torch_array(array) for array in arrays.values()}) > 1:
        first, *others = arrays
        got = Got(", ".join(type(array).__name__ for array in arrays.values()))
        listed = " and ".join(f"`{name}`" for name in others)
        contract = f"an array of the same library as {listed}"
        fail(first, contract, got, error=TypeError)
    xp = array_namespace(*arrays.values())
    for name, array in arrays.items():
        if not xp.isdtype(array.dtype, "real floating"):
            got = Got(f"dtype {array.dtype}")
            fail(name, "an array of floats", got, error=TypeError)
        if is_torch_array(array):
            _check_has_data(name, array)
        if finite:
            _check_finite(name, array, xp)
    return xp


def _check_unmasked(name: str, value: object) -> None:
    if isinstance(value, list | tuple):
        for part in value:
            if isinstance(part, np.ma.MaskedArray):
                _check_unmasked(name, part)
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        n_masked = int(np.ma.getmaskarray(value).sum())
        got = Got(f"{n_masked} masked of {value.size}")
        contract = "an array without masked entries"
        fail(name, contract, got, hint="Drop or fill them.")


def _check_has_data(name: str, tensor: Any) -> None:
    if tensor.is_nested:
        got, hint = Got("a nested tensor"), "Pass a list: `list(X.unbind())`."
        fail(name, "a dense tensor", got, hint=hint)
    is_dense = str(tensor.layout) == "torch.strided" and not tensor.is_quantized
    if tensor.device.type == "meta" or not is_dense:
        kind = "a meta" if tensor.device.type == "meta" else "a sparse or quantized"
        got = Got(f"{kind} tensor")
        fail(name, "a dense tensor that holds numbers", got)


def _check_finite(name: str, array: Array, xp: Any) -> None:
    """Raise unless every entry is finite.

    A sum is finite only if all entries are, and it needs no second array: the entries
    are looked at one by one only if it is not.
    """
    try:
        with np.errstate(all="ignore"):
            if bool(xp.isfinite(xp.sum(array))):
                return
        bad = ~xp.isfinite(array)
        if not bool(xp.any(bad)):
            return
    except RuntimeError:  # under torch.vmap and while tracing, values are unknown
        return
    first = int(xp.argmax(xp.astype(xp.reshape(bad, (-1,)), xp.uint8)))
    index = tuple(int(i) for i in np.unravel_index(first, tuple(array.shape)))
    where = f" at index {index}" if index else ""
    got = Got(f"{float(array[index])!r}{where}")
    fail(name, "finite numbers", got)


def as_float(value: object) -> float:
    """Return a real number as a float; NaN for all else and beyond float64."""
    if isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "iuf":
        return float(value)
    if not isinstance(value, Real) or isinstance(value, bool | np.bool_):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan
