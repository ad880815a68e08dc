"""Jobs of an experiment under way: each is kept as soon as it is done.

An experiment that trains many models takes long, and its result is written at the
end. Until then each finished job lies as a cell (see ``_cells``) beside the result to
come, whose folder says key, preset, parameters, seed and code. So a call after a kill
does only what is missing. When the result is whole, its jobs are removed.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeAlias

import joblib
import numpy as np

from eigenheads._typing import FloatArray
from eigenheads.experiments._cells import CellStore, Outcome

# Arguments of one call.
Job: TypeAlias = tuple[Any, ...]
# Numbers of jobs to these numbers and what came out, in any order.
Compute: TypeAlias = Callable[[Sequence[int]], Iterable[tuple[int, FloatArray]]]


class Finished:
    """The jobs of one result that are done.

    Attributes
    ----------
    seconds
        Time that earlier calls took for the jobs that this one found done.
    """

    def __init__(self, folder: Path) -> None:
        self.seconds = 0.0
        self._folder = folder
        self._store = CellStore(folder)
        self._store.clean()
        self._store.refresh()

    def find(self, address: str) -> FloatArray | None:
        """Return what came of a job, or None."""
        if (address, 0) not in self._store:
            return None
        outcome = self._store[address, 0]
        self.seconds += outcome.seconds
        return np.array(list(outcome.values.values()))

    def add(self, address: str, values: FloatArray, seconds: float) -> None:
        """Keep what came of a job; return when it is on disk."""
        named = {f"{index:06}": float(value) for index, value in enumerate(values)}
        self._store.add([((address, 0), Outcome(named, seconds))])

    def remove(self) -> None:
        """Forget all jobs."""
        shutil.rmtree(self._folder, ignore_errors=True)


_FINISHED: ContextVar[Finished | None] = ContextVar("finished_jobs", default=None)


@contextmanager
def keeping_jobs(folder: Path, *, afresh: bool = False) -> Iterator[Finished]:
    """Let :func:`do_missing` keep finished jobs in a folder, inside this context.

    Parameters
    ----------
    folder
        Of one result; jobs lie below it.
    afresh
        Whether to forget the jobs of earlier calls.
    """
    jobs = folder / "jobs"
    if afresh:
        shutil.rmtree(jobs, ignore_errors=True)
    finished = Finished(jobs)
    token = _FINISHED.set(finished)
    try:
        yield finished
    finally:
        _FINISHED.reset(token)


def do_missing(
    name: str, jobs: Sequence[Job], compute: Compute, done: Callable[[], None]
) -> list[FloatArray]:
    """Return what came of every job, in order; compute those that are not kept.

    Parameters
    ----------
    name
        What is done with each job.
    jobs
        Arguments. Their content is a job's address, data included.
    compute
        Does the jobs with these numbers, each to a flat array.
    done
        Called once a job.
    """
    finished = _FINISHED.get()
    addresses = [joblib.hash((name, job)) for job in jobs] if finished else []
    found = {
        number: values
        for number, address in enumerate(addresses)
        if finished and (values := finished.find(address)) is not None
    }
    for _ in found:
        done()
    last = time.perf_counter()
    for number, values in compute([n for n in range(len(jobs)) if n not in found]):
        found[number] = values
        if finished:
            now = time.perf_counter()
            finished.add(addresses[number], values, now - last)
            last = now
        done()
    return [found[number] for number in range(len(jobs))]
