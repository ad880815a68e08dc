"""Run many independent cells in parallel: on this machine, or on a Dask cluster.

:func:`run_cells` is the only entry. Cells are handed out in batches of about half a
second, so that short ones cost little to hand out and to store: the first batches have
one cell each, and later ones as many as fit at the pace of the last. joblib provides
the workers of this machine. Clusters get futures of Dask itself, because joblib's Dask
backend waits forever for a task whose worker died (seen with joblib 1.6.0: it never
calls back for a future that ends with an error).
"""

import os
import re
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from importlib import import_module
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from joblib import Parallel, delayed, parallel_config
from threadpoolctl import threadpool_limits

from eigenheads.extend import (
    Got,
    UsageRuntimeError,
    check_choice,
    check_count,
    fail,
    for_workers,
    how_to_get,
    n_threads,
    public_call,
    reporting,
    threads,
)

BACKENDS = ("loky", "threading", "dask")
# Work in a batch: long enough to hide the cost of handing it out and of storing it,
# short enough that a kill loses little.
_BATCH_SECONDS = 0.5
# Protocols of distributed's schedulers; a bare host and port is TCP.
_ADDRESS = re.compile(r"((tcp|tls|ucx|ws|wss)://)?[\w.\-\[\]:]+:\d+/?|inproc://\S+")
# Seconds to wait for the first worker of a cluster: queues can be long.
_FIRST_WORKER_TIMEOUT = 24 * 3600


class _Batch(NamedTuple):
    """Cells that one worker computes one after the other, and their positions."""

    numbers: list[int]
    cells: list[Any]


class _Done(NamedTuple):
    """Results of the first cells of a batch; None if the worker died."""

    numbers: list[int]
    results: list[Any] | None
    seconds: float


# Batches to finished batches, with a limit on how many are under way at a time.
_Stream: TypeAlias = Callable[[Iterable[_Batch], int], Iterator[_Done]]


class _WorkersLost(Exception):
    """Worker processes ended, and with them all batches that were under way."""


class CellsLost(RuntimeError):
    """Some cells ended their worker each time they ran; all others are done.

    Attributes
    ----------
    numbers
        Positions of these cells in the sequence given to :func:`run_cells`.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__(
            f"run_cells: {len(numbers)} cell(s) ended their worker each time they ran "
            "(out of memory, killed?)."
        )
        self.numbers = tuple(numbers)


def run_cells(
    cells: Sequence[Any],
    run: Callable[[Any], Any],
    *,
    backend: str = "loky",
    jobs: int | None = None,
    address: str | None = None,
) -> Generator[list[tuple[int, Any]], None, None]:
    """Call `run` on every cell, and yield batches of results as they finish.

    Every cell runs in one thread, so that workers times threads never exceeds the
    cores. Results must not depend on the process that computes them.

    Parameters
    ----------
    cells
        Arguments, one per call.
    run
        The function; it and the cells must be picklable.
    backend
        ``"loky"`` (processes), ``"threading"`` (threads of this process) or
        ``"dask"``.
    jobs
        Number of workers. None means the cores of this machine, or of the cluster.
        With one local worker, cells run in this process.
    address
        Address of a running Dask scheduler. None starts workers on this machine.

    Yields
    ------
    batch
        Pairs of the cell's position and its result.

    Raises
    ------
    CellsLost
        At the end, if some cells ended their worker twice while they ran alone.
    """
    check_choice("backend", backend, BACKENDS)
    if jobs is not None:
        check_count("jobs", jobs)
    if address is not None and (backend != "dask" or not isinstance(address, str)):
        contract = "the address of a scheduler with backend 'dask', None otherwise"
        fail("address", contract, address)
    if backend == "dask":
        _check_dask()
    return _results(cells, for_workers(run), backend, jobs, address)


def _results(
    cells: Sequence[Any],
    run: Callable[[Any], Any],
    backend: str,
    jobs: int | None,
    address: str | None,
) -> Generator[list[tuple[int, Any]], None, None]:
    with ExitStack() as stack:
        if backend == "dask":
            n_workers, stream = _open_dask(address, jobs, run, stack)
        else:
            n_workers = min(jobs or n_threads(), max(len(cells), 1))
            stream = _open_local(backend, n_workers, run, stack)
        queue = _Queue(cells, n_workers)
        while queue.waiting:
            try:
                for done in stream(queue.batches(), 2 * n_workers):
                    yield queue.finish(done)
            except _WorkersLost:
                queue.set_aside()
        # A dead pool does not tell which cell ended it, nor which ones had only waited
        # for a worker. All of them run alone, and once again if that worker dies.
        deadly = []
        for number in queue.lost:
            batch = _Batch([number], [cells[number]])
            results = _alone(stream, batch) or _alone(stream, batch)
            if results:
                yield [(number, results[0])]
            else:
                deadly.append(number)
        if deadly:
            raise CellsLost(deadly)


def _alone(stream: _Stream, batch: _Batch) -> list[Any] | None:
    """Return the results of a batch while no other one runs; None if it was lost."""
    try:
        (done,) = stream([batch], 1)
    except _WorkersLost:
        return None
    return done.results


class _Queue:
    """Cells that wait, are under way, or were lost with their worker.

    joblib takes batches in a thread of its own. That is safe without a lock: only one
    thread at a time takes from `waiting`, and a deque's operations are atomic.
    """

    def __init__(self, cells: Sequence[Any], n_workers: int) -> None:
        self.waiting = deque(range(len(cells)))
        self.lost: list[int] = []
        self._cells, self._n_workers = cells, n_workers
        self._under_way: dict[int, None] = {}
        self._seconds_per_cell = _BATCH_SECONDS

    def batches(self) -> Iterator[_Batch]:
        """Yield batches until no cell waits; each is then under way."""
        while self.waiting:
            size = _BATCH_SECONDS / max(self._seconds_per_cell, 1e-6)
            # Batches become smaller towards the end, so that workers end together.
            if self._n_workers > 1:
                size = min(size, len(self.waiting) / (2 * self._n_workers))
            count = min(max(int(size), 1), len(self.waiting))
            numbers = [self.waiting.popleft() for _ in range(count)]
            self._under_way.update(dict.fromkeys(numbers))
            yield _Batch(numbers, [self._cells[number] for number in numbers])

    def finish(self, done: _Done) -> list[tuple[int, Any]]:
        """Return the results of a batch by position; queue what it did not reach."""
        for number in done.numbers:
            del self._under_way[number]
        if done.results is None:
            self.lost += done.numbers
            return []
        self.waiting.extendleft(reversed(done.numbers[len(done.results) :]))
        self._seconds_per_cell = done.seconds / len(done.results)
        return list(zip(done.numbers, done.results, strict=False))

    def set_aside(self) -> None:
        """Note all cells that were under way as lost."""
        self.lost += self._under_way
        self._under_way = {}


class _SearchPath:
    """Modules that this process can import, for those that read a batch.

    A batch is read in order, so workers that were started earlier, or elsewhere, know
    the folders before they look for the functions of a user's module.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _extend_path, (list(sys.path),)


