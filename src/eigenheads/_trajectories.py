"""Trajectories: named curves of several runs, as simulations and descents return."""

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._checks import Got, check_choice, check_count, fail, shown
from eigenheads._errors import UsageError, require
from eigenheads._files import read_arrays, write_arrays
from eigenheads._limits import MAX_RECORDED
from eigenheads._notebook import html_table
from eigenheads._typing import Array, FloatArray

if TYPE_CHECKING:
    import pandas as pd

# The columns of the table, and the steps in the file, have these names.
_RESERVED = ("run", "step", "steps")
_LONGEST_NAME = 200


class UnknownCurve(UsageError, KeyError, ValueError):
    """No curve has this name; a KeyError, as for every mapping."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would print the repr


class Trajectories(Mapping[str, FloatArray]):
    """Curves of `n_runs` runs, recorded at the same steps.

    Parameters
    ----------
    steps
        Number of updates made at each record (for a flow: the time); starts with 0.
    curves
        Arrays of shape ``(n_runs, n_records)``, by name.

    Notes
    -----
    Two objects are equal if all steps and curves are (NaN equals NaN).

    Examples
    --------
    >>> import numpy as np
    >>> paths = Trajectories([0, 10], {"kappa": np.array([[0.0, 0.5]])})
    >>> paths["kappa"].shape, paths.final("kappa")
    ((1, 2), array([0.5]))
    """

    def __init__(self, steps: Array, curves: Mapping[str, Array]) -> None:
        self.steps = _check_steps(steps)
        if not isinstance(curves, Mapping):
            contract = "a mapping of names to arrays"
            fail("curves", contract, curves, error=TypeError)
        self._curves = {
            _check_name(name): _check_curve(name, curve, len(self.steps))
            for name, curve in curves.items()
        }
        for name, curve in self._curves.items():
            if len(curve) != self.n_runs:
                contract = f"of {self.n_runs} runs, as the first curve is"
                fail(name, contract, Got(f"{len(curve)} runs"))

    def __getitem__(self, name: str) -> FloatArray:
        names = list(self._curves)
        check_choice("name", name, names, error=UnknownCurve)
        return self._curves[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._curves

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trajectories):
            return NotImplemented
        return (
            list(self) == list(other)
            and _are_equal(self.steps, other.steps)
            and all(_are_equal(self[name], other[name]) for name in self)
        )

    __hash__ = None  # type: ignore[assignment]

    def values(self) -> ValuesView[FloatArray]:
        """Return the curves."""
        return _Curves(self)

    def items(self) -> ItemsView[str, FloatArray]:
        """Return names and curves."""
        return _NamedCurves(self)

    def __iter__(self) -> Iterator[str]:
        return iter(self._curves)

    def __len__(self) -> int:
        return len(self._curves)

    @property
    def n_runs(self) -> int:
        """Number of runs."""
        return next((len(curve) for curve in self._curves.values()), 0)

    @property
    def n_records(self) -> int:
        """Number of records per run."""
        return len(self.steps)

    def final(self, name: str) -> FloatArray:
        """Return the last record of every run."""
        return self[name][:, -1]

    def to_frame(self) -> "pd.DataFrame":
        """Return a tidy table with one row per run and record (extra ``frame``)."""
        pd = require("pandas", "pandas", extra="frame")
        columns: dict[str, NDArray[Any]] = {
            "run": np.repeat(np.arange(self.n_runs), self.n_records),
            "step": np.tile(self.steps, self.n_runs),
        }
        columns |= {name: curve.ravel() for name, curve in self.items()}
        return pd.DataFrame(columns)

    def save(self, path: str | PathLike[str]) -> None:
        """Write to one file in the format safetensors, atomically."""
        target = _check_path(path)
        try:
            write_arrays(target, {"steps": self.steps, **self._curves})
        except (OSError, ValueError) as error:
            got = Got(f"{shown(str(path))} ({error})")
            contract = "a file that can be written"
            kind = OSError if isinstance(error, OSError) else ValueError
            fail("path", contract, got, error=kind)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "Trajectories":
        """Read a file that :meth:`save` wrote."""
        source = _check_path(path)
        arrays: dict[str, Any] = {}
        try:
            arrays = dict(read_arrays(source))
        except OSError:
            fail("path", "an existing file", str(path))
        except ValueError as error:
            contract = "a file written by Trajectories.save"
            fail("path", contract, Got(error))
        if "steps" not in arrays:
            contract = "a file written by Trajectories.save"
            fail("path", contract, Got(repr(str(path))))
        return cls(arrays.pop("steps"), arrays)

    def __repr__(self) -> str:
        return (
            f"Trajectories({', '.join(self)}; "
            f"n_runs={self.n_runs}, n_records={self.n_records})"
        )

    def _repr_html_(self) -> str:
        """Return a table for notebooks: start and end of each curve over the runs."""
        if not self._curves:
            return html_table(repr(self), ["curve"], [])
        header = ["curve", "mean at start", "mean at end", "least", "largest"]
        rows = [
            [name, *(f"{n:.4g}" for n in (c[:, 0].mean(), c[:, -1].mean()))]
            + [f"{n:.4g}" for n in (c[:, -1].min(), c[:, -1].max())]
            for name, c in self._curves.items()
        ]
        title = f"Trajectories: {self.n_runs} runs, {self.n_records} records"
        steps = f"Steps {self.steps[0]:g} to {self.steps[-1]:g}"
        note = f"{steps}; least and largest are those of the runs at the end."
        return html_table(title, header, rows, notes=[note])


def record_steps(n_steps: int, record_every: int) -> NDArray[np.int64]:
    """Return 0 and every multiple of `record_every` up to `n_steps`.

    Examples
    --------
    >>> record_steps(10, 4)
    array([0, 4, 8])
    """
    return np.arange(0, n_steps + 1, record_every)


_N_RECORDS = 100  # where the caller does not say how many


def check_record_every(
    record_every: object, *, n_steps: int, n_runs: int, n_curves: int
) -> int:
    """Return `record_every`, or raise if it is out of range or gives too many records.

    None stands for about a hundred records, the last one at the end if possible.

    Examples
    --------
    >>> check_record_every(None, n_steps=2000, n_runs=1, n_curves=5)
    20
    >>> check_record_every(11, n_steps=10, n_runs=1, n_curves=5)
    Traceback (most recent call last):
    ...
    eigenheads._errors.UsageValueError:
    check_record_every: `record_every` must be an integer from 1 to 10; got 11. A run
    has 10 steps.
    """
    hint = f"A run has {n_steps} steps."
    if record_every is None:
        # The last record is then the end, if a divisor is near; else it is before it.
        fewest = -(-n_steps // _N_RECORDS)
        near = range(fewest, 2 * fewest)
        record_every = next((n for n in near if n_steps % n == 0), fewest)
    every = check_count("record_every", record_every, maximum=n_steps, hint=hint)
    numbers = n_curves * n_runs * (n_steps // every + 1)
    if numbers > MAX_RECORDED:
        contract = f"large enough for at most {MAX_RECORDED} recorded numbers"
        got = Got(f"{every}, which makes {numbers}")
        fail("record_every", contract, got)
    return every


class _Curves(ValuesView[FloatArray]):
    """Values with `in`: NumPy's `==` returns an array instead of a boolean."""

    def __contains__(self, value: object) -> bool:
        return any(_are_equal(curve, value) for curve in self)


