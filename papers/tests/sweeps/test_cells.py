"""Finished cells and jobs are reused; a killed experiment ends with equal bytes."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from eigenheads_papers import Listener, StoreError, reproduce
from eigenheads_papers.sweeps.cells import (
    CellResult,
    CellStore,
    keeping_jobs,
    run_jobs,
)

KEY = "teo2024/language"


def double(folder, jobs, calls, afresh=False):
    """Run `jobs` as `reproduce` would; note in `calls` which were computed."""

    def work(*job):
        calls.append(job)
        return np.array([2.0 * job[0], np.nan])

    heard = []
    with keeping_jobs(folder, afresh=afresh) as kept:
        made = run_jobs("double", work, jobs, n_workers=1, done=lambda: heard.append(1))
    assert len(heard) == len(jobs)
    return np.array(made), kept


def test_files_that_disagree_are_noticed(tmp_path):
    store = CellStore(tmp_path)
    address = ("0" * 32, 0)
    store.add([(address, CellResult({"a": 1.0, "b": np.nan}))])
    store.add([(address, CellResult({"b": np.nan, "a": 1.0}, seconds=2.0))])
    with pytest.raises(StoreError, match="must agree with the other files"):
        store.add([(address, CellResult({"a": 2.0, "b": np.nan}))])
    with pytest.raises(StoreError, match="must agree"):
        CellStore(tmp_path)


def test_jobs_are_addressed_by_their_content(tmp_path):
    calls = []
    data = np.arange(3.0)
    one, _ = double(tmp_path, [(1, data), (2, data)], calls)
    np.testing.assert_array_equal(one[:, 0], [2.0, 4.0])
    # Another order, one new: only that one is computed.
    more, finished = double(tmp_path, [(3, data), (2, data.copy()), (1, data)], calls)
    np.testing.assert_array_equal(more[:, 0], [6.0, 4.0, 2.0])
    assert np.isnan(more[:, 1]).all()
    assert [number for number, _ in calls] == [1, 2, 3]
    assert finished.seconds > 0
    # Other data are another job, and so is all of it if asked for.
    double(tmp_path, [(1, data + 1)], calls)
    double(tmp_path, [(1, data)], calls, afresh=True)
    assert len(calls) == 5
    finished.remove()
    assert not list(tmp_path.iterdir())


def test_a_damaged_job_is_done_again(tmp_path):
    calls = []
    double(tmp_path, [(1,), (2,)], calls)
    first, _ = sorted(tmp_path.rglob("*.safetensors"))
    first.write_bytes(first.read_bytes()[:-30])
    again, _ = double(tmp_path, [(1,), (2,)], calls)
    assert len(calls) == 3
    np.testing.assert_array_equal(again[:, 0], [2.0, 4.0])


def test_without_a_folder_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (made,) = run_jobs(
        "n", lambda n: np.ones(n), [(1,)], n_workers=1, done=lambda: None
    )
    assert made == np.ones(1)
    assert not list(tmp_path.iterdir())


@pytest.mark.torch
def test_a_killed_experiment_does_only_what_is_missing_and_to_the_same_bytes(tmp_path):
    killed, straight = tmp_path / "killed", tmp_path / "straight"
    script = (
        "from eigenheads_papers import reproduce;"
        f"reproduce({KEY!r}, preset='smoke', out={str(killed)!r}, jobs=1)"
    )
    with subprocess.Popen([sys.executable, "-c", script]) as running:
        deadline = time.monotonic() + 120
        while len(list(killed.rglob("jobs/*.safetensors"))) < 3:
            assert running.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        os.kill(running.pid, signal.SIGKILL)
    assert not list(killed.rglob("manifest.json"))
    before = {*killed.rglob("jobs/*.safetensors")}
    assert 3 <= len(before) < 14

    class Watch(Listener):
        """Sees which jobs are on disk just before the last one."""

        done, kept = 0.0, ()

        def advance(self, units):
            self.done += units
            if self.done == 13:
                self.kept = [*killed.rglob("jobs/*.safetensors")]

    watch = Watch()
    (resumed,) = reproduce(KEY, preset="smoke", out=killed, jobs=1, listener=watch)
    assert len(watch.kept) == 13
    assert before <= set(watch.kept)
    (whole,) = reproduce(KEY, preset="smoke", out=straight, jobs=1)
    assert not resumed.reused
    assert resumed.claims == whole.claims
    for name in ("table.safetensors", "figure.svg"):
        one, other = (next(root.rglob(name)) for root in (killed, straight))
        assert one.read_bytes() == other.read_bytes()
    # With the result, the jobs are gone.
    assert not list(killed.rglob("jobs"))
