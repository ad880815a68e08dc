"""Settings that a caller changes: values of one or more parameters of an experiment."""

import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np

from eigenheads.extend import Got, fail

Value: TypeAlias = float | bool | str
# Tables hold integers of 64 bits.
MAX_WHOLE = 2**63 - 1
# Names that papers and other libraries use for our parameters.
_OTHER_NAMES = {
    "lambda": "inverse_temperature",
    "lam": "inverse_temperature",
    "beta": "inverse_temperature",
    "temperature": "inverse_temperature",
    "eta": "step_size",
    "lr": "step_size",
    "learning_rate": "step_size",
    "dim": "d",
    "dimension": "d",
    "l": "n_tokens",
    "length": "n_tokens",
    "theta": "strength",
    "runs": "n_runs",
    "steps": "n_steps",
}


def suggest_name(name: object, names: Sequence[str]) -> str:
    """Return a hint that names the parameter that was probably meant, or nothing.

    Examples
    --------
    >>> suggest_name("lambda", ["d", "inverse_temperature"])
    "Did you mean 'inverse_temperature'?"
    """
    usual = _OTHER_NAMES.get(str(name).lower())
    close = [usual] if usual in names else []
    close += difflib.get_close_matches(str(name), names, n=1, cutoff=0.4)
    return f"Did you mean {close[0]!r}?" if close else ""


def parse_settings(
    texts: Sequence[str], *, option: str, owner: str, contract: str = "NAME=VALUE"
) -> dict[str, str]:
    """Return values by parameter name from strings ``name=value``.

    Examples
    --------
    >>> parse_settings(["d=400", "n_runs=3"], option="set", owner="reproduce")
    {'d': '400', 'n_runs': '3'}
    """
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            fail(option, contract, text, owner=owner)
        if name in settings:
            fail(option, "each parameter once", Got(f"{name!r} twice"), owner=owner)
        settings[name] = value
    return settings


def change_params(params: Any, settings: Mapping[str, Any], *, owner: str) -> Any:
    """Return parameters with some values replaced, each of the type it had.

    Parameters
    ----------
    params
        A dataclass.
    settings
        Values by name; strings are read as values, with commas for several.
    owner
        Name of the calling function, for error messages.

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True)
    ... class Sizes:
    ...     d: int = 3
    ...     scales: tuple[float, ...] = (1.0,)
    >>> change_params(Sizes(), {"d": "1e3", "scales": "1,2"}, owner="doctest")
    Sizes(d=1000, scales=(1.0, 2.0))
    """
    if not settings:
        return params
    # Nested sizes, such as those of a text, have no plain value to replace.
    names = [
        field.name
        for field in dataclasses.fields(params)
        if not dataclasses.is_dataclass(getattr(params, field.name))
    ]
    changed: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in names:
            contract = f"parameters of the experiment ({', '.join(names)})"
            fail(
                "settings", contract, name, owner=owner, hint=suggest_name(name, names)
            )
        changed[name] = _like(name, value, getattr(params, name), owner)
    return dataclasses.replace(params, **changed)


def _like(name: str, value: object, present: object, owner: str) -> object:
    """Return a value of the type of the present one; a tuple for a tuple."""
    if not isinstance(present, tuple):
        return coerce_value(name, value, type(present), owner=owner)
    if isinstance(value, str):
        value = [word.strip() for word in value.split(",") if word.strip()]
    parts = list(value) if isinstance(value, Sequence | np.ndarray) else [value]
    # An empty tuple does not tell the type of its elements; their text does.
    kind = type(present[0]) if present else type(parts[0]) if parts else str
    return tuple(coerce_value(name, part, kind, owner=owner) for part in parts)


def coerce_value(label: str, value: object, kind: type, *, owner: str) -> Value:
    """Return a value with the type of the parameter, or raise."""
    if isinstance(value, np.generic):
        value = value.item()
    if kind is str:
        if not isinstance(value, str):
            _refuse(label, "strings", value, owner)
        return value
    if kind is bool:
        if isinstance(value, str):
            value = {"true": True, "false": False}.get(value.lower(), value)
        if not isinstance(value, bool):
            _refuse(label, "true or false", value, owner)
        return value
    return _number_like(label, value, kind, owner)


def _number_like(label: str, value: object, kind: type, owner: str) -> float:
    number = read_number(value) if isinstance(value, str) else value
    # Booleans are integers in Python and would pass as 0 and 1.
    if isinstance(number, bool) or not isinstance(number, int | float):
        _refuse(label, "finite numbers", value, owner)
    if not math.isfinite(number):
        _refuse(label, "finite numbers", value, owner)
    if kind is not int:
        return float(number)
    if not float(number).is_integer():
        _refuse(label, "integers", value, owner)
    if abs(number) > MAX_WHOLE:
        _refuse(label, "integers below 2**63", value, owner)
    return int(number)


def read_number(word: str) -> float:
    """Return the number of a word, or NaN."""
    try:
        return float(word)
    except ValueError:
        return math.nan


def _refuse(label: str, contract: str, value: object, owner: str) -> NoReturn:
    fail(label, contract, value, owner=owner)
