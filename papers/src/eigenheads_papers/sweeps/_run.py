"""Sweeps: run an experiment at every point of a grid, with every seed."""

import csv
import io
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from eigenheads.extend import (
    Got,
    UsageError,
    advance,
    check_choice,
    check_flag,
    fail,
    generator,
    reporting,
    write_arrays,
    write_atomically,
)
from eigenheads_papers._core import Cells, Experiment, Run
from eigenheads_papers._registry import get_experiment, is_registered
from eigenheads_papers._run import (
    Listener,
    Missing,
    check_listener,
    obstacle,
    writable_folder,
)
from eigenheads_papers.sweeps._grid import (
    SweepPlan,
    make_plan,
    sweepable,
)
from eigenheads_papers.sweeps._result import SweepResult, make_map
from eigenheads_papers.sweeps._workers import CellsLost, run_cells
from eigenheads_papers.sweeps.cells import (
    Address,
    CellResult,
    CellStore,
    cells_folder,
)

FORMAT = "eigenheads-sweep/1"
# A sweep stops after this many errors that are not about parameters.
_MAX_FAILURES = 10
# Work in a file of cells: long enough to hide the cost of writing it, short enough
# that a kill loses little.
_FILE_SECONDS = 0.25
# Function of a cell: parameters and randomness to named numbers.
_Run: TypeAlias = Callable[[Any, np.random.Generator], Mapping[str, float]]


class SweepError(UsageError, RuntimeError):
    """Error: a sweep is incomplete; the finished cells are stored."""


def sweep(  # noqa: PLR0913  (one parameter per option of the command)
    key: str | Experiment[Any],
    *,
    grid: Mapping[str, Any],
    seeds: int | str | Sequence[int] = 10,
    preset: str = "demo",
    backend: str = "loky",
    address: str | None = None,
    jobs: int | None = None,
    out: str | PathLike[str] = "results",
    force: bool = False,
    listener: Listener | None = None,
) -> SweepResult:
    """Run an experiment at every point of a grid with every seed.

    A cell is one point with one seed. Cells are stored in files of about a quarter of a
    second of work, by experiment, parameters, seed and version. So a call computes only
    the cells that are missing, however the last one ended, and larger or finer grids
    reuse the cells they share. Backend, number of workers and order do not change any
    number.

    Parameters
    ----------
    key
        Key of an experiment, or an experiment of your own: itself, or as
        ``"module:object"``.
    grid
        Values by name of a parameter of the preset: a sequence, one value, or a string:
        ``"1e2,1e4"``, ``"0:1:11"`` (evenly spaced), ``"1e2:1e9:8:log"``.
    seeds
        Number of seeds, ``"first:stop"``, or the seeds themselves.
    preset
        Preset that gives the parameters outside the grid.
    backend
        ``"loky"`` (processes of this machine), ``"threading"`` (threads, for cells that
        release the interpreter lock) or ``"dask"``.
    address
        Address of a Dask scheduler. None starts workers on this machine.
    jobs
        Number of workers, each single-threaded. None means the cores of this machine,
        or of the cluster.
    out
        Folder of results.
    force
        Whether to remove the stored cells of this experiment and version first.
    listener
        Receives the number of cells, and progress.

    Returns
    -------
    result
        The table; it is also written to files, with a map.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = sweep("marion2025/fig4", preset="smoke", seeds=2, jobs=1,
    ...                    grid={"d": "80,1e9", "n_steps": [1000]}, out=folder)
    >>> result.mean("nu_squared").shape
    (2, 1)
    """
    methods = ("begin", "start", "advance")
    listener = check_listener(listener, methods=methods)
    experiment = get_experiment(key)
    cells = _cells_of(experiment)
    check_choice("preset", preset, list(cells.presets))
    reason = obstacle(experiment, experiment.presets[preset])
    if reason and experiment.cells is None:
        raise Missing(f"sweep: {experiment.key} {reason}")
    base = cells.presets[preset]
    plan = make_plan(experiment.key, preset, base, grid, seeds, experiment.version)
    root = writable_folder(out)
    cells_of_version = cells_folder(root, plan.key, plan.version)
    store = CellStore(cells_of_version, afresh=check_flag("force", force))
    # First seeds of all points come first, so that a stopped sweep covers the map.
    missing = [
        _Cell(point.params, point.stream, seed, (point.digest, seed))
        for seed in plan.seeds
        for point in plan.points
        if (point.digest, seed) not in store
    ]
    # Workers look registered experiments up by key, and compare versions.
    # The function of another experiment is sent along.
    run = None if is_registered(experiment) else cells.run
    results = run_cells(
        missing,
        _CellFunction(run, plan.key, plan.version),
        backend=backend,
        jobs=jobs,
        address=address,
    )
    folder = root / plan.key / plan.name
    _write_plan(folder, plan)
    with _without_log("distributed.client"), closing(results):
        _compute_missing(plan, missing, results, store, listener)
    return _deliver(plan, cells, store, folder, len(missing))


