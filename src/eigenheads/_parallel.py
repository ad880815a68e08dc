"""Parallel runs in threads, progress, and a prompt reaction to Ctrl-C.

Numba kernels release the interpreter lock, so threads suffice, and nothing is copied or
pickled. Every run has its own generator and memory: the number of threads changes the
time and never the result.
"""

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import FrameType
from typing import Protocol

from eigenheads._checks import check_count
from eigenheads._errors import for_workers
from eigenheads._notebook import NotebookBar, is_notebook

# Seconds between two lines of progress that are not on a terminal.
_SECONDS_PER_LINE = 10.0
# Seconds after the first report in which stored results are reported.
_SECONDS_OF_STORED = 1.0
_THREADS: ContextVar[int | None] = ContextVar("eigenheads_threads", default=None)
_INTERRUPT: ContextVar[threading.Event | None] = ContextVar(
    "eigenheads_interrupt", default=None
)
_SINK: ContextVar[Callable[[float], None] | None] = ContextVar(
    "eigenheads_progress", default=None
)


def n_threads() -> int:
    """Return the number of threads that a simulation may use.

    In order of precedence: the count of :func:`threads`; ``NUMBA_NUM_THREADS``, which
    joblib sets in worker processes so that workers times threads never exceeds the
    cores; the cores that this process may run on.
    """
    chosen = _THREADS.get()
    if chosen is not None:
        return chosen
    available = _available_cores()
    limit = os.environ.get("NUMBA_NUM_THREADS", "")
    return min(available, int(limit)) if limit.isdigit() and int(limit) else available


def _available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Use at most `count` threads inside this context."""
    token = _THREADS.set(check_count("count", count))
    try:
        yield
    finally:
        _THREADS.reset(token)


@contextmanager
def reporting(sink: Callable[[float], None]) -> Iterator[None]:
    """Call `sink` with units of finished work (steps over all runs) in this context."""
    token = _SINK.set(sink)
    try:
        yield
    finally:
        _SINK.reset(token)


@contextmanager
def weighing(weight: float) -> Iterator[None]:
    """Count a unit of work in this context as `weight` units."""
    sink = _SINK.get()
    with reporting(lambda units: None if sink is None else sink(weight * units)):
        yield


@contextmanager
def interrupted_between_blocks() -> Iterator[None]:
    """Delay KeyboardInterrupt until progress is reported.

    Python may raise KeyboardInterrupt anywhere, also inside the callbacks by which LLVM
    loads compiled code; there it is lost, and the process may crash. In this context
    Ctrl-C is noted and raised by the next :func:`advance`, or at the end. A second
    Ctrl-C is raised at once. Outside the main thread nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupt = threading.Event()

    def remember(number: int, frame: FrameType | None) -> None:
        if interrupt.is_set():
            raise KeyboardInterrupt
        interrupt.set()

    before = signal.signal(signal.SIGINT, remember)
    token = _INTERRUPT.set(interrupt)
    try:
        yield
        _raise_if_interrupted()
    finally:
        _INTERRUPT.reset(token)
        signal.signal(signal.SIGINT, before)


def _raise_if_interrupted() -> None:
    interrupt = _INTERRUPT.get()
    if interrupt is not None and interrupt.is_set():
        raise KeyboardInterrupt


def advance(units: float) -> None:
    """Report `units` of finished work to the sink of :func:`reporting`."""
    _raise_if_interrupted()
    sink = _SINK.get()
    if sink is not None:
        sink(units)


@contextmanager
def progress_bar(total: float, *, description: str = "steps") -> Iterator[None]:
    """Show finished work and the time left on standard error inside this context.

    A bar in terminals and notebooks; elsewhere a line of text every few seconds, which
    a file can keep.

    Examples
    --------
    >>> with progress_bar(2.0, description="demo"):
    ...     advance(2.0)
    """
    view = progress_view(total, description)
    try:
        with reporting(view.advance):
            yield
    finally:
        view.close()


