"""Sweeps: every point of a grid, every seed, each cell once."""

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._checks import Got, check_choice, fail
from eigenheads._extras import require
from eigenheads.experiments._cells import CellStore, cells_folder
from eigenheads.experiments._core import Cells, Experiment
from eigenheads.experiments._digest import code_version
from eigenheads.experiments._engines import open_engine
from eigenheads.experiments._grid import OWNER, Plan, Value, make_plan
from eigenheads.experiments._registry import get_experiment
from eigenheads.experiments._run import (
    Listener,
    Missing,
    obstacle,
    writable_folder,
)
from eigenheads.experiments._sweep_files import (
    sweep_folder,
    tidy_table,
    write_map,
    write_plan,
    write_table,
)
from eigenheads.experiments._sweep_map import draw_map
from eigenheads.experiments._sweeper import Sweeper, missing_tasks
from eigenheads.experiments._workers import cells_of, is_registered


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """A whole sweep.

    Attributes
    ----------
    key, preset
        What was swept.
    axes
        The values of each parameter of the grid.
    seeds
        The seeds that ran at each point.
    table
        One row a cell, sorted by point, then seed: the parameters of the grid,
        ``seed``, and the numbers that came out; NaN where the parameters allow no run.
    folder
        Where the table, the map and the plan lie.
    computed
        How many cells this call computed; the others were stored already, or by
        another process meanwhile.
    refused
        Why some points have no numbers, once a sentence.
    damaged
        Files of the store that could not be read, and whose cells were computed again.
    """

    key: str
    preset: str
    axes: Mapping[str, tuple[Value, ...]]
    seeds: tuple[int, ...]
    table: Mapping[str, NDArray[Any]]
    folder: Path
    computed: int
    refused: tuple[str, ...]
    damaged: tuple[Path, ...]

    @property
    def names(self) -> list[str]:
        """The numbers that came out."""
        return [name for name in self.table if name not in self.axes and name != "seed"]

    def over_seeds(self, name: str) -> NDArray[np.float64]:
        """Return one of the numbers with an axis for each parameter, then the seeds."""
        check_choice("name", name, self.names, owner="SweepResult")
        shape = (*(len(values) for values in self.axes.values()), len(self.seeds))
        return np.asarray(self.table[name]).reshape(shape)

    def mean(self, name: str) -> NDArray[np.float64]:
        """Return the mean over seeds of one of the numbers, on the grid."""
        return np.asarray(self.over_seeds(name).mean(axis=-1))

    def to_frame(self) -> Any:
        """Return the table as a pandas DataFrame (extra ``frame``)."""
        owner = "SweepResult.to_frame"
        pandas = require("pandas", "pandas", extra="frame", owner=owner)
        return pandas.DataFrame(dict(self.table))


def sweep(  # noqa: PLR0913  (as the command has options)
    key: str | Experiment[Any],
    *,
    grid: Mapping[str, Any],
    seeds: int | str | Sequence[int] = 10,
    preset: str = "demo",
    backend: str = "loky",
    address: str | None = None,
    jobs: int | None = None,
    out: str | PathLike[str] = "results",
    listener: Listener | None = None,
) -> SweepResult:
    """Run an experiment at every point of a grid with every seed.

    A cell (a point and a seed) is stored as soon as its block of about half a second
    of work is done, under an address that depends on experiment, parameters, seed and
    code. So a call does only what is missing, whatever ended the one before, and
    larger or finer grids reuse what they share. Neither backend nor workers nor order
    change a number.

    Parameters
    ----------
    key
        Key of an experiment, or an experiment of your own.
    grid
        Values by name of a parameter of the preset: a sequence, one value, or a text:
        ``"1e2,1e4"``, ``"0:1:11"`` (evenly spaced), ``"1e2:1e9:8:log"``.
    seeds
        Their number, ``"first:stop"``, or the seeds themselves.
    preset
        Parameters outside the grid.
    backend
        ``"loky"`` (processes of this machine), ``"dask"`` or ``"ray"``.
    address
        Of the scheduler of a cluster; without it workers start on this machine.
    jobs
        Cores to use, one thread a cell; by default those of this machine or all of
        the cluster's.
    out
        Folder of results.
    listener
        Hears how many cells there are and are done.

    Returns
    -------
    result
        The table; also in files, with a map.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = sweep("marion2025/fig4", preset="smoke", seeds=2, jobs=1,
    ...                    grid={"d": "80,1e9", "n_steps": [1000]}, out=folder)
    >>> result.mean("nu_squared").shape
    (2, 1)
    """
    experiment = (
        key if isinstance(key, Experiment) else get_experiment(key, owner=OWNER)
    )
    cells = cells_of(experiment)
    check_choice("preset", preset, list(cells.presets), owner=OWNER)
    reason = obstacle(experiment, experiment.presets[preset])
    if reason and experiment.cells is None:
        raise Missing(f"sweep: {experiment.key} {reason}")
    code = _code(experiment, cells)
    plan = make_plan(experiment.key, preset, cells.presets[preset], grid, seeds, code)
    root = writable_folder(out, owner=OWNER)
    store = CellStore(cells_folder(root, plan.key, plan.code))
    store.clean()
    store.refresh()
    missing = missing_tasks(plan, store)
    folder = sweep_folder(root, plan)
    run = None if is_registered(experiment) else cells.run
    with open_engine(backend, address, jobs, len(missing)) as engine:
        write_plan(folder, plan)  # once there are workers: others may wait for its end
        sweeper = Sweeper(plan, store, engine, run, listener or Listener())
        sweeper.do(missing)
    return _deliver(plan, cells, store, folder, sweeper.computed)


def _code(experiment: Experiment[Any], cells: Cells[Any]) -> str:
    """Return the version of the code that computes; of the caller's file, too."""
    if is_registered(experiment):
        return code_version(experiment.paper)
    function: Any = inspect.unwrap(cells.run)
    try:
        source = Path(inspect.getsourcefile(function) or "").read_bytes()
    except (OSError, TypeError):  # typed in, or an object that is called
        source = getattr(getattr(function, "__code__", None), "co_code", b"")
    return f"{code_version('-')}.{hashlib.sha256(source).hexdigest()[:10]}"


def _deliver(
    plan: Plan, cells: Cells[Any], store: CellStore, folder: Path, computed: int
) -> SweepResult:
    """Write table and map of a whole sweep; equal sweeps give equal bytes."""
    messages = [store[address].message for address in plan.addresses()]
    refused = tuple(dict.fromkeys(message for message in messages if message))
    if all(messages):
        got, hint = Got("points that are all refused"), f"The first: {refused[0]}"
        fail("grid", "parameters that allow a run", got, owner=OWNER, hint=hint)
    result = SweepResult(
        key=plan.key,
        preset=plan.preset,
        axes=plan.axes,
        seeds=plan.seeds,
        table=tidy_table(plan, cells.shows, store),
        folder=folder,
        computed=computed,
        refused=refused,
        damaged=tuple(store.damaged),
    )
    write_table(folder, result.table)
    write_map(folder, draw_map(plan, cells, result.over_seeds))
    return result
