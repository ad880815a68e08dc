"""Grids of parameter values and seeds, and the cells that they define."""

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from eigenheads.extend import Got, check_count, fail
from eigenheads_papers._parameters import (
    MAX_WHOLE,
    Value,
    coerce_value,
    parse_settings,
    read_number,
    suggest_name,
)
from eigenheads_papers._store import plain_params

# A cell takes about 300 bytes of memory in this process.
MAX_CELLS = 10**6
_FORMS = "a,b,c or low:high:count or low:high:count:log"


@dataclass(frozen=True)
class GridPoint:
    """One point of the grid.

    Attributes
    ----------
    params
        All parameters at this point.
    digest
        Digest of experiment, parameters and version: the address of its cells.
    stream
        Spawn key of the random generator. It depends on experiment and parameters, not
        on the grid, the version or other points.
    """

    params: Any
    digest: str
    stream: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """A grid of parameter values and the seeds to run at each point."""

    key: str
    preset: str
    base: Any
    axes: Mapping[str, tuple[Value, ...]]
    seeds: tuple[int, ...]
    version: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of values per axis."""
        return tuple(len(values) for values in self.axes.values())

    @property
    def n_cells(self) -> int:
        """Number of points times seeds."""
        return math.prod(self.shape) * len(self.seeds)

    @cached_property
    def points(self) -> list[GridPoint]:
        """All points; the last axis varies fastest."""
        return [
            self._point(dict(zip(self.axes, values, strict=True)))
            for values in itertools.product(*self.axes.values())
        ]

    def _point(self, values: dict[str, Value]) -> GridPoint:
        params = dataclasses.replace(self.base, **values)
        what = json.dumps([self.key, plain_params(params)], sort_keys=True)
        # The stream leaves the version out, so that a new one runs on the same draws.
        # The digest includes it, so that cells of an old one are not reused.
        words = np.frombuffer(_sha(what)[:16], dtype="<u4")
        digest = _sha(json.dumps([what, self.version])).hex()[:32]
        return GridPoint(params, digest, tuple(int(word) for word in words))

    def addresses(self) -> Iterator[tuple[str, int]]:
        """Yield digest and seed of every cell, in the order of the table."""
        return ((point.digest, s) for point in self.points for s in self.seeds)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        return {
            "key": self.key,
            "preset": self.preset,
            "grid": {name: list(values) for name, values in self.axes.items()},
            "seeds": list(self.seeds),
            "params": plain_params(self.base),
            "version": self.version,
        }

    @property
    def name(self) -> str:
        """Name of the sweep's folder: the preset and a digest of the plan."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return f"sweep-{self.preset}-{_sha(text).hex()[:10]}"


def _sha(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def make_plan(
    key: str, preset: str, base: Any, grid: object, seeds: object, version: str
) -> SweepPlan:
    """Return the plan of a grid and seeds, both checked against the parameters."""
    if not isinstance(grid, Mapping):
        contract = f"a mapping of parameter names to values: {_FORMS}"
        fail("grid", contract, grid)
    axes = {name: _axis(name, values, base) for name, values in grid.items()}
    plan = SweepPlan(
        key=key,
        preset=preset,
        base=base,
        axes=axes,
        seeds=parse_seeds(seeds),
        version=version,
    )
    if plan.n_cells > MAX_CELLS:
        got = Got(f"{plan.n_cells} cells")
        hint = "Split the sweep into parts; parts may share a folder."
        fail("grid", f"at most {MAX_CELLS} cells", got, hint=hint)
    return plan


def parse_grid(texts: Sequence[str]) -> dict[str, str]:
    """Return values by parameter name from strings ``name=values``.

    Examples
    --------
    >>> parse_grid(["d=1e2,1e4", "noise=0:1:3"])
    {'d': '1e2,1e4', 'noise': '0:1:3'}
    """
    contract = f"NAME=VALUES with VALUES {_FORMS}"
    return parse_settings(texts, option="grid", contract=contract)


def parse_seeds(seeds: object) -> tuple[int, ...]:
    """Return seeds from a count, a string ``first:stop``, or a sequence.

    Examples
    --------
    >>> parse_seeds(3), parse_seeds("5:8")
    ((0, 1, 2), (5, 6, 7))
    """
    contract = "a count, FIRST:STOP, or distinct integers from 0 to 2**63 - 1"
    if isinstance(seeds, str):
        try:
            numbers = [int(word) for word in seeds.split(":")]
        except ValueError:
            fail("seeds", contract, seeds)
        if len(numbers) > 2 or max(map(abs, numbers)) > MAX_WHOLE:
            fail("seeds", contract, seeds)
        seeds = numbers[0] if len(numbers) == 1 else range(*numbers)
    if isinstance(seeds, np.ndarray) and seeds.ndim:
        seeds = list(seeds)
    if isinstance(seeds, Sequence):
        if len(seeds) > MAX_CELLS:
            fail("seeds", f"at most {MAX_CELLS}", Got(str(len(seeds))))
        chosen = [check_count("seeds", s, minimum=0) for s in seeds]
        # The maximum with 1 also refuses an empty list.
        if len(set(chosen)) < max(len(chosen), 1) or max(chosen) > MAX_WHOLE:
            fail("seeds", contract, seeds)
        return tuple(chosen)
    return tuple(range(check_count("seeds", seeds, maximum=MAX_CELLS)))


def sweepable(base: Any) -> list[str]:
    """Return the names of the parameters that hold a number, string or boolean."""
    return [
        field.name
        for field in dataclasses.fields(base)
        if isinstance(getattr(base, field.name), bool | int | float | str)
    ]


def _axis(name: object, values: object, base: Any) -> tuple[Value, ...]:
    names = sweepable(base)
    if name not in names:
        hint = suggest_name(name, names)
        listed = ", ".join(names)
        fail("grid", f"values of one or more of {listed}", name, hint=hint)
    label, kind = str(name), type(getattr(base, str(name)))
    # A colon in a value of a string parameter is text and makes no range.
    is_range = isinstance(values, str) and ":" in values and kind is not str
    if is_range:
        listed_values: list[object] = list(_range(label, str(values), kind))
    elif isinstance(values, str):
        listed_values = [word.strip() for word in values.split(",")]
    elif isinstance(values, Sequence | np.ndarray):
        listed_values = list(values)
    else:
        listed_values = [values]
    axis = tuple(coerce_value(label, value, kind) for value in listed_values)
    if not axis:
        fail(label, "at least one value", values)
    if len(set(axis)) < len(axis):
        if not is_range:
            fail(label, "distinct values", values)
        axis = tuple(dict.fromkeys(axis))  # rounding made neighbours equal
    return axis


def _range(label: str, text: str, kind: type) -> Sequence[float]:
    words = text.split(":")
    is_log = words[-1].strip() == "log"
    numbers = [read_number(word) for word in (words[:-1] if is_log else words)]
    if len(numbers) != 3 or not all(map(math.isfinite, numbers)):
        fail(label, _FORMS, text)
    low, high, count = numbers
    count = check_count(label, count, maximum=MAX_CELLS)
    if is_log and not (low > 0 and high > 0):
        fail(label, "positive at both ends if it ends in log", text)
    spaced = (np.geomspace if is_log else np.linspace)(low, high, int(count))
    if kind is int:
        spaced = np.round(spaced)
    # Twelve digits give 0.15 instead of 0.15000000000000002, on every machine.
    return [float(f"{number:.12g}") for number in spaced]