def tell_plan(
    key: str | Experiment[Any],
    *,
    grid: Mapping[str, Any],
    seeds: int | str,
    preset: str,
) -> str:
    """Return one sentence on what a sweep computes, and how to vary parameters.

    Examples
    --------
    >>> print(tell_plan("marion2025/fig4", grid={"d": "80,100"}, seeds=3,
    ...                 preset="smoke"))
    marion2025/fig4 at preset smoke: 2 d, 3 seeds each, 6 cells.
    """
    experiment = get_experiment(key)
    cells = _cells_of(experiment)
    check_choice("preset", preset, list(cells.presets))
    base = cells.presets[preset]
    plan = make_plan(experiment.key, preset, base, grid, seeds, version="")
    each = " × ".join(f"{len(values)} {name}" for name, values in plan.axes.items())
    n_seeds, n_cells = len(plan.seeds), plan.n_cells
    sentence = f"{experiment.key} at preset {preset}: {each or 'one point'}, "
    sentence += f"{n_seeds} seed{'s' * (n_seeds != 1)}{' each' if plan.axes else ''}, "
    sentence += f"{n_cells} cell{'s' * (n_cells != 1)}."
    if plan.axes:
        return sentence
    return (
        f"{sentence} Without --grid nothing varies but the seed. Add for example "
        f"--grid {_example(base)}; parameters: {', '.join(sweepable(base))}."
    )


