"""The same bytes from Dask and from Ray, also when one of their workers is killed."""

import os
import signal
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from sweep_cells import EXPERIMENT

from eigenheads.experiments import sweep

GRID = {"x": "0:2:5", "n": "1,4"}


def bytes_of(result):
    return [(result.folder / name).read_bytes() for name in ("table.npz", "table.csv")]


def swept(out, *, grid=GRID, **options):
    return bytes_of(
        sweep(EXPERIMENT, grid=grid, seeds=12, preset="slow", out=out, **options)
    )


# Dask's own warnings about ports and sockets are none of ours.
@pytest.mark.filterwarnings("default")
def test_dask_gives_the_same_bytes_though_a_worker_is_killed(tmp_path):
    distributed = pytest.importorskip("distributed")
    import dask

    # Workers that would use two threads each, if nobody told them otherwise.
    two = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), 2)
    with dask.config.set({"distributed.nanny.pre-spawn-environ": two}):
        cluster = distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        )
    with cluster, distributed.Client(cluster, set_as_default=False) as client:
        (victim, *_) = client.run(os.getpid).values()
        out, gate = tmp_path / "dask", tmp_path / "gate"
        grid = {**GRID, "gate": [str(gate)]}

        def strike():
            deadline = time.monotonic() + 60
            while len(list(out.rglob("cells-*/*.npz"))) < 3:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.01)
            os.kill(victim, signal.SIGKILL)
            gate.touch()

        striker = threading.Thread(target=strike)
        striker.start()
        address = cluster.scheduler_address
        clustered = swept(out, grid=grid, backend="dask", address=address)
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
        pytest.raises(ValueError, match=r"`address` must be that of a running sched"),
    ):
        swept(tmp_path, backend="dask", address="tcp://127.0.0.1:9")
    assert distributed


if find_spec("ray"):  # not part of the development environment
    # Ray's own warnings about files and processes are none of ours.
    @pytest.mark.filterwarnings("default")
    def test_ray_gives_the_same_bytes_though_a_worker_is_killed(tmp_path):
        grid = {"x": "0:2:5", "flag": ["", str(tmp_path / "flag")]}
        options = {"grid": grid, "seeds": 6, "preset": "slow", "jobs": 2}
        struck = sweep(EXPERIMENT, **options, backend="ray", out=tmp_path / "ray")
        assert (tmp_path / "flag").exists()
        assert struck.computed == 60
        straight = sweep(EXPERIMENT, **options, out=tmp_path / "here")
        assert bytes_of(struck) == bytes_of(straight)

    @pytest.mark.filterwarnings("default")
    def test_one_job_on_ray_is_one_cell_at_a_time_in_one_thread(tmp_path):
        table = sweep(
            EXPERIMENT,
            grid={"word": "threads", "x": "0:1:4"},
            seeds=2,
            preset="slow",
            backend="ray",
            jobs=1,
            out=tmp_path,
        ).table
        assert set(table["own"]) == set(table["blas"]) == {1.0}
        order = table["began"].argsort()
        assert (table["began"][order][1:] >= table["ended"][order][:-1]).all()

    def test_a_ray_cluster_that_is_not_there_is_named(tmp_path, monkeypatch):
        # Where Ray looks which cluster was started last.
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        with pytest.raises(
            ValueError, match=r"`address` must be that of a running Ray"
        ):
            swept(tmp_path, backend="ray", address="auto")


def test_a_backend_that_is_not_installed_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        ValueError, match=r"'ray', which is not installed. Run `pip install"
    ):
        swept(tmp_path, backend="ray")
