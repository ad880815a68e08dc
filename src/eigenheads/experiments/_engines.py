"""Where blocks of cells run: here, on joblib's processes, on Dask or on Ray.

joblib is the one door to all of them. Blocks come back in any order, as they finish.
"""

import itertools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

from joblib import Parallel, delayed, parallel_config

from eigenheads._checks import Got, check_choice, check_count, fail
from eigenheads._extras import how_to_get
from eigenheads._parallel import n_threads
from eigenheads.experiments._cells import Outcome
from eigenheads.experiments._grid import OWNER
from eigenheads.experiments._workers import Failure, Job, WorkerCell, compute_block

BACKENDS = ("loky", "dask", "ray")
Block: TypeAlias = tuple[int, list[WorkerCell]]
Answer: TypeAlias = tuple[int, list[Outcome | Failure]]
# Seconds to wait for the first worker of a cluster: Slurm's queue may be long.
_PATIENCE = 24 * 3600
# joblib does without a pool when it has one process.
_FEWEST_OF_RAY = 2


class WorkerLost(Exception):
    """A worker ended without an answer: killed, or out of memory."""


@dataclass(frozen=True)
class Engine:
    """Workers that compute blocks.

    Attributes
    ----------
    n_workers
        How many cells run side by side.
    home
        Process that workers end with (see ``Job``).
    run
        A job, blocks, and how many of them may be under way, to answers in any order;
        raises WorkerLost.
    """

    n_workers: int
    home: int
    run: Callable[[Job, Iterator[Block], int], Iterator[Answer]]


@contextmanager
def open_engine(
    backend: object, address: object, jobs: object, n_cells: int
) -> Iterator[Engine]:
    """Provide the workers of a backend; those we started end with the context."""
    chosen = check_choice("backend", backend, BACKENDS, owner=OWNER)
    count = None if jobs is None else check_count("jobs", jobs, owner=OWNER)
    if address is not None and (chosen == "loky" or not isinstance(address, str)):
        contract = "a scheduler's address for dask or ray, and none for loky"
        fail("address", contract, address, owner=OWNER)
    with ExitStack() as stack:
        if chosen == "dask":
            engine = _dask(address, count, stack)
        elif chosen == "ray":
            engine = _ray(address, count, stack)
        else:
            engine = _local(min(count or n_threads(), max(n_cells, 1)))
        yield engine


def _local(jobs: int) -> Engine:
    if jobs == 1:
        return Engine(1, os.getpid(), _in_this_process)

    def run(job: Job, blocks: Iterator[Block], ahead: int) -> Iterator[Answer]:
        from joblib.externals.loky.process_executor import BrokenProcessPool

        with parallel_config(backend="loky", inner_max_num_threads=1):
            try:
                yield from _as_they_finish(jobs, job, blocks, ahead)
            except BrokenProcessPool as error:
                raise WorkerLost(str(error)) from error

    return Engine(jobs, os.getpid(), run)


def _in_this_process(job: Job, blocks: Iterator[Block], ahead: int) -> Iterator[Answer]:
    del ahead
    for number, cells in blocks:
        yield compute_block(job, number, cells)


def _as_they_finish(
    jobs: int, job: Job, blocks: Iterator[Block], ahead: int
) -> Iterator[Answer]:
    parallel = Parallel(
        n_jobs=jobs,
        return_as="generator_unordered",
        pre_dispatch=ahead,
        batch_size=1,
    )
    answers = parallel(_calls(job, blocks))
    try:
        yield from answers
    finally:
        answers.close()


def _calls(job: Job, blocks: Iterator[Block]) -> Iterator[Any]:
    for number, cells in blocks:
        yield delayed(compute_block)(job, number, cells)


def _dask(address: str | None, jobs: int | None, stack: ExitStack) -> Engine:
    distributed = _imported("distributed", "dask")
    if address is None:
        cluster = distributed.LocalCluster(
            n_workers=jobs or n_threads(),
            threads_per_worker=1,
            dashboard_address=None,
        )
        target: Any = stack.enter_context(cluster)
    else:
        target = address
    try:
        client = distributed.Client(target, set_as_default=False)
    except OSError as error:
        fail(
            "address", "that of a running scheduler", _why(address, error), owner=OWNER
        )
    stack.enter_context(client)
    client.wait_for_workers(1, timeout=_PATIENCE)
    n_cores = sum(client.ncores().values())
    n_workers = jobs or n_cores

    def run(job: Job, blocks: Iterator[Block], ahead: int) -> Iterator[Answer]:
        if n_workers < n_cores:  # Dask would run at once whatever it is given
            ahead = min(ahead, n_workers)
        with parallel_config(backend="dask", client=client):
            try:
                yield from _as_they_finish(-1, job, blocks, ahead)
            except distributed.KilledWorker as error:
                raise WorkerLost(str(error)) from error

    return Engine(n_workers, 0, run)


def _ray(address: str | None, jobs: int | None, stack: ExitStack) -> Engine:
    ray = _imported("ray", "ray")
    if not ray.is_initialized():
        _start_ray(ray, address, jobs)
        stack.callback(ray.shutdown)
    import_module("ray.util.joblib").register_ray()
    n_workers = jobs or max(int(ray.cluster_resources().get("CPU", 1)), 1)
    lost = (
        ray.exceptions.RayActorError,
        ray.exceptions.WorkerCrashedError,
        ray.exceptions.OutOfMemoryError,
    )

    def run(job: Job, blocks: Iterator[Block], ahead: int) -> Iterator[Answer]:
        # A pool of one would run here. And the pool answers when all it was given is
        # done, so it is given small waves.
        wave_size = min(ahead, n_workers) if n_workers == 1 else ahead
        pool = {"backend": "ray", "n_jobs": max(n_workers, _FEWEST_OF_RAY)}
        with parallel_config(**pool), Parallel(batch_size=1) as parallel:
            try:
                while wave := list(itertools.islice(blocks, wave_size)):
                    yield from parallel(_calls(job, iter(wave)))
            except lost as error:
                raise WorkerLost(str(error)) from error

    return Engine(n_workers, 0, run)


def _start_ray(ray: Any, address: str | None, jobs: int | None) -> None:
    """Connect to a cluster, or start workers here that import what we import."""
    here = {
        "num_cpus": max(jobs or n_threads(), _FEWEST_OF_RAY),
        "include_dashboard": False,
        "runtime_env": {"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}},
    }
    try:
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level=logging.ERROR,
            **({} if address else here),
        )
    except (ConnectionError, ValueError) as error:
        contract = "that of a running Ray cluster"
        fail("address", contract, _why(address, error), owner=OWNER)


def _why(address: str | None, error: Exception) -> Got:
    reason = " ".join(str(error).split())
    return Got(f"{address!r} ({reason})")


def _imported(module: str, backend: str) -> Any:
    """Import what a backend needs, or say how to install it."""
    try:
        return import_module(module)
    except ImportError:
        got = Got(f"{backend!r}, which is not installed")
        hint = f"Run `{how_to_get(backend)}`."
        fail("backend", "installed", got, owner=OWNER, hint=hint)
