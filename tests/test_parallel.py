import os
import signal
import threading

import pytest

from eigenheads._parallel import (
    RunPool,
    advance,
    blocks,
    interrupted_between_blocks,
    n_threads,
    progress_bar,
    reporting,
    threads,
    weighing,
)


def test_threads_follow_context_then_environment_then_cores(monkeypatch):
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    assert cores is None or n_threads() == cores
    monkeypatch.setenv("NUMBA_NUM_THREADS", "1")
    assert n_threads() == 1
    with threads(3):
        assert n_threads() == 3


def test_a_count_of_threads_must_be_positive():
    with pytest.raises(ValueError, match="threads: `count` must be an integer >= 1"):
        threads(0).__enter__()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_run_is_worked_on_once(count):
    seen, lock = [], threading.Lock()

    def work(run):
        with lock:
            seen.append(run)

    with threads(count), RunPool(7) as pool:
        pool.each(work)
    assert sorted(seen) == list(range(7))


@pytest.mark.parametrize("count", [1, 2])
def test_the_caller_hears_of_every_run_that_is_done(count):
    here, heard, finished = threading.get_ident(), [], []
    with threads(count), RunPool(5) as pool:
        pool.each(
            finished.append,
            lambda: heard.append((threading.get_ident(), len(finished))),
        )
    assert [ident for ident, _ in heard] == [here] * 5
    assert all(done >= i for i, (_, done) in enumerate(heard, start=1))


@pytest.mark.parametrize("count", [1, 3])
def test_an_error_in_a_run_reaches_the_caller(count):
    def work(run):
        if run == 2:
            raise ArithmeticError("run 2")

    with (
        threads(count),
        RunPool(4) as pool,
        pytest.raises(ArithmeticError, match="run 2"),
    ):
        pool.each(work)


def test_progress_goes_to_the_listener_and_nowhere_else():
    heard = []
    advance(1)
    with reporting(heard.append):
        advance(2)
    advance(3)
    assert heard == [2]


def test_work_can_be_weighed():
    heard = []
    with reporting(heard.append), weighing(0.5):
        advance(4)
    with weighing(0.5):
        advance(4)
    assert heard == [2.0]


def test_ctrl_c_waits_for_the_next_report_and_a_second_one_does_not():
    with pytest.raises(KeyboardInterrupt), interrupted_between_blocks():
        os.kill(os.getpid(), signal.SIGINT)
        reached = "the end of the block"
        advance(1)
        reached = "too far"
    assert reached == "the end of the block"
    with pytest.raises(KeyboardInterrupt), interrupted_between_blocks():
        os.kill(os.getpid(), signal.SIGINT)
        reached = "after the first"
        os.kill(os.getpid(), signal.SIGINT)
        reached = "too far"
    assert reached == "after the first"


def test_ctrl_c_is_not_lost_when_nothing_is_reported():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupted_between_blocks():
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_keep_their_interrupts():
    handlers = []

    def work():
        with interrupted_between_blocks():  # raises in threads if it set a handler
            handlers.append(signal.getsignal(signal.SIGINT))
            advance(1)

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [before]


def test_without_a_terminal_progress_is_a_line_now_and_then(capsys, monkeypatch):
    clock = iter([0.0, 4.0, 12.0, 13.0, 40.0])
    monkeypatch.setattr("eigenheads._parallel.time.monotonic", lambda: next(clock))
    with progress_bar(8, description="runs"):
        for _ in range(4):
            advance(2)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["runs: 50% done, 16 s left", "runs: 100% done, 1 s left"]


def test_stored_results_do_not_count_as_speed(capsys, monkeypatch):
    # Thirty stored cells, after the data was read; then cells of eight minutes.
    clock = iter([0.0, *[7.0 + 0.03 * cell for cell in range(30)], 487.87])
    monkeypatch.setattr("eigenheads._parallel.time.monotonic", lambda: next(clock))
    with progress_bar(90, description="cells"):
        for _ in range(31):
            advance(1)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["cells: 34% done, 472 min left"]  # 59 cells


def test_a_terminal_shows_a_bar(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar(3, description="terminal"):
        advance(3)
    assert "terminal" in capsys.readouterr().err


def test_blocks_cover_all_steps():
    assert list(blocks(0, size=4)) == []
    assert [start for start, _ in blocks(10, size=4)] == [0, 4, 8]
    assert sum(stop - start for start, stop in blocks(10, size=4)) == 10
