"""What runs where the work is done: one block of cells, one thread, some time."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from threadpoolctl import ThreadpoolController

from eigenheads._parallel import reporting, threads
from eigenheads.experiments._cells import Outcome
from eigenheads.experiments._core import Cells, Experiment, Run
from eigenheads.experiments._digest import code_version
from eigenheads.experiments._registry import experiment_keys, get_experiment

CellRun: TypeAlias = Callable[[Any, np.random.Generator], Mapping[str, float]]
# How often a worker looks whether the process that started it still lives.
_WATCH_SECONDS = 0.5
_is_prepared = False


class WorkerCell(NamedTuple):
    """What a worker needs to know of a cell."""

    params: Any
    stream: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Failure:
    """An error that no parameter explains: a mistake in the code, lack of memory."""

    text: str


@dataclass(frozen=True)
class Job:
    """How to compute any cell of a sweep; the same for all its blocks.

    Attributes
    ----------
    run
        The cell's function; None to look it up by the key of the experiment.
    key, code
        The experiment and the version of the code that must compute it.
    home
        Process to end with, when the worker is its child; 0 for none.
    seconds
        A block is given back unfinished after this time.
    """

    run: CellRun | None
    key: str
    code: str
    home: int
    seconds: float


def cells_of(experiment: Experiment[Any]) -> Cells[Any]:
    """Return what a sweep of the experiment computes.

    Without cells of its own: the measured numbers of its claims, in their order, and
    the share of them that hold, of those that were decided.
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
    met = [c.verdict == "held" for c in claims if c.verdict != "undecided"]
    return {"held": float(np.mean(met)) if met else float("nan"), **numbers}


def is_registered(experiment: Experiment[Any]) -> bool:
    """Return whether workers find this very experiment by its key."""
    known = experiment.key in experiment_keys()
    return known and get_experiment(experiment.key) is experiment


def compute_block(
    job: Job, number: int, cells: Sequence[WorkerCell]
) -> tuple[int, list[Outcome | Failure]]:
    """Compute cells one after the other; return the block's number and what came out.

    When time is up, or after a failure, the rest is left undone: fewer outcomes than
    cells.
    """
    run = _function(job)
    outcomes: list[Outcome | Failure] = []
    end = time.perf_counter() + job.seconds
    with _one_thread(job), threads(1), reporting(_nobody):
        for cell in cells:
            outcomes.append(_compute(run, cell))
            if time.perf_counter() > end or isinstance(outcomes[-1], Failure):
                break
    return number, outcomes


def _nobody(units: float) -> None:
    """Hear of steps within a cell, and keep them to oneself."""


def _function(job: Job) -> CellRun:
    if job.run is not None:
        return job.run
    here = code_version(job.key.partition("/")[0])
    if here != job.code:
        raise RuntimeError(
            f"sweep: a worker runs eigenheads {here}, and this sweep {job.code}. "
            "Install the same version on every machine."
        )
    return cells_of(get_experiment(job.key)).run


def _compute(run: CellRun, cell: WorkerCell) -> Outcome | Failure:
    sequence = np.random.SeedSequence(cell.seed, spawn_key=cell.stream)
    began = time.perf_counter()
    try:
        values = run(cell.params, np.random.default_rng(sequence))
        numbers = {str(name): float(value) for name, value in values.items()}
    except Exception as error:
        if getattr(error, "is_of_the_caller", False):
            return Outcome(
                {}, time.perf_counter() - began, " ".join(str(error).split())
            )
        return Failure(f"{type(error).__name__}: {error}")
    return Outcome(numbers, time.perf_counter() - began)


def _one_thread(job: Job) -> AbstractContextManager[object]:
    """Keep linear algebra in one thread: workers times threads are the cores.

    A worker process stays so. Nothing is restored there, because blocks of one
    process may overlap (Dask's threads), and the first to end would undo it for all.
    """
    limits = _linear_algebra(len(sys.modules)).limit(limits=1)
    if job.home == os.getpid():
        return limits
    if job.home:
        prepare_worker(job.home)
    return nullcontext()


@lru_cache(maxsize=1)
def _linear_algebra(n_modules: int) -> ThreadpoolController:
    """Look for libraries with threads; again only when modules were imported."""
    del n_modules
    return ThreadpoolController()


def prepare_worker(home: int) -> None:
    """Once a worker: leave Ctrl-C to the main process, and end when it is gone."""
    global _is_prepared
    if _is_prepared:
        return
    _is_prepared = True
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(home,), daemon=True).start()


def _end_with(home: int) -> None:
    while os.getppid() == home:
        time.sleep(_WATCH_SECONDS)
    os._exit(1)