class ProgressView(Protocol):
    """A view of finished work."""

    def advance(self, units: float) -> None:
        """Add finished work."""

    def describe(self, description: str) -> None:
        """Change the text of the view."""

    def close(self) -> None:
        """Remove the view, or leave it as it is."""


def progress_view(total: float, description: str) -> ProgressView:
    """Return the view of :func:`progress_bar`, for callers that describe parts."""
    from rich.console import Console

    if is_notebook():
        return NotebookBar(total, description)
    if Console(stderr=True).is_terminal:
        return _TerminalBar(total, description)
    return _ProgressLines(total, description)


class _TerminalBar:
    """A bar of rich."""

    def __init__(self, total: float, description: str) -> None:
        from rich.console import Console
        from rich.progress import Progress, TimeElapsedColumn

        columns = (*Progress.get_default_columns(), TimeElapsedColumn())
        console = Console(stderr=True)
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task(description, total=total)
        self._bar.start()

    def advance(self, units: float) -> None:
        self._bar.advance(self._task, units)

    def describe(self, description: str) -> None:
        self._bar.update(self._task, description=description)

    def close(self) -> None:
        self._bar.stop()


class _ProgressLines:
    """Lines of text with the share of finished work, for files and pipes."""

    def __init__(self, total: float, description: str) -> None:
        self._total, self._description, self._done = total, description, 0.0
        self._next = time.monotonic() + _SECONDS_PER_LINE
        # Times of the first report and of the last one soon after it, and work by then.
        self._first = self._begun = math.inf
        self._stored = 0.0

    def advance(self, units: float) -> None:
        """Add finished work; write a line if the last one is some seconds old."""
        self._done += units
        now = time.monotonic()
        self._first = min(self._first, now)
        if now - self._first <= _SECONDS_OF_STORED:
            # Stored results come first, and take no time: they are no speed.
            self._begun, self._stored = now, self._done
        elapsed = now - self._begun
        if now < self._next or self._done <= self._stored or elapsed <= 0:
            return
        self._next = now + _SECONDS_PER_LINE
        speed = (self._done - self._stored) / elapsed
        seconds = max(0.0, self._total - self._done) / speed
        share = min(1.0, self._done / self._total) if self._total else 1.0
        text = f"{self._description}: {share:.0%} done, {duration(seconds)} left\n"
        sys.stderr.write(text)
        sys.stderr.flush()

    def describe(self, description: str) -> None:
        self._description = description

    def close(self) -> None:
        pass


def duration(seconds: float) -> str:
    """Return a time in words.

    Examples
    --------
    >>> duration(12.3), duration(600)
    ('12 s', '10 min')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min"


class RunPool:
    """Thread pool for the runs of one simulation.

    Examples
    --------
    >>> with RunPool(3) as pool:
    ...     pool.each(lambda run: None)
    """

    def __init__(self, n_runs: int) -> None:
        self._n_runs = n_runs
        workers = min(n_threads(), n_runs)
        self._executor = ThreadPoolExecutor(workers) if workers > 1 else None

    def __enter__(self) -> "RunPool":
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def each(
        self, work: Callable[[int], None], done: Callable[[], None] | None = None
    ) -> None:
        """Call `work` on every run, and `done` in this thread after each of them."""
        waiting: Iterable[Callable[[], None]]
        if self._executor is None:
            waiting = (partial(work, run) for run in range(self._n_runs))
        else:
            submit, work = self._executor.submit, for_workers(work)
            waiting = [submit(work, run).result for run in range(self._n_runs)]
        for finish in waiting:
            finish()
            if done is not None:
                done()


def blocks(n_steps: int, *, size: int) -> Iterator[tuple[int, int]]:
    """Yield ``(start, stop)`` of consecutive blocks that cover ``range(n_steps)``.

    Examples
    --------
    >>> list(blocks(5, size=2))
    [(0, 2), (2, 4), (4, 5)]
    """
    for start in range(0, n_steps, size):
        yield start, min(start + size, n_steps)
