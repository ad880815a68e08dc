"""Run many independent cells in parallel: on this machine, or on a Dask cluster.

:func:`run_cells` is the only entry. joblib provides the workers of this machine, and
hands out short cells in batches. Clusters get futures of Dask itself, because joblib's
Dask backend waits forever for a task whose worker died (seen with joblib 1.6.0: it
never calls back for a future that ends with an error).
"""

import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from itertools import islice
from typing import Any, TypeAlias

from joblib import Parallel, delayed, parallel_config
from threadpoolctl import threadpool_limits

from eigenheads.extend import (
    Got,
    UsageError,
    check_choice,
    check_count,
    fail,
    for_workers,
    how_to_get,
    n_threads,
    public_call,
    reporting,
)
from eigenheads.models import threads

BACKENDS = ("loky", "threading", "dask")
# Protocols of distributed's schedulers; a bare host and port is TCP.
_ADDRESS = re.compile(r"((tcp|tls|ucx|ws|wss)://)?[\w.\-\[\]:]+:\d+/?|inproc://\S+")
# Seconds to wait for the first worker of a cluster: queues can be long.
_FIRST_WORKER_TIMEOUT = 24 * 3600
# Cells that a cluster is given ahead, per core, so that no worker waits for the next.
_AHEAD = 20

# A cell with its position, or with its position replaced by its result.
_Numbered: TypeAlias = tuple[int, Any]
# Cells to results, as they finish; those of a dead Dask worker are missing.
_Stream: TypeAlias = Callable[[Iterable[_Numbered]], Iterator[_Numbered]]


class _WorkersLost(Exception):
    """Worker processes ended, and with them all cells that were under way."""


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
) -> Generator[tuple[int, Any], None, None]:
    """Call `run` on every cell, and yield the results as they finish.

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
    number, result
        Position of the cell, and what `run` returned.

    Raises
    ------
    CellsLost
        At the end, if some cells ended their worker again while they ran alone.
    """
    check_choice("backend", backend, BACKENDS)
    if jobs is not None:
        check_count("jobs", jobs)
    if address is not None and (backend != "dask" or not isinstance(address, str)):
        contract = "the address of a scheduler with backend 'dask', None otherwise"
        fail("address", contract, address)
    function = for_workers(run)
    if backend == "dask":
        _check_dask()
        return _results(cells, _dask_workers(address, jobs, function))
    n_workers = min(jobs or n_threads(), max(len(cells), 1))
    return _results(cells, _local_workers(backend, n_workers, function))


def _results(
    cells: Sequence[Any], workers: Any
) -> Generator[tuple[int, Any], None, None]:
    """Yield all results; cells whose worker died run again, alone."""
    with workers as stream:
        waiting = list(enumerate(cells))
        lost: list[int] = []
        while waiting:
            taken: dict[int, None] = {}
            finished: set[int] = set()
            with suppress(_WorkersLost):
                for number, result in stream(_noted(waiting, taken)):
                    finished.add(number)
                    yield number, result
            # A dead pool does not tell which cell ended it, nor which ones had only
            # waited for a worker.
            lost += [number for number in taken if number not in finished]
            waiting = [pair for pair in waiting if pair[0] not in taken]
        deadly = []
        for number in lost:
            cell = number, cells[number]
            # Twice, because it may have waited only, and never run.
            alone = _alone(stream, cell) or _alone(stream, cell)
            yield from alone
            if not alone:
                deadly.append(number)
        if deadly:
            raise CellsLost(deadly)


def _noted(waiting: Iterable[_Numbered], taken: dict[int, None]) -> Iterator[_Numbered]:
    """Yield cells, and note which were taken; joblib takes them in a thread."""
    for number, cell in waiting:
        taken[number] = None
        yield number, cell


def _alone(stream: _Stream, cell: _Numbered) -> list[_Numbered]:
    """Return the result of a cell while no other one runs; empty if it was lost."""
    with suppress(_WorkersLost):
        return list(stream([cell]))
    return []


@contextmanager
def _local_workers(
    backend: str, n_workers: int, run: Callable[[Any], Any]
) -> Iterator[_Stream]:
    if backend == "loky" and n_workers > 1:
        yield partial(_joblib_stream, backend, n_workers, run)
        return
    # Linear algebra has one setting per process. Cells that overlap in threads
    # cannot restore it, so it is restored here, when all are done.
    with threadpool_limits(1):
        if n_workers > 1:
            yield partial(_joblib_stream, backend, n_workers, run)
        else:
            yield partial(map, partial(_compute_here, run))


def _compute_here(run: Callable[[Any], Any], cell: _Numbered) -> _Numbered:
    with threads(1), reporting(_ignore):
        return cell[0], run(cell[1])


def _ignore(units: float) -> None:
    """Discard progress within a cell: a sweep counts whole cells."""


