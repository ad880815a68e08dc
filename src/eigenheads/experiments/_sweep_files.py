"""The folder of a sweep: what was asked, and once it is whole, table and map."""

import csv
import io
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._checks import Got, fail
from eigenheads._files import write_arrays, write_atomically
from eigenheads.experiments._cells import CellStore, cells_folder
from eigenheads.experiments._grid import OWNER, Plan
from eigenheads.experiments._store import StoreError, read_json

FORMAT = "eigenheads-sweep/1"
PLAN, TABLE, TEXT, MAP = "sweep.json", "table.npz", "table.csv", "map.svg"


def sweep_folder(root: Path, plan: Plan) -> Path:
    """Return the folder of what was asked for."""
    return root / plan.key / plan.name


def write_plan(folder: Path, plan: Plan) -> None:
    """Write what was asked for, so that others can follow and repeat it."""
    points = sorted({point.digest for point in plan.points})
    asked = {"format": FORMAT, **plan.to_json(), "points": points}
    _write(folder / PLAN, json.dumps(asked, indent=2).encode() + b"\n")


def tidy_table(
    plan: Plan, first: Sequence[str], store: CellStore
) -> dict[str, NDArray[Any]]:
    """Return one row a cell: parameters of the grid, seed, numbers.

    Columns and rows are in an order that depends on the plan and the numbers alone.
    """
    cells = [store[address].values for address in plan.addresses()]
    names = {name for cell in cells for name in cell}
    ordered = [n for n in first if n in names] + sorted(names - set(first))
    table: dict[str, NDArray[Any]] = {
        name: np.repeat([getattr(p.params, name) for p in plan.points], len(plan.seeds))
        for name in plan.axes
    }
    table["seed"] = np.tile(np.array(plan.seeds, dtype=np.int64), len(plan.points))
    for name in ordered:
        table[name] = np.array([cell.get(name, np.nan) for cell in cells])
    return table


def write_table(folder: Path, table: Mapping[str, NDArray[Any]]) -> None:
    """Write the table as ``.npz`` and as text; floats keep all their digits."""
    write_arrays(folder / TABLE, table)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    columns = [column.tolist() for column in table.values()]
    writer.writerows(zip(*columns, strict=True))
    _write(folder / TEXT, text.getvalue().encode())


def write_map(folder: Path, svg: bytes | None) -> None:
    """Write the drawing, if there is one."""
    if svg is not None:
        _write(folder / MAP, svg)


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda file: _fill(file, content))


def _fill(file: Any, content: bytes) -> None:
    file.write(content)


@dataclass(frozen=True)
class SweepState:
    """How far a sweep has come, as its folder says.

    Attributes
    ----------
    key, folder
        The experiment, and where the table will be.
    total, done
        Cells that were asked for, and that are stored.
    idle
        Seconds since the last cells were stored; infinite before the first.
    is_whole
        Whether the table is there, too.
    """

    key: str
    folder: Path
    total: int
    done: int
    idle: float
    is_whole: bool


class SweepFollower:
    """Reads how far a sweep has come, again and again; never writes.

    Parameters
    ----------
    root
        The sweep's ``out``.
    key
        Of the experiment; by default any.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     SweepFollower(folder)
    Traceback (most recent call last):
    ...
    ValueError: sweep: `out` must be a folder with a sweep; got '...
    """

    def __init__(self, root: str | Path, key: str | None = None) -> None:
        pattern = f"{key or '*/*'}/sweep-*/{PLAN}"
        plans = sorted(Path(root).glob(pattern), key=lambda path: path.stat().st_mtime)
        if not plans:
            got = Got(f"{str(root)!r}, which has none" + (f" of {key}" if key else ""))
            hint = "`eigenheads sweep EXPERIMENT --grid NAME=VALUES` begins one."
            fail("out", "a folder with a sweep", got, owner=OWNER, hint=hint)
        self._folder = plans[-1].parent
        self._asked = _read_plan(plans[-1])
        self._store = CellStore(
            cells_folder(Path(root), self._asked["key"], self._asked["code"])
        )

    def state(self) -> SweepState:
        """Read what is new, and return how far it is."""
        self._store.refresh()
        seeds, points = self._asked["seeds"], self._asked["points"]
        files = [path.stat().st_mtime for path in self._store.folder.glob("*.npz")]
        is_whole = (self._folder / TEXT).is_file()
        return SweepState(
            key=self._asked["key"],
            folder=self._folder,
            total=len(seeds) * len(points),
            done=sum(
                (point, seed) in self._store for point in points for seed in seeds
            ),
            idle=time.time() - max(files) if files else float("inf"),
            is_whole=is_whole,
        )


def _read_plan(path: Path) -> dict[str, Any]:
    try:
        asked = read_json(path)
        if asked["format"] != FORMAT:
            raise ValueError(f"it does not say format {FORMAT!r}")
        return {name: asked[name] for name in ("key", "code", "seeds", "points")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"store: `{path}` must be the plan of a sweep; got a damaged or foreign "
            f"file ({error}). The same `eigenheads sweep` call writes it anew."
        ) from error