def _extend_path(folders: Sequence[str]) -> "_SearchPath":
    sys.path.extend(folder for folder in folders if folder not in sys.path)
    return _SearchPath()


def _open_local(
    backend: str, n_workers: int, run: Callable[[Any], Any], stack: ExitStack
) -> _Stream:
    if backend == "threading":
        # Linear algebra has one setting per process. Cells that overlap in threads
        # cannot restore it, so it is restored here, when all are done.
        stack.enter_context(threadpool_limits(1))
    home = os.getpid() if backend == "loky" else 0
    compute = partial(_compute_batch, _SearchPath(), home, run)
    return partial(_joblib_stream, backend, n_workers, compute)


def _joblib_stream(
    backend: str,
    n_workers: int,
    compute: Callable[[_Batch], _Done],
    batches: Iterable[_Batch],
    ahead: int,
) -> Iterator[_Done]:
    from joblib.externals.loky.process_executor import BrokenProcessPool

    # joblib sets no environment for threads, and refuses the option there.
    inner = {"inner_max_num_threads": 1} if backend == "loky" else {}
    with parallel_config(backend=backend, n_jobs=n_workers, **inner):
        parallel = Parallel(
            return_as="generator_unordered", pre_dispatch=ahead, batch_size=1
        )
        results = parallel(delayed(compute)(batch) for batch in batches)
        try:
            yield from results
        except BrokenProcessPool as error:
            raise _WorkersLost(str(error)) from error
        finally:
            with warnings.catch_warnings():
                # joblib warns that the remaining batches are cancelled, as they should.
                warnings.simplefilter("ignore", UserWarning)
                results.close()


