"""Run many independent cells in parallel: on this machine, or on a Dask cluster.

:func:`run_cells` is the only entry. It groups short cells into blocks, hands the
blocks to workers, and yields results as they finish. joblib provides the workers of
this machine. Dask's own futures are used for clusters, because joblib's Dask backend
waits forever for a task whose worker died (seen with joblib 1.6).
"""

import os
import re
import signal
import sys
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    suppress,
)
from functools import lru_cache, partial
from importlib import import_module
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from joblib import Parallel, delayed, parallel_config
from threadpoolctl import ThreadpoolController

from eigenheads.extend import (
    Got,
    UsageRuntimeError,
    check_choice,
    check_count,
    fail,
    how_to_get,
    n_threads,
    reporting,
    threads,
)

BACKENDS = ("loky", "threading", "dask")
# Work in a block: long enough to hide the cost of handing it out and of storing it,
# short enough that a kill loses little.
_BLOCK_SECONDS = 0.5
# The process that stores results takes care of at most this many blocks per second.
_BLOCKS_PER_SECOND = 50
# A cell whose worker died is run again; the third time it runs alone, and last.
_MAX_LOSSES = 3
# Protocols of distributed's schedulers; a bare host and port is TCP.
_ADDRESS = re.compile(r"((tcp|tls|ucx|ws|wss)://)?[\w.\-\[\]:]+:\d+/?|inproc://\S+")
# Seconds to wait for the first worker of a cluster: queues can be long.
_FIRST_WORKER_TIMEOUT = 24 * 3600
# Interval at which a worker checks that the process which started it is alive.
_PARENT_CHECK_SECONDS = 0.5
_has_parent_check = False


class _Block(NamedTuple):
    """Cells that one worker computes one after the other."""

    numbers: list[int]
    cells: list[Any]


# Numbers of a block, the results of its first cells, and the seconds these took.
_Done: TypeAlias = tuple[list[int], list[Any], float]
# Blocks to finished blocks, with a limit on how many are under way at a time.
_Stream: TypeAlias = Callable[[Iterable[_Block], int], Iterator[_Done]]


class WorkerLost(Exception):
    """A worker ended without a result: it was killed, or out of memory.

    Attributes
    ----------
    numbers
        Cells of the lost block; None if it is not known which block was lost.
    """

    def __init__(self, message: str, numbers: Sequence[int] | None = None) -> None:
        super().__init__(message)
        self.numbers = numbers


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
    owner: str,
    backend: str = "loky",
    jobs: int | None = None,
    address: str | None = None,
) -> Generator[list[tuple[int, Any]], None, None]:
    """Call `run` on every cell, and yield blocks of results as they finish.

    Every cell runs in one thread, so that workers times threads never exceeds the
    cores. Results must not depend on the process that computes them.

    Parameters
    ----------
    cells
        Arguments, one per call.
    run
        The function; it and the cells must be picklable.
    owner
        Name of the calling function, for error messages.
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
    block
        Pairs of the cell's position and its result.

    Raises
    ------
    CellsLost
        At the end, if some cells ended their worker three times.
    """
    check_choice("backend", backend, BACKENDS, owner=owner)
    if jobs is not None:
        check_count("jobs", jobs, owner=owner)
    if address is not None and (backend != "dask" or not isinstance(address, str)):
        contract = "the address of a scheduler with backend 'dask', None otherwise"
        fail("address", contract, address, owner=owner)
    if backend == "dask":
        _check_dask(owner)
    return _results(cells, run, owner, backend, jobs, address)


def _results(
    cells: Sequence[Any],
    run: Callable[[Any], Any],
    owner: str,
    backend: str,
    jobs: int | None,
    address: str | None,
) -> Generator[list[tuple[int, Any]], None, None]:
    with ExitStack() as stack:
        if backend == "dask":
            n_workers, stream = _open_dask(address, jobs, run, owner, stack)
        else:
            n_workers = min(jobs or n_threads(), max(len(cells), 1))
            stream = _open_local(backend, n_workers, run, stack)
        queue = _Queue(cells, n_workers)
        while queue.pending:
            is_alone = queue.begin_round()
            blocks = queue.blocks(max_size=1 if is_alone else None)
            if is_alone:
                # One cell per round: no result waits to be read when a worker dies.
                blocks = islice(blocks, 1)
            ahead = 1 if is_alone else 2 * n_workers
            try:
                for numbers, results, seconds in stream(blocks, ahead):
                    queue.finish(numbers, len(results), seconds)
                    yield list(zip(numbers, results, strict=False))
            except WorkerLost as lost:
                queue.lose(lost.numbers)
            queue.end_round()
        if queue.given_up:
            raise CellsLost(queue.given_up)


def _block_seconds(n_workers: int) -> float:
    """Return the seconds of work to aim at in a block."""
    return max(_BLOCK_SECONDS, n_workers / _BLOCKS_PER_SECOND)


