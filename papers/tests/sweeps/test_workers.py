"""Workers return every cell once, on each backend and whatever worker is killed."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from sweep_cells import EXPERIMENT

from eigenheads.extend import UsageError
from eigenheads_papers import SweepError, sweep
from eigenheads_papers.sweeps._workers import CellsLost, run_cells

GRID = {"x": "0:2:5", "n": "1,4"}


def bytes_of(result):
    return [
        (result.folder / name).read_bytes()
        for name in ("table.safetensors", "table.csv")
    ]


def swept(out, *, grid=GRID, **options):
    return bytes_of(
        sweep(EXPERIMENT, grid=grid, seeds=12, preset="slow", out=out, **options)
    )


# A scheduler and its worker in a process of their own; the address is its output.
CLUSTER = """
from distributed import LocalCluster
cluster = LocalCluster(n_workers=1, threads_per_worker=1, processes=False,
                       host="127.0.0.1", protocol="tcp", dashboard_address=None)
print(cluster.scheduler_address, flush=True)
input()
"""


@pytest.mark.filterwarnings("default")
def test_a_scheduler_that_is_killed_ends_the_sweep_in_a_sentence(tmp_path):
    pytest.importorskip("distributed")
    out, gate = tmp_path / "out", tmp_path / "gate"
    # The cluster does not know the folder of the cells: the sweep says where it is.
    cluster = subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )

    # No deadline: on a busy machine the first cell may take minutes.
    has_ended = threading.Event()
    log, was_silent = logging.getLogger("distributed.client"), []

    def strike():
        while not list(out.rglob("cells-*/*.safetensors")) and not has_ended.wait(0.01):
            pass
        was_silent.append(log.disabled)
        cluster.kill()

    striker = threading.Thread(target=strike)
    try:
        address = cluster.stdout.readline().strip()
        striker.start()
        # Cells wait at the gate, which stays closed: none finishes after the kill.
        with pytest.raises(UsageError, match="the connection to the scheduler was"):
            swept(
                out,
                grid={**GRID, "gate": [str(gate)]},
                backend="dask",
                address=address,
            )
    finally:
        has_ended.set()
        cluster.kill()
        striker.join()
        cluster.communicate()
    # Otherwise Dask logs a traceback if it tries to connect again at that moment.
    assert was_silent == [True]
    assert not log.disabled
    stored = len(list(out.rglob("cells-*/*.safetensors")))
    assert stored
    # The same call on other workers computes what is missing.
    gate.touch()
    again = swept(out, grid={**GRID, "gate": [str(gate)]}, jobs=1)
    assert again == swept(
        tmp_path / "whole", grid={**GRID, "gate": [str(gate)]}, jobs=1
    )


# Dask's own warnings about ports and sockets are none of ours.
@pytest.mark.filterwarnings("default")
def test_dask_gives_the_same_bytes_though_a_worker_is_killed(tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed")
    import dask

    # Workers that would use two threads each, if nobody told them otherwise.
    two = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), 2)
    for name in two:  # a variable of this process would win
        monkeypatch.delenv(name, raising=False)
    with dask.config.set({"distributed.nanny.pre-spawn-environ": two}):
        cluster = distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        )
    with cluster, distributed.Client(cluster, set_as_default=False) as client:
        (victim, *_) = client.run(os.getpid).values()
        out, gate = tmp_path / "dask", tmp_path / "gate"
        grid = {**GRID, "gate": [str(gate)]}

        has_ended = threading.Event()

        def strike():
            while len(list(out.rglob("cells-*/*.safetensors"))) < 3:
                if has_ended.wait(0.01):
                    return
            os.kill(victim, signal.SIGKILL)
            gate.touch()

        striker = threading.Thread(target=strike)
        striker.start()
        address = cluster.scheduler_address
        try:
            clustered = swept(out, grid=grid, backend="dask", address=address)
        finally:
            has_ended.set()
            striker.join()
        assert victim not in client.run(os.getpid).values()
        threads = sweep(
            EXPERIMENT,
            grid={"word": "threads", "x": "0:1:4"},
            seeds=2,
            preset="slow",
            backend="dask",
            jobs=1,  # of the two
            address=cluster.scheduler_address,
            out=tmp_path / "threads",
        ).table
        assert set(threads["own"]) == set(threads["blas"]) == {1.0}
        order = threads["began"].argsort()
        assert (threads["began"][order][1:] >= threads["ended"][order][:-1]).all()
    assert clustered == swept(tmp_path / "here", grid=grid, jobs=2)


def test_a_scheduler_that_is_not_there_is_named(tmp_path):
    distributed = pytest.importorskip("distributed")
    import dask

    with (
        dask.config.set({"distributed.comm.timeouts.connect": "0.2s"}),
        pytest.raises(
            ValueError, match=r"`address` must be the address of a running sched"
        ),
    ):
        swept(tmp_path, backend="dask", address="tcp://127.0.0.1:9")
    assert distributed


@pytest.mark.filterwarnings("default")
def test_a_cell_that_kills_its_dask_workers_is_named_and_the_others_stored(tmp_path):
    pytest.importorskip("distributed")
    import dask

    options = {"seeds": 1, "preset": "smoke", "out": tmp_path}
    found = r"1 cell\(s\) ended their worker.*word=deadly, seed=0\."
    with (
        # Without Dask's own trials on other workers, which take seconds each.
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        pytest.raises(SweepError, match=found),
    ):
        sweep(
            EXPERIMENT, grid={"word": "a,deadly,b"}, backend="dask", jobs=2, **options
        )
    assert sweep(EXPERIMENT, grid={"word": "a,b"}, jobs=1, **options).computed == 0


def test_dask_that_is_not_installed_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(
        ValueError, match=r"'dask', which is not installed. Run `pip install"
    ):
        swept(tmp_path, backend="dask")


def identity(cell):
    return cell


def die_once(path):
    """Kill the worker at the first call with this path."""
    if not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return path


@pytest.mark.parametrize("backend", ["loky", "threading"])
@pytest.mark.parametrize("jobs", [1, 2])
def test_every_cell_is_run_once(backend, jobs):
    results = list(run_cells(range(300), identity, backend=backend, jobs=jobs))
    assert len(results) == 300
    assert dict(results) == {number: number for number in range(300)}


def test_no_cells_need_no_workers():
    assert list(run_cells([], identity, jobs=2)) == []


def test_workers_that_die_are_replaced(tmp_path):
    cells = [str(tmp_path / f"{number}") for number in range(3)]
    made = dict(run_cells(cells, die_once, jobs=2))
    assert made == dict(enumerate(cells))


def deadly(cell):
    if cell in (2, 5):
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    return cell


@pytest.mark.parametrize("pause", [pytest.param(0.0, marks=pytest.mark.slow), 0.4])
def test_deadly_cells_are_named_after_all_others_are_done(pause):
    made = {}
    with pytest.raises(CellsLost, match=r"2 cell\(s\) ended their worker") as caught:
        for number, result in run_cells(range(8), deadly, jobs=2):
            made[number] = result
            # A result that is read late must not be lost with the next worker.
            time.sleep(pause)
    assert set(caught.value.numbers) == {2, 5}
    assert set(made) == {0, 1, 3, 4, 6, 7}


def raises(cell):
    raise ZeroDivisionError("in a cell")


@pytest.mark.parametrize("jobs", [1, 2])
def test_errors_of_the_function_are_raised(jobs):
    with pytest.raises(ZeroDivisionError, match="in a cell"):
        list(run_cells([1, 2], raises, jobs=jobs))


@pytest.mark.parametrize("address", ["nonsense", "", "tcp://", "http://x:y", "x://y:1"])
def test_an_address_that_is_none_is_named(tmp_path, address):
    pytest.importorskip("distributed")
    import dask

    with (
        dask.config.set({"distributed.comm.timeouts.connect": "0.2s"}),
        pytest.raises(ValueError, match=r"sweep: `address` must be the address of a"),
    ):
        swept(tmp_path, backend="dask", address=address)
