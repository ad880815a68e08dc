"""Finished cells on disk: the store of sweeps, and of the jobs of one experiment.

A file holds some cells of one experiment, computed by one version. Its name
is a digest of its content, and it appears under that name only when it is whole. Files
are added and never changed. So several processes may write into one folder, and a kill
at any moment loses only the cells that were being computed. The grouping of cells into
files has no meaning: two files may hold the same cell, and must then agree.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import joblib
import numpy as np
from numpy.typing import NDArray

from eigenheads.extend import (
    FloatArray,
    read_arrays,
    remove_leftovers,
    write_arrays,
)
from eigenheads_papers._store import StoreError
from eigenheads_papers.sweeps._workers import run_cells

# Digest of a grid point (or of a job), and seed.
Address: TypeAlias = tuple[str, int]


@dataclass(frozen=True)
class CellResult:
    """Result of one cell.

    Attributes
    ----------
    values
        Named numbers; empty if the parameters were refused.
    seconds
        Duration of the computation.
    message
        Error message that refused the parameters; empty if they were accepted.
    """

    values: Mapping[str, float]
    seconds: float = 0.0
    message: str = ""


def cells_folder(root: Path, key: str, version: str) -> Path:
    """Return the folder of all cells of an experiment and a version."""
    name = "".join(c if c.isalnum() or c in ".-" else "-" for c in version)
    return root / key / f"cells-{name}"


class CellStore:
    """Cells of one folder, by address: read once, then added to.

    Parameters
    ----------
    folder
        The folder; temporary files that killed processes of this machine left there are
        removed.
    afresh
        Whether to remove all files first.
    """

    def __init__(self, folder: Path, *, afresh: bool = False) -> None:
        self.folder = folder
        self.damaged: list[Path] = []
        self._cells: dict[Address, CellResult] = {}
        if afresh:
            self.remove()
        remove_leftovers(folder)
        self._read()

    def __len__(self) -> int:
        return len(self._cells)

    def __contains__(self, address: Address) -> bool:
        return address in self._cells

    def __getitem__(self, address: Address) -> CellResult:
        return self._cells[address]

    def remove(self) -> None:
        """Remove all files."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _read(self) -> None:
        for path in sorted(self.folder.glob("*.safetensors")):
            # A damaged file is noted, not an error: its cells are computed again.
            try:
                arrays = read_arrays(path)
                if path.stem != _digest(arrays):
                    raise ValueError("its digest is not its name")
                cells = _unpacked(arrays)
            except (OSError, ValueError, KeyError, TypeError, IndexError):
                self.damaged.append(path)
                continue
            self._take(cells, path)

    def add(self, cells: Sequence[tuple[Address, CellResult]]) -> None:
        """Write finished cells as one file; return when they are on disk."""
        arrays = _packed(cells)
        path = self.folder / f"{_digest(arrays)}.safetensors"
        write_arrays(path, arrays)
        self._take(cells, path)

    def _take(self, cells: Sequence[tuple[Address, CellResult]], path: Path) -> None:
        # Two processes may store the same cell. Equal values are the proof that cells
        # do not depend on the process, so a difference must not pass.
        for address, outcome in cells:
            stored = self._cells.setdefault(address, outcome)
            if stored is not outcome and not _agree(stored, outcome):
                digest, seed = address
                raise StoreError(
                    f"store: `{path}` must agree with the other files of its folder; "
                    f"got different values for cell {digest}, seed {seed}. The code "
                    "that computed one of them is not reproducible: remove the folder."
                )


def _agree(first: CellResult, second: CellResult) -> bool:
    if first.message != second.message or set(first.values) != set(second.values):
        return False
    pairs = [(value, second.values[name]) for name, value in first.values.items()]
    return all(a == b or (a != a and b != b) for a, b in pairs)


# Kind of number and number of axes of each array in a file of cells.
_COLUMNS = {
    "point": ("U", 1),
    "seed": ("i", 1),
    "seconds": ("f", 1),
    "message": ("U", 1),
    "names": ("U", 1),
    "values": ("f", 2),
    "has": ("b", 2),
}


def _packed(cells: Sequence[tuple[Address, CellResult]]) -> dict[str, NDArray[Any]]:
    """Return cells as arrays; `has` marks the numbers that a cell has.

    Cells may have different names of numbers: the columns are their union.
    """
    # Names in order of appearance, so that the digest does not depend on a hash seed.
    names = list(dict.fromkeys(name for _, cell in cells for name in cell.values))
    shape = (len(cells), len(names))
    values, has = np.full(shape, np.nan), np.zeros(shape, dtype=bool)
    column = {name: index for index, name in enumerate(names)}
    for row, (_, cell) in enumerate(cells):
        for name, value in cell.values.items():
            values[row, column[name]] = value
            has[row, column[name]] = True
    return {
        "point": np.array([digest for (digest, _), _ in cells], dtype=str),
        "seed": np.array([seed for (_, seed), _ in cells], dtype=np.int64),
        "seconds": np.array([cell.seconds for _, cell in cells]),
        "message": np.array([cell.message for _, cell in cells], dtype=str),
        "names": np.array(names, dtype=str),
        "values": values,
        "has": has,
    }