class _Queue:
    """Cells that wait and cells that are under way.

    joblib takes blocks in a thread of its own. That is safe without a lock: only one
    thread at a time takes from `pending`, and a deque's operations are atomic.
    """

    def __init__(self, cells: Sequence[Any], n_workers: int) -> None:
        self.pending = deque(range(len(cells)))
        self.given_up: list[int] = []
        self._cells, self._n_workers = cells, n_workers
        self._under_way: dict[int, None] = {}
        self._losses: Counter[int] = Counter()
        self._kept: list[int] = []
        self._seconds_per_cell: float | None = None

    def begin_round(self) -> bool:
        """Set aside cells that must run alone; return True if only these are left."""
        suspects = [n for n in self.pending if self._losses[n] >= _MAX_LOSSES - 1]
        if len(suspects) == len(self.pending):
            return True
        self._kept = suspects
        self.pending = deque(n for n in self.pending if n not in set(suspects))
        return False

    def end_round(self) -> None:
        """Queue the cells that were set aside."""
        self.pending.extend(self._kept)
        self._kept = []

    def blocks(self, max_size: int | None) -> Iterator[_Block]:
        """Yield blocks until no cell waits; each is then under way."""
        while self.pending:
            size = min(self._block_size(), max_size or len(self.pending))
            numbers = [
                self.pending.popleft() for _ in range(min(size, len(self.pending)))
            ]
            self._under_way.update(dict.fromkeys(numbers))
            yield _Block(numbers, [self._cells[number] for number in numbers])

    def _block_size(self) -> int:
        if self._seconds_per_cell is None:
            return 1
        size = _block_seconds(self._n_workers) / max(self._seconds_per_cell, 1e-6)
        # Blocks become smaller towards the end, so that all workers end together.
        if self._n_workers > 1:
            size = min(size, len(self.pending) / (2 * self._n_workers))
        return max(int(size), 1)

    def finish(self, numbers: Sequence[int], n_done: int, seconds: float) -> None:
        """Note that the first `n_done` cells of a block are done; queue the others."""
        for number in numbers:
            self._under_way.pop(number, None)
        self.pending.extendleft(reversed(numbers[n_done:]))
        self._seconds_per_cell = seconds / n_done

    def lose(self, numbers: Sequence[int] | None) -> None:
        """Queue what was under way when a worker died, last.

        A lost pool of processes does not tell which cells ended it, so all that were
        under way are suspects. Dask names the block, after it has moved it to several
        workers: its cells run alone next.
        """
        under_way, self._under_way = list(self._under_way), {}
        if numbers is None:
            self._losses.update(under_way)
        else:
            for number in numbers:
                is_second = self._losses[number] >= _MAX_LOSSES - 1
                self._losses[number] = _MAX_LOSSES if is_second else _MAX_LOSSES - 1
        self.given_up += [n for n in under_way if self._losses[n] >= _MAX_LOSSES]
        self.pending.extend(n for n in under_way if self._losses[n] < _MAX_LOSSES)


def _open_local(
    backend: str, n_workers: int, run: Callable[[Any], Any], stack: ExitStack
) -> _Stream:
    home = os.getpid()
    if backend == "threading":
        # Linear algebra has one setting per process. Cells that overlap in threads
        # cannot restore it, so it is restored here, when all are done.
        stack.enter_context(ThreadpoolController().limit(limits=1))
        home = 0
    compute = partial(_compute_block, run, home, _block_seconds(n_workers))
    return partial(_joblib_stream, backend, n_workers, compute)


def _joblib_stream(
    backend: str,
    n_workers: int,
    compute: Callable[[_Block], _Done],
    blocks: Iterable[_Block],
    ahead: int,
) -> Iterator[_Done]:
    from joblib.externals.loky.process_executor import BrokenProcessPool

    # joblib sets no environment for threads, and refuses the option there.
    inner = {"inner_max_num_threads": 1} if backend == "loky" else {}
    with parallel_config(backend=backend, n_jobs=n_workers, **inner):
        parallel = Parallel(
            return_as="generator_unordered", pre_dispatch=ahead, batch_size=1
        )
        results = parallel(delayed(compute)(block) for block in blocks)
        try:
            yield from results
        except BrokenProcessPool as error:
            raise WorkerLost(str(error)) from error
        finally:
            with warnings.catch_warnings():
                # joblib warns that the remaining blocks are cancelled; they should be.
                warnings.simplefilter("ignore", UserWarning)
                results.close()


def _check_dask(owner: str) -> None:
    try:
        import_module("distributed")
    except ImportError:
        got = Got("'dask', which is not installed")
        hint = f"Run `{how_to_get('dask')}`."
        fail("backend", "installed", got, owner=owner, hint=hint)