def _example(base: Any) -> str:
    """Return values of the first number of the parameters, half and twice of it."""
    for name in sweepable(base):
        value = getattr(base, name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value:
            half = value // 2 or 1 if isinstance(value, int) else value / 2
            return f"{name}={half:g},{value:g},{2 * value:g}"
    return f"{sweepable(base)[0]}=…"


class _Cell(NamedTuple):
    """One run: parameters, spawn key and seed of its generator, and its address."""

    params: Any
    stream: tuple[int, ...]
    seed: int
    address: Address


@dataclass(frozen=True)
class _Failure:
    """An error that is not about parameters, such as a bug or lack of memory."""

    text: str


@dataclass(frozen=True)
class _CellFunction:
    """Compute one cell in a worker.

    Attributes
    ----------
    run
        Function of the experiment; None to look it up by key.
    key, version
        Experiment, and the version that must compute it.
    """

    run: _Run | None
    key: str
    version: str

    def __call__(self, cell: _Cell) -> CellResult | _Failure:
        run = self.run or self._registered()
        # Experiment and parameters are the spawn key: a cell has its own stream, in
        # whatever grid it appears.
        began = time.perf_counter()
        try:
            values = run(cell.params, generator(cell.seed, *cell.stream))
            numbers = {str(name): float(value) for name, value in values.items()}
        except UsageError as error:
            seconds = time.perf_counter() - began
            return CellResult({}, seconds, " ".join(str(error).split()))
        except Exception as error:
            return _Failure(f"{type(error).__name__}: {error}")
        return CellResult(numbers, time.perf_counter() - began)

    def _registered(self) -> _Run:
        experiment = get_experiment(self.key)
        if experiment.version != self.version:
            raise UsageError(
                f"sweep: a worker has version {experiment.version}, and this sweep "
                f"{self.version}. Install the same version on every machine."
            )
        return _cells_of(experiment).run


def _cells_of(experiment: Experiment[Any]) -> Cells[Any]:
    """Return what a sweep of the experiment computes.

    An experiment without cells gives the measured numbers of its claims, in their
    order, and the share of its decided claims that hold.
    """
    if experiment.cells is not None:
        return experiment.cells
    run = partial(_claims_as_numbers, experiment)
    return Cells(presets=experiment.presets, run=run, shows=("held",))


def _claims_as_numbers(
    experiment: Experiment[Any], params: Any, rng: np.random.Generator
) -> dict[str, float]:
    claims = experiment.check(Run(params, experiment.simulate(params, rng)))
    numbers = {f"claim_{i:02}": c.measured for i, c in enumerate(claims, start=1)}
    met = [c.outcome == "held" for c in claims if c.outcome != "undecided"]
    return {"held": float(np.mean(met)) if met else float("nan"), **numbers}


@contextmanager
def _without_log(name: str) -> Iterator[None]:
    """Keep a logger silent: Dask logs a traceback when its scheduler is gone."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _compute_missing(
    plan: SweepPlan,
    missing: Sequence[_Cell],
    results: Iterator[tuple[int, CellResult | _Failure]],
    store: CellStore,
    listener: Listener,
) -> None:
    """Store cells as they finish; raise SweepError if some of them fail."""
    failures: list[tuple[_Cell, _Failure]] = []
    lost: list[_Cell] = []
    finished: list[tuple[Address, CellResult]] = []
    seconds = 0.0
    listener.begin(plan.n_cells)
    listener.start(plan.key, plan.n_cells)
    with reporting(listener.advance):
        advance(plan.n_cells - len(missing))
        try:
            for number, result in results:
                cell = missing[number]
                if isinstance(result, CellResult):
                    finished.append((cell.address, result))
                    seconds += result.seconds
                    advance(1.0)
                else:
                    failures.append((cell, result))
                # One failure may be a bad point; many are a bug, and further cells
                # would only repeat it.
                if len(failures) >= _MAX_FAILURES:
                    break
                if seconds > _FILE_SECONDS:
                    _store(store, finished)
                    finished, seconds = [], 0.0
        except CellsLost as error:
            lost = [missing[number] for number in error.numbers]
        finally:
            # Also if Ctrl-C or a lost scheduler ends the loop.
            _store(store, finished)
    if failures:
        what = f"failed ({failures[0][1].text})"
        raise _incomplete(plan, store, [cell for cell, _ in failures], what)
    if lost:
        what = "ended their worker each time they ran (out of memory, killed?)"
        raise _incomplete(plan, store, lost, what)


def _store(store: CellStore, finished: list[tuple[Address, CellResult]]) -> None:
    """Write finished cells as one file."""
    if not finished:
        return
    try:
        store.add(finished)
    except OSError as error:
        raise SweepError(
            f"sweep: {store.folder} cannot be written: {error.strerror}. All earlier "
            "cells are stored; the same call again computes the others."
        ) from error


def _incomplete(
    plan: SweepPlan, store: CellStore, cells: Sequence[_Cell], what: str
) -> SweepError:
    values = [f"{name}={getattr(cells[0].params, name)}" for name in plan.axes]
    first = ", ".join([*values, f"seed={cells[0].seed}"])
    return SweepError(
        f"sweep: {len(cells)} cell(s) {what}, the first at {first}. All finished cells "
        f"are stored in {store.folder}; the same call again computes only the others."
    )


def _deliver(
    plan: SweepPlan, cells: Cells[Any], store: CellStore, folder: Path, computed: int
) -> SweepResult:
    """Write table and map of a complete sweep; equal sweeps give equal bytes."""
    messages = [store[address].message for address in plan.addresses()]
    refused = tuple(dict.fromkeys(message for message in messages if message))
    if all(messages):
        got, hint = Got("points that are all refused"), f"The first: {refused[0]}"
        fail("grid", "parameters that allow a run", got, hint=hint)
    result = SweepResult(
        key=plan.key,
        preset=plan.preset,
        axes=plan.axes,
        seeds=plan.seeds,
        table=_tidy_table(plan, cells.shows, store),
        folder=folder,
        computed=computed,
        refused=refused,
        damaged=tuple(store.damaged),
    )
    _write_table(folder, result.table)
    drawing = make_map(plan, cells, result)
    if drawing is not None:
        _write(folder / "map.svg", drawing.svg())
    return replace(result, drawing=drawing)


def _tidy_table(
    plan: SweepPlan, first: Sequence[str], store: CellStore
) -> dict[str, NDArray[Any]]:
    """Return one row per cell: parameters of the grid, seed, numbers.

    The order of rows and columns depends only on the plan and the names of the
    numbers, so that equal sweeps give equal bytes.
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


def _write_plan(folder: Path, plan: SweepPlan) -> None:
    content = json.dumps({"format": FORMAT, **plan.to_json()}, indent=2)
    _write(folder / "sweep.json", content.encode() + b"\n")


def _write_table(folder: Path, table: Mapping[str, NDArray[Any]]) -> None:
    """Write the table as numbers and as text; floats keep all their digits."""
    write_arrays(folder / "table.safetensors", table)
    # `repr` of a float is the shortest text that reads back to the same float.
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    columns = [column.tolist() for column in table.values()]
    writer.writerows(zip(*columns, strict=True))
    _write(folder / "table.csv", text.getvalue().encode())


def _write(path: Path, content: bytes) -> None:
    def fill(file: Any) -> None:
        file.write(content)

    write_atomically(path, fill)