def _compute_batch(
    path: _SearchPath, home: int, run: Callable[[Any], Any], batch: _Batch
) -> _Done:
    """Compute cells one after the other, in a worker.

    A batch that takes twice as long as planned is given back unfinished, so that one
    worker does not keep many long cells to itself.

    Parameters
    ----------
    path
        Extends the search for modules when it is read.
    home
        Process of the sweep, if there are worker processes of this machine; else 0.
    run
        The function of a cell.
    batch
        The cells.
    """
    del path
    one_thread: Any = nullcontext()
    if home == os.getpid():
        one_thread = threadpool_limits(1)
    elif home and threading.current_thread() is threading.main_thread():
        # Ctrl-C is the business of the process that started the workers.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    results: list[Any] = []
    began = time.perf_counter()
    with one_thread, threads(1), reporting(_ignore):
        for cell in batch.cells:
            results.append(run(cell))
            if time.perf_counter() - began > 2 * _BATCH_SECONDS:
                break
    return _Done(batch.numbers, results, time.perf_counter() - began)


def _ignore(units: float) -> None:
    """Discard progress within a cell: a sweep counts whole cells."""


def _check_dask() -> None:
    try:
        import_module("distributed")
    except ImportError:
        got = Got("'dask', which is not installed")
        hint = f"Run `{how_to_get('dask')}`."
        fail("backend", "installed", got, hint=hint)


def _open_dask(
    address: str | None, jobs: int | None, run: Callable[[Any], Any], stack: ExitStack
) -> tuple[int, _Stream]:
    distributed: Any = import_module("distributed")
    target: Any = address
    if address is None:
        cluster = distributed.LocalCluster(
            n_workers=jobs or n_threads(), threads_per_worker=1, dashboard_address=None
        )
        target = stack.enter_context(cluster)
    elif not _ADDRESS.fullmatch(address):
        # Dask retries an address that it cannot parse for minutes.
        hint = "Such as tcp://node:8786."
        contract = "the address of a running scheduler"
        fail("address", contract, address, hint=hint)
    try:
        client = distributed.Client(target, set_as_default=False)
    except (OSError, ValueError, TypeError, ImportError, AttributeError) as error:
        got = Got(f"{address!r} ({' '.join(str(error).split())})")
        fail("address", "the address of a running scheduler", got)
    stack.enter_context(_closing(client))
    with _while_connected(client):
        client.wait_for_workers(1, timeout=_FIRST_WORKER_TIMEOUT)
        n_cores = sum(client.ncores().values())
    n_workers = jobs or n_cores
    # Dask runs all that it is given at once, so a smaller `jobs` limits what it is
    # given. A larger one counts workers that have not started yet.
    limit = n_workers if n_workers < n_cores else 2 * n_workers
    return n_workers, partial(_dask_stream, client, run, limit)


@contextmanager
def _closing(client: Any) -> Iterator[None]:
    """Close a client at the end, also if its scheduler is gone."""
    try:
        yield
    finally:
        with suppress(Exception):
            client.close(timeout=5)


@contextmanager
def _while_connected(client: Any) -> Iterator[None]:
    """Raise a UsageRuntimeError if the scheduler is gone."""
    from concurrent.futures import CancelledError

    try:
        yield
    except (OSError, CancelledError, RuntimeError) as error:
        # A lost connection cancels all futures; the client then tries to reconnect.
        if isinstance(error, RuntimeError) and client.status == "running":
            raise
        raise UsageRuntimeError(
            f"{public_call()}: the connection to the scheduler was lost. All finished "
            "cells are stored; the same call again computes the others."
        ) from error


def _dask_stream(
    client: Any,
    run: Callable[[Any], Any],
    limit: int,
    batches: Iterable[_Batch],
    ahead: int,
) -> Iterator[_Done]:
    distributed: Any = import_module("distributed")
    cloudpickle: Any = import_module("cloudpickle")
    waiting = iter(batches)
    finished = distributed.as_completed(loop=client.loop, raise_errors=False)
    numbers: dict[str, list[int]] = {}

    def submit(count: int) -> None:
        for batch in islice(waiting, count):
            # As bytes, so that the scheduler need not have the user's module.
            pickled = cloudpickle.dumps((_SearchPath(), 0, run, batch))
            future = client.submit(_compute_pickled, pickled, pure=False)
            numbers[future.key] = batch.numbers
            finished.add(future)

    with _while_connected(client):
        submit(min(ahead, limit))
        for future in finished:
            try:
                done = future.result()
            except distributed.KilledWorker:
                done = _Done(numbers[future.key], None, 0.0)
            except ModuleNotFoundError as error:
                raise UsageRuntimeError(
                    f"{public_call()}: a worker has no module {error.name!r}. Install "
                    "it on every machine, or put its folder in their PYTHONPATH."
                ) from error
            submit(1)
            yield done


def _compute_pickled(pickled: bytes) -> _Done:
    """Compute a batch on a worker of a cluster, which may have more threads."""
    import pickle

    # Not undone: batches of one worker may overlap.
    threadpool_limits(1)
    return _compute_batch(*pickle.loads(pickled))