def _open_dask(
    address: str | None,
    jobs: int | None,
    run: Callable[[Any], Any],
    owner: str,
    stack: ExitStack,
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
        fail("address", contract, address, owner=owner, hint=hint)
    try:
        client = distributed.Client(target, set_as_default=False)
    except (OSError, ValueError, TypeError, ImportError, AttributeError) as error:
        got = Got(f"{address!r} ({' '.join(str(error).split())})")
        fail("address", "the address of a running scheduler", got, owner=owner)
    stack.enter_context(_closing(client))
    try:
        client.wait_for_workers(1, timeout=_FIRST_WORKER_TIMEOUT)
        n_cores = sum(client.ncores().values())
    except (OSError, RuntimeError) as error:
        raise _disconnected(owner) from error
    n_workers = jobs or n_cores
    # Dask runs all that it is given at once, so a smaller `jobs` limits what it is
    # given. A larger one counts workers that have not started yet.
    limit = n_workers if n_workers < n_cores else 2 * n_workers
    compute = partial(_compute_block, run, 0, _block_seconds(n_workers))
    stream = partial(_dask_stream, client, compute, limit)
    return n_workers, partial(_while_connected, client, stream, owner)


@contextmanager
def _closing(client: Any) -> Iterator[None]:
    """Close a client at the end, also if its scheduler is gone."""
    try:
        yield
    finally:
        with suppress(Exception):
            client.close(timeout=5)


def _while_connected(
    client: Any,
    stream: _Stream,
    owner: str,
    blocks: Iterable[_Block],
    ahead: int,
) -> Iterator[_Done]:
    """Yield what `stream` does; raise a UsageRuntimeError if the scheduler is gone."""
    from concurrent.futures import CancelledError

    try:
        yield from stream(blocks, ahead)
    except (OSError, CancelledError, RuntimeError) as error:
        # A lost connection cancels all futures; the client then tries to reconnect.
        if isinstance(error, RuntimeError) and client.status == "running":
            raise
        raise _disconnected(owner) from error


def _disconnected(owner: str) -> UsageRuntimeError:
    return UsageRuntimeError(
        f"{owner}: the connection to the scheduler was lost. All finished cells are "
        "stored; the same call again computes the others."
    )


def _dask_stream(
    client: Any,
    compute: Callable[[_Block], _Done],
    limit: int,
    blocks: Iterable[_Block],
    ahead: int,
) -> Iterator[_Done]:
    distributed: Any = import_module("distributed")
    waiting = iter(blocks)
    finished = distributed.as_completed(loop=client.loop, raise_errors=False)
    numbers: dict[str, list[int]] = {}

    def submit(count: int) -> None:
        for block in islice(waiting, count):
            future = client.submit(compute, block, pure=False)
            numbers[future.key] = block.numbers
            finished.add(future)

    submit(min(ahead, limit))
    for future in finished:
        try:
            done = future.result()
        except distributed.KilledWorker as error:
            raise WorkerLost(str(error), numbers[future.key]) from error
        submit(1)
        yield done


def _compute_block(
    run: Callable[[Any], Any], home: int, seconds: float, block: _Block
) -> _Done:
    """Compute cells one after the other, in a worker.

    A block that takes twice as long as planned is given back unfinished, so that one
    worker does not keep many long cells to itself.

    Parameters
    ----------
    run
        The function of a cell.
    home
        Process that started the worker processes; 0 for threads and clusters.
    seconds
        Planned duration of a block.
    block
        The cells.
    """
    results: list[Any] = []
    began = time.perf_counter()
    with _one_thread(home), threads(1), reporting(_ignore):
        for cell in block.cells:
            results.append(run(cell))
            if time.perf_counter() - began > 2 * seconds:
                break
    return block.numbers, results, time.perf_counter() - began


def _ignore(units: float) -> None:
    """Discard progress within a cell: a sweep counts whole cells."""


def _one_thread(home: int) -> AbstractContextManager[object]:
    """Limit linear algebra to one thread.

    The limit is undone only where cells run one after the other in the process that
    started the sweep. Elsewhere blocks of one process may overlap, and the first one
    to end would undo it for all.
    """
    limits = _linear_algebra(len(sys.modules)).limit(limits=1)
    if home == os.getpid():
        return limits
    if home:
        follow_parent(home)
    return nullcontext()


@lru_cache(maxsize=1)
def _linear_algebra(n_modules: int) -> ThreadpoolController:
    """Find libraries that have threads; again only after further imports."""
    del n_modules
    return ThreadpoolController()


def follow_parent(home: int) -> None:
    """Let a worker process ignore Ctrl-C, and end when process `home` has ended.

    Otherwise workers of a killed sweep would finish their cells beside a new sweep.
    """
    global _has_parent_check
    if _has_parent_check:
        return
    _has_parent_check = True
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(home,), daemon=True).start()


def _end_with(home: int) -> None:
    while os.getppid() == home:
        time.sleep(_PARENT_CHECK_SECONDS)
    os._exit(1)