class _NamedCurves(ItemsView[str, FloatArray]):
    """Items with `in`."""

    def __contains__(self, item: object) -> bool:
        return any(
            isinstance(item, tuple)
            and len(item) == 2
            and isinstance(item[0], str)
            and item[0] == name
            and _are_equal(curve, item[1])
            for name, curve in self
        )


def _are_equal(array: NDArray[Any], value: object) -> bool:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        return False
    return np.array_equal(array, value, equal_nan=True)


def _check_steps(steps: object) -> NDArray[Any]:
    array = _as_numbers(steps)
    if array is None or array.ndim != 1 or not len(array):
        fail("steps", "numbers of shape (n_records,)", steps)
    return array


def _check_curve(name: str, curve: object, n_records: int) -> FloatArray:
    array = _as_numbers(curve)
    if array is None or array.ndim != 2 or array.shape[1] != n_records:
        got = curve if array is None else array
        fail(name, f"numbers of shape (n_runs, {n_records})", got)
    return array.astype(np.float64, copy=False)


def _as_numbers(value: object) -> NDArray[Any] | None:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):  # a ragged list, a nested tensor
        return None
    return array if array.dtype.kind in "biuf" else None


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not name.isprintable():
        fail("curves", "named by printable text", name)
    if name in _RESERVED or not 0 < len(name) <= _LONGEST_NAME:
        contract = (
            f"named in 1 to {_LONGEST_NAME} characters, and not "
            f"{', '.join(map(repr, _RESERVED))}"
        )
        fail("curves", contract, name)
    return name


def _check_path(path: object) -> Path:
    if not isinstance(path, str | PathLike) or not isinstance(fspath(path), str):
        fail("path", "the path of a file", path, error=TypeError)
    return Path(path)