class _SearchPath:
    """Modules that this process can import, for those that read a cell.

    Arguments are read in order, so workers that were started earlier, or elsewhere,
    know the folders before they look for the functions of a user's module.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _extend_path, (list(sys.path),)


def _extend_path(folders: Sequence[str]) -> _SearchPath:
    sys.path.extend(folder for folder in folders if folder not in sys.path)
    return _SearchPath()


def _compute(path: _SearchPath, run: Callable[[Any], Any], cell: _Numbered) -> Any:
    """Compute a cell in a worker; `path` extends the search when it is read."""
    del path
    if threading.current_thread() is threading.main_thread():
        # Ctrl-C is the business of the process that started the workers.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return _compute_here(run, cell)


def _joblib_stream(
    backend: str,
    n_workers: int,
    run: Callable[[Any], Any],
    cells: Iterable[_Numbered],
) -> Iterator[_Numbered]:
    from joblib.externals.loky.process_executor import BrokenProcessPool

    # joblib sets no environment for threads, and refuses the option there.
    inner = {"inner_max_num_threads": 1} if backend == "loky" else {}
    work = delayed(partial(_compute, _SearchPath(), run))
    with parallel_config(backend=backend, n_jobs=n_workers, **inner):
        results = Parallel(return_as="generator_unordered")(map(work, cells))
        try:
            yield from results
        except BrokenProcessPool as error:
            raise _WorkersLost(str(error)) from error
        finally:
            with warnings.catch_warnings():
                # joblib warns that the remaining cells are cancelled, as they should.
                warnings.simplefilter("ignore", UserWarning)
                results.close()


def _check_dask() -> None:
    try:
        import_module("distributed")
    except ImportError:
        got = Got("'dask', which is not installed")
        hint = f"Run `{how_to_get('dask')}`."
        fail("backend", "installed", got, hint=hint)


@contextmanager
def _dask_workers(
    address: str | None, jobs: int | None, run: Callable[[Any], Any]
) -> Iterator[_Stream]:
    distributed: Any = import_module("distributed")
    if address is None:
        with (
            distributed.LocalCluster(
                n_workers=jobs or n_threads(),
                threads_per_worker=1,
                dashboard_address=None,
            ) as cluster,
            _connected(cluster, address) as client,
        ):
            yield _dask_stream_of(client, jobs, run)
        return
    if not _ADDRESS.fullmatch(address):
        # Dask retries an address that it cannot parse for minutes.
        hint = "Such as tcp://node:8786."
        fail("address", "the address of a running scheduler", address, hint=hint)
    with _connected(address, address) as client:
        yield _dask_stream_of(client, jobs, run)


@contextmanager
def _connected(target: Any, address: str | None) -> Iterator[Any]:
    """Open a client, and close it at the end, also if its scheduler is gone."""
    distributed: Any = import_module("distributed")
    try:
        client = distributed.Client(target, set_as_default=False)
    except (OSError, ValueError, TypeError, ImportError, AttributeError) as error:
        got = Got(f"{address!r} ({' '.join(str(error).split())})")
        fail("address", "the address of a running scheduler", got)
    try:
        yield client
    finally:
        with suppress(Exception):
            client.close(timeout=5)


def _dask_stream_of(
    client: Any, jobs: int | None, run: Callable[[Any], Any]
) -> _Stream:
    with _while_connected(client):
        client.wait_for_workers(1, timeout=_FIRST_WORKER_TIMEOUT)
        n_cores = sum(client.ncores().values())
    # Dask runs all that it is given at once, so a smaller `jobs` limits what it is
    # given. A larger one counts workers that have not started yet.
    n_workers = jobs or n_cores
    ahead = n_workers if n_workers < n_cores else _AHEAD * n_workers
    return partial(_dask_stream, client, run, ahead)


@contextmanager
def _while_connected(client: Any) -> Iterator[None]:
    """Raise a usage error if the scheduler is gone."""
    from concurrent.futures import CancelledError

    try:
        yield
    except (OSError, CancelledError, RuntimeError) as error:
        # A lost connection cancels all futures; the client then tries to reconnect.
        if isinstance(error, RuntimeError) and client.status == "running":
            raise
        raise UsageError(
            f"{public_call()}: the connection to the scheduler was lost. All finished "
            "cells are stored; the same call again computes the others."
        ) from error


def _dask_stream(
    client: Any, run: Callable[[Any], Any], ahead: int, cells: Iterable[_Numbered]
) -> Iterator[_Numbered]:
    distributed: Any = import_module("distributed")
    cloudpickle: Any = import_module("cloudpickle")
    waiting = iter(cells)
    finished = distributed.as_completed(loop=client.loop, raise_errors=False)

    def submit(count: int) -> None:
        for cell in islice(waiting, count):
            # As bytes, so that the scheduler need not have the user's module.
            pickled = cloudpickle.dumps((_SearchPath(), run, cell))
            finished.add(client.submit(_compute_pickled, pickled, pure=False))

    with _while_connected(client):
        submit(ahead)
        for future in finished:
            submit(1)
            try:
                yield future.result()
            except distributed.KilledWorker:
                continue
            except ModuleNotFoundError as error:
                raise UsageError(
                    f"{public_call()}: a worker has no module {error.name!r}. Install "
                    "it on every machine, or put its folder in their PYTHONPATH."
                ) from error


def _compute_pickled(pickled: bytes) -> _Numbered:
    """Compute a cell on a worker of a cluster, which may have more threads."""
    import pickle

    # Not undone: cells of one worker may overlap.
    threadpool_limits(1)
    result: _Numbered = _compute(*pickle.loads(pickled))
    return result