def _unpacked(arrays: Mapping[str, NDArray[Any]]) -> list[tuple[Address, CellResult]]:
    for name, (kind, n_axes) in _COLUMNS.items():
        if arrays[name].dtype.kind != kind or arrays[name].ndim != n_axes:
            raise ValueError(f"{name} is not as it was written")
    names = [str(name) for name in arrays["names"]]
    shape = (len(arrays["point"]), len(names))
    if arrays["values"].shape != shape or arrays["has"].shape != shape:
        raise ValueError("columns are not of one length")
    columns = [
        arrays[name].tolist()
        for name in ("point", "seed", "seconds", "message", "values", "has")
    ]
    return [
        (
            (point, seed),
            CellResult(
                {
                    name: value
                    for name, value, is_there in zip(names, row, has, strict=True)
                    if is_there
                },
                seconds,
                message,
            ),
        )
        for point, seed, seconds, message, row, has in zip(*columns, strict=True)
    ]


def _digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    return str(joblib.hash(dict(arrays)))


class KeptJobs(CellStore):
    """Finished jobs of an experiment whose result is not complete yet.

    An experiment that trains many models runs for long, and its result is written at
    the end. Until then each finished job is kept as a cell, in a folder beside the
    future result. When the result is complete, the folder is removed.

    Attributes
    ----------
    seconds
        Time that earlier calls spent on the jobs that this one reuses.
    """

    seconds = 0.0

    def find(self, job: str) -> FloatArray | None:
        """Return the values of a job, or None if it is not finished."""
        if (job, 0) not in self:
            return None
        result = self[job, 0]
        self.seconds += result.seconds
        return np.array(list(result.values.values()))

    def keep(self, job: str, values: FloatArray, seconds: float) -> None:
        """Write the values of a job; return when they are on disk."""
        named = {f"{index:06}": float(value) for index, value in enumerate(values)}
        self.add([((job, 0), CellResult(named, seconds))])


_KEPT: ContextVar[KeptJobs | None] = ContextVar("eigenheads_kept_jobs", default=None)


@contextmanager
def keeping_jobs(folder: Path, *, afresh: bool = False) -> Iterator[KeptJobs]:
    """Let :func:`run_jobs` keep finished jobs in a folder, inside this context.

    Parameters
    ----------
    folder
        Folder of one result, whose name depends on experiment, preset, parameters,
        seed and version; jobs are kept below it.
    afresh
        Whether to remove the jobs of earlier calls first.
    """
    store = KeptJobs(folder / "jobs", afresh=afresh)
    token = _KEPT.set(store)
    try:
        yield store
    finally:
        _KEPT.reset(token)


def run_jobs(
    name: str,
    work: Callable[..., FloatArray],
    jobs: Sequence[tuple[Any, ...]],
    *,
    n_workers: int,
    done: Callable[[], None],
) -> list[FloatArray]:
    """Return ``work(*job)`` for every job, in order; reuse the jobs that are kept.

    Parameters
    ----------
    name
        Name of the work. A job's address is a digest of this name and its arguments.
    work
        Function of a job; returns a flat array.
    jobs
        Arguments, data included.
    n_workers
        Number of processes; with one, the jobs run in this process.
    done
        Called once per job.
    """
    store = _KEPT.get()
    # joblib.hash reads arrays by content, so that equal data give equal addresses in
    # every process.
    addresses = [joblib.hash((name, job)) for job in jobs] if store is not None else []
    results = {
        number: values
        for number, address in enumerate(addresses)
        if store is not None and (values := store.find(address)) is not None
    }
    for _ in results:
        done()
    missing = [number for number in range(len(jobs)) if number not in results]
    # Jobs run side by side, so the time since the last one is the share of this one.
    last = time.perf_counter()
    with closing(
        run_cells(
            [(work, jobs[number]) for number in missing],
            _call,
            jobs=min(n_workers, max(len(missing), 1)),
        )
    ) as finished:
        for position, values in finished:
            results[missing[position]] = values
            if store is not None:
                now = time.perf_counter()
                store.keep(addresses[missing[position]], values, now - last)
                last = now
            done()
    return [results[number] for number in range(len(jobs))]


def _call(job: tuple[Callable[..., FloatArray], tuple[Any, ...]]) -> FloatArray:
    work, arguments = job
    return work(*arguments)
