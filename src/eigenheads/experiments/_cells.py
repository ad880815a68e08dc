"""Cells on disk: small files that are whole or not there, named by their content.

A file holds some cells of one experiment, computed by one version of the code. Files
are added and never changed, so any number of processes may work on one folder, and a
kill at any moment loses at most what was under way. How cells are grouped into files
means nothing: two files may hold the same cell, and must agree.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from eigenheads._files import read_arrays, remove_leftovers, write_arrays
from eigenheads.experiments._store import StoreError

# Digest of a point, and seed.
Address: TypeAlias = tuple[str, int]


@dataclass(frozen=True)
class Outcome:
    """What came of one cell.

    Attributes
    ----------
    values
        Named numbers; empty where the parameters have no run.
    seconds
        Time it took.
    message
        Why there are no values: the sentence that refused the parameters.
    """

    values: Mapping[str, float]
    seconds: float = 0.0
    message: str = ""


def cells_folder(root: Path, key: str, code: str) -> Path:
    """Return the folder of all cells of this experiment and code."""
    version = "".join(c if c.isalnum() or c in ".-" else "-" for c in code)
    return root / key / f"cells-{version}"


class CellStore:
    """The cells of a folder: reads what is new, adds what is finished."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.damaged: list[Path] = []
        self._cells: dict[Address, Outcome] = {}
        self._seen: set[str] = set()

    def __len__(self) -> int:
        return len(self._cells)

    def __contains__(self, address: Address) -> bool:
        return address in self._cells

    def __getitem__(self, address: Address) -> Outcome:
        return self._cells[address]

    def clean(self) -> None:
        """Remove what killed processes of this machine left half written."""
        remove_leftovers(self.folder)

    def refresh(self) -> set[Address]:
        """Read the files that were added since the last time; return their cells."""
        new: set[Address] = set()
        for path in sorted(self.folder.glob("*.npz")):
            if path.name in self._seen:
                continue
            self._seen.add(path.name)
            try:
                arrays = read_arrays(path)
                if path.stem != _digest(arrays):
                    raise ValueError("its digest is not its name")
                cells = _unpacked(arrays)
            except (OSError, ValueError, KeyError, TypeError, IndexError):
                self.damaged.append(path)
                continue
            self._take(cells, path)
            new.update(address for address, _ in cells)
        return new

    def add(self, cells: Sequence[tuple[Address, Outcome]]) -> None:
        """Write finished cells as one file; return when they are on disk."""
        arrays = _packed(cells)
        path = self.folder / f"{_digest(arrays)}.npz"
        write_arrays(path, arrays)
        self._seen.add(path.name)
        self._take(cells, path)

    def _take(self, cells: Sequence[tuple[Address, Outcome]], path: Path) -> None:
        for address, outcome in cells:
            known = self._cells.setdefault(address, outcome)
            if known is not outcome and not _agree(known, outcome):
                digest, seed = address
                raise StoreError(
                    f"store: `{path}` must agree with the other files of its folder; "
                    f"got other values of cell {digest}, seed {seed}. The code that "
                    "made one of them is not reproducible: remove the folder."
                )


def _agree(one: Outcome, other: Outcome) -> bool:
    if one.message != other.message or set(one.values) != set(other.values):
        return False
    pairs = [(value, other.values[name]) for name, value in one.values.items()]
    return all(a == b or (a != a and b != b) for a, b in pairs)


def _packed(cells: Sequence[tuple[Address, Outcome]]) -> dict[str, NDArray[Any]]:
    """Return cells as arrays; `has` marks the numbers that a cell has."""
    names = list(dict.fromkeys(name for _, cell in cells for name in cell.values))
    shape = (len(cells), len(names))
    values, has = np.full(shape, np.nan), np.zeros(shape, dtype=bool)
    column = {name: index for index, name in enumerate(names)}
    for row, (_, cell) in enumerate(cells):
        for name, value in cell.values.items():
            values[row, column[name]] = value
            has[row, column[name]] = True
    return {
        "point": np.array([digest for (digest, _), _ in cells], dtype="S32"),
        "seed": np.array([seed for (_, seed), _ in cells], dtype=np.int64),
        "seconds": np.array([cell.seconds for _, cell in cells]),
        "message": np.array([cell.message for _, cell in cells], dtype=str),
        "names": np.array(names, dtype=str),
        "values": values,
        "has": has,
    }


def _unpacked(arrays: Mapping[str, NDArray[Any]]) -> list[tuple[Address, Outcome]]:
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
            (point.decode("ascii"), seed),
            Outcome(
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
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:32]
