"""Parameters of experiments: their meanings, and values that a caller changes."""

import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np

from eigenheads.extend import Got, fail
from eigenheads_papers._core import Experiment

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


def parameter_rows(experiment: Experiment[Any]) -> list[tuple[str, ...]]:
    """Return name, meaning, and the value at each preset, of every parameter.

    A field says its meaning as metadata:
    ``field(default=3, metadata={"meaning": "number of runs"})``.
    """
    rows = []
    presets = experiment.presets.values()
    for field in dataclasses.fields(next(iter(presets))):
        values = [_shown(getattr(params, field.name)) for params in presets]
        rows.append((field.name, str(field.metadata.get("meaning", "")), *values))
    return rows


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(_shown(part) for part in value) or "–"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


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
    texts: Sequence[str], *, option: str, contract: str = "NAME=VALUE"
) -> dict[str, str]:
    """Return values by parameter name from strings ``name=value``.

    Examples
    --------
    >>> parse_settings(["d=400", "n_runs=3"], option="set")
    {'d': '400', 'n_runs': '3'}
    """
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            fail(option, contract, text)
        if name in settings:
            fail(option, "each parameter once", Got(f"{name!r} twice"))
        settings[name] = value
    return settings


def change_params(params: Any, settings: Mapping[str, Any]) -> Any:
    """Return parameters with some values replaced, each of the type it had.

    Parameters
    ----------
    params
        A dataclass.
    settings
        Values by name; strings are read as values, with commas for several.

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True)
    ... class Sizes:
    ...     d: int = 3
    ...     scales: tuple[float, ...] = (1.0,)
    >>> change_params(Sizes(), {"d": "1e3", "scales": "1,2"})
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
            fail("settings", contract, name, hint=suggest_name(name, names))
        changed[name] = _like(name, value, getattr(params, name))
    return dataclasses.replace(params, **changed)


def _like(name: str, value: object, present: object) -> object:
    """Return a value of the type of the present one; a tuple for a tuple."""
    if not isinstance(present, tuple):
        return coerce_value(name, value, type(present))
    if isinstance(value, str):
        value = [word.strip() for word in value.split(",") if word.strip()]
    parts = list(value) if isinstance(value, Sequence | np.ndarray) else [value]
    # An empty tuple does not tell the type of its elements; their text does.
    kind = type(present[0]) if present else type(parts[0]) if parts else str
    return tuple(coerce_value(name, part, kind) for part in parts)


def coerce_value(label: str, value: object, kind: type) -> Value:
    """Return a value with the type of the parameter, or raise."""
    if isinstance(value, np.generic):
        value = value.item()
    if kind is str:
        if not isinstance(value, str):
            _refuse(label, "strings", value)
        return value
    if kind is bool:
        if isinstance(value, str):
            value = {"true": True, "false": False}.get(value.lower(), value)
        if not isinstance(value, bool):
            _refuse(label, "true or false", value)
        return value
    return _number_like(label, value, kind)


def _number_like(label: str, value: object, kind: type) -> float:
    number = read_number(value) if isinstance(value, str) else value
    # Booleans are integers in Python and would pass as 0 and 1.
    if isinstance(number, bool) or not isinstance(number, int | float):
        _refuse(label, "finite numbers", value)
    if not math.isfinite(number):
        _refuse(label, "finite numbers", value)
    if kind is not int:
        return float(number)
    if not float(number).is_integer():
        _refuse(label, "integers", value)
    if abs(number) > MAX_WHOLE:
        _refuse(label, "integers below 2**63", value)
    return int(number)


def read_number(word: str) -> float:
    """Return the number of a word, or NaN."""
    try:
        return float(word)
    except ValueError:
        return math.nan


def _refuse(label: str, contract: str, value: object) -> NoReturn:
    fail(label, contract, value)
