"""Sweeps give one table, whoever computes it and whatever happens on the way."""

import errno
import importlib
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from sweep_cells import EXPERIMENT

import eigenheads_papers.sweeps.cells as cells_module
from eigenheads_papers import SweepError, sweep
from eigenheads_papers.sweeps.cells import CellStore

GRID = {"x": "0:2:5", "n": "1,4"}


def swept(out, *, grid=GRID, seeds=6, jobs=1, preset="smoke", **options):
    return sweep(
        EXPERIMENT,
        grid=grid,
        seeds=seeds,
        preset=preset,
        jobs=jobs,
        out=out,
        **options,
    )


def bytes_of(result):
    names = ("table.safetensors", "table.csv", "map.svg")
    return [(result.folder / name).read_bytes() for name in names]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return swept(tmp_path_factory.mktemp("whole"))


def test_the_table_is_tidy(whole):
    assert list(whole.table) == ["x", "n", "seed", "b", "a"]
    assert whole.table["n"].dtype == np.int64
    assert len(whole.table["b"]) == 5 * 2 * 6 == whole.computed
    np.testing.assert_array_equal(whole.mean("a"), np.tile([1.0, 4.0], (5, 1)))
    np.testing.assert_array_equal(whole.table["seed"][:6], np.arange(6))
    frame = whole.to_frame()
    assert list(frame.columns) == list(whole.table)
    text = (whole.folder / "table.csv").read_text().splitlines()
    assert text[0] == "x,n,seed,b,a"
    assert float(text[7].split(",")[3]) == whole.table["b"][6]


def test_cells_are_independent_and_standard_normal(whole):
    noise = whole.table["b"] - whole.table["x"]
    assert len(np.unique(noise)) == len(noise)
    # Mean of 60 standard normals: beyond five standard errors once in 1.7 million.
    assert abs(noise.mean()) < 5 / np.sqrt(len(noise))


def test_processes_give_the_same_bytes(whole, tmp_path):
    assert bytes_of(swept(tmp_path, jobs=2)) == bytes_of(whole)


def test_what_is_stored_is_not_computed_again_and_grids_share_cells(tmp_path):
    first = swept(tmp_path, grid={"x": "0,1"}, seeds=2)
    assert first.computed == 4
    assert swept(tmp_path, grid={"x": "0,1"}, seeds=2).computed == 0
    larger = swept(tmp_path, grid={"x": [2.0, 1.0]}, seeds=3)
    assert larger.computed == 4  # x = 2 thrice, and the third seed of x = 1
    assert larger.over_seeds("b")[1, 0] == first.over_seeds("b")[1, 0]


def test_a_full_disk_loses_only_what_was_under_way(tmp_path, monkeypatch):
    written = []
    write = cells_module.write_arrays

    def full(path, arrays):
        if len(written) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, arrays)
        written.append(len(arrays["seed"]))

    monkeypatch.setattr(cells_module, "write_arrays", full)
    with pytest.raises(SweepError, match=r"written: No space left.*the same call"):
        swept(tmp_path / "full", preset="slow")
    monkeypatch.undo()
    resumed = swept(tmp_path / "full", preset="slow")
    whole = swept(tmp_path / "whole", preset="slow", jobs=2)
    assert resumed.computed == whole.computed - sum(written)
    assert bytes_of(resumed) == bytes_of(whole)


def test_a_limit_on_the_size_of_files_leaves_no_half_file(tmp_path):
    swept(tmp_path, grid={"x": "0:1:2"}, seeds=5)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(SweepError, match="File too large"):
            swept(tmp_path, grid={"x": "0:1:2"}, seeds=500)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    (folder,) = tmp_path.glob("test2026/cells/cells-*")
    store = CellStore(folder)
    assert not store.damaged
    assert len(store) == 10
    assert not [path for path in folder.iterdir() if path.suffix != ".safetensors"]
    assert swept(tmp_path, grid={"x": "0:1:2"}, seeds=500).computed == 990


SCRIPT = """
import sys
sys.path.insert(0, {here!r})
from sweep_cells import EXPERIMENT
from eigenheads_papers import sweep
sweep(EXPERIMENT, grid={grid!r}, seeds=20, preset="slow", jobs=2, out={out!r})
"""


def test_killing_the_main_process_loses_only_what_was_under_way(tmp_path):
    """Of 200 cells 60 may run; 13 of them fill a file, and 32 may wait in a batch."""
    out, gate = tmp_path / "killed", tmp_path / "gate"
    grid = {**GRID, "gate": [str(gate)]}
    script = SCRIPT.format(here=str(Path(__file__).parent), grid=grid, out=str(out))
    running = subprocess.Popen([sys.executable, "-c", script])
    with running:
        deadline = time.monotonic() + 120
        while not list(out.rglob("cells-*/*.safetensors")):
            assert time.monotonic() < deadline
            assert running.poll() is None
            time.sleep(0.01)
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
    gate.touch()
    (folder,) = out.rglob("cells-*")
    store = CellStore(folder)
    assert not store.damaged
    assert 0 < len(store) < 200
    resumed = swept(out, grid=grid, seeds=20, preset="slow", jobs=2)
    assert resumed.computed == 200 - len(store)
    straight = swept(tmp_path / "straight", grid=grid, seeds=20, preset="slow", jobs=2)
    assert bytes_of(resumed) == bytes_of(straight)


def test_a_killed_worker_is_replaced(tmp_path):
    grid = {"x": "0:2:5", "flag": ["", str(tmp_path / "flag")]}
    struck = swept(tmp_path / "struck", grid=grid, jobs=2)
    assert (tmp_path / "flag").exists()
    assert struck.computed == 60
    straight = swept(tmp_path / "straight", grid=grid, jobs=1)
    assert bytes_of(struck) == bytes_of(straight)


def test_cells_that_kill_their_worker_are_named_and_the_others_stored(tmp_path):
    grid = {"x": "0,1,2", "word": "a,deadly"}
    with pytest.raises(
        SweepError, match=r"3 cell\(s\) ended their worker.*word=deadly"
    ):
        swept(tmp_path, grid=grid, seeds=1, jobs=2)
    assert swept(tmp_path, grid={"x": "0,1,2", "word": "a"}, seeds=1).computed == 0


def test_two_processes_share_a_store(whole, tmp_path):
    """A second sweep finishes while the first is under way; both end equal."""
    done = []

    class Second:
        def begin(self, total): ...

        def start(self, key, work): ...

        def advance(self, units):
            if not done:
                done.append(True)
                done.append(swept(tmp_path))

    first = swept(tmp_path, listener=Second())
    assert bytes_of(first) == bytes_of(done[1]) == bytes_of(whole)


TOGETHER = """
import sys, time
from pathlib import Path
sys.path.insert(0, {here!r})
from sweep_cells import EXPERIMENT
from eigenheads_papers import sweep
class Waits:
    def begin(self, total):
        Path({out!r}, sys.argv[1]).touch()
        while not Path({out!r}, "go").exists():
            time.sleep(0.001)
    def start(self, key, work): ...
    def advance(self, units): ...
print(sweep(EXPERIMENT, grid={grid!r}, seeds=15, preset="slow", jobs=1, out={out!r},
            listener=Waits()).computed)
"""


def test_two_processes_write_into_one_store_at_the_same_time(tmp_path):
    """Both have seen an empty store when they begin."""
    out = tmp_path / "shared"
    out.mkdir()
    script = TOGETHER.format(here=str(Path(__file__).parent), grid=GRID, out=str(out))
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script, name], stdout=subprocess.PIPE, text=True
        )
        for name in ("one", "two")
    ]
    deadline = time.monotonic() + 120
    while not ((out / "one").exists() and (out / "two").exists()):
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in running)
        time.sleep(0.01)
    (out / "go").touch()
    computed = [int(process.communicate(timeout=120)[0]) for process in running]
    assert computed == [150, 150]
    (folder,) = out.rglob("cells-*")
    store = CellStore(folder)  # raises where files disagree
    assert not store.damaged
    assert len(store) == 150
    shared = swept(out, seeds=15, preset="slow")
    assert shared.computed == 0
    straight = swept(tmp_path / "straight", seeds=15, preset="slow", jobs=2)
    assert bytes_of(shared) == bytes_of(straight)


@pytest.mark.parametrize("harm", [lambda b: b[:-9], lambda b: b"hello", lambda b: b""])
def test_a_damaged_file_is_named_and_its_cells_computed_again(tmp_path, harm):
    before = swept(tmp_path, grid={"x": "0,1"}, seeds=3)
    content = bytes_of(before)
    victim = max(
        tmp_path.rglob("cells-*/*.safetensors"), key=lambda path: path.stat().st_size
    )
    victim.write_bytes(harm(victim.read_bytes()))
    again = swept(tmp_path, grid={"x": "0,1"}, seeds=3)
    assert again.damaged == (victim,)
    assert again.computed > 0
    assert bytes_of(again) == content


def test_a_swapped_name_is_damage_too(tmp_path):
    swept(tmp_path, grid={"x": "0,1"}, seeds=1)
    victim = next(tmp_path.rglob("cells-*/*.safetensors"))
    victim.rename(victim.with_name("0" * 32 + ".safetensors"))
    assert len(swept(tmp_path, grid={"x": "0,1"}, seeds=1).damaged) == 1


def test_parameters_that_allow_no_run_leave_a_gap(tmp_path):
    result = swept(tmp_path, grid={"x": "-1,1"}, seeds=2)
    assert np.isnan(result.mean("b")[0])
    assert np.isfinite(result.mean("b")[1])
    assert result.refused == ("sweep: `x` must be a number >= 0; got -1.0.",)
    assert swept(tmp_path, grid={"x": "-1,1"}, seeds=2).computed == 0
    with pytest.raises(ValueError, match=r"all refused\. The first: .* got -1\.0\.$"):
        swept(tmp_path, grid={"x": "-1"}, seeds=2)


def test_a_mistake_in_the_code_is_told_and_not_stored(tmp_path):
    with pytest.raises(
        SweepError, match=r"2 cell\(s\) failed \(ZeroDivisionError: a m"
    ):
        swept(tmp_path, grid={"x": "1,13"}, seeds=2)
    assert swept(tmp_path, grid={"x": "1"}, seeds=2).computed == 0
    # A sweep stops after the block with the tenth failure: 25 cells take half a second.
    with pytest.raises(SweepError, match=r"[1-4]\d cell\(s\) failed"):
        swept(tmp_path, grid={"x": "13"}, seeds=100, preset="slow")


OWN_MODULE = """
import numpy as np
from eigenheads_papers import Cells, Experiment
from dataclasses import dataclass

@dataclass(frozen=True)
class Params:
    x: float = 1.0

def run(params, rng):
    return {{"b": {value}}}

experiment = Experiment(
    key="own/cells", title="t", source="ours", about="a",
    presets={{"smoke": Params()}}, simulate=None, check=None, draw=None,
    cells=Cells(presets={{"smoke": Params()}}, run=run, shows=("b",)),
)
"""


def test_a_module_of_the_user_is_compared_by_its_bytes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    computed = []
    for name, value in (("first", 1.0), ("same", 1.0), ("changed", 2.0)):
        (tmp_path / f"{name}.py").write_text(OWN_MODULE.format(value=value))
        experiment = importlib.import_module(name).experiment
        result = sweep(
            experiment,
            grid={"x": "1"},
            seeds=2,
            jobs=1,
            preset="smoke",
            out=tmp_path / "results",
        )
        assert list(result.table["b"]) == [value, value]
        computed.append(result.computed)
    assert computed == [2, 0, 2]


def test_force_computes_stored_cells_again(tmp_path):
    first = swept(tmp_path, grid={"x": "1"}, seeds=2)
    assert swept(tmp_path, grid={"x": "1"}, seeds=2).computed == 0
    again = swept(tmp_path, grid={"x": "1"}, seeds=2, force=True)
    assert again.computed == first.computed == 2


def test_an_experiment_without_cells_reports_its_claims(tmp_path):
    result = sweep(
        "marion2025/bayes",
        grid={"n_samples": "50,100"},
        seeds=1,
        preset="smoke",
        jobs=1,
        out=tmp_path,
    )
    assert result.names[0] == "held"
    assert result.names[1] == "claim_01"


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_cell_has_one_thread(tmp_path, jobs):
    grid = {"word": "threads", "x": "0,1"}
    result = swept(tmp_path, grid=grid, seeds=2, jobs=jobs)
    assert set(result.table["own"]) == set(result.table["blas"]) == {1.0}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"grid": {"y": "1"}},
            r"`grid` must be values of one or more of x, n, loud, word",
        ),
        ({"grid": {"second": "1"}}, "Did you mean 'seconds'"),
        ({"grid": {"shape": "1"}}, "`grid` must be values of one or more of"),
        ({"grid": {"x": ""}}, "`x` must be finite numbers; got ''"),
        ({"grid": {"x": []}}, "`x` must be at least one value"),
        ({"grid": {"x": "1,1"}}, "`x` must be distinct values"),
        ({"grid": {"x": "1:2"}}, "`x` must be a,b,c or low:high:count"),
        ({"grid": {"x": "0:2:3:log"}}, "`x` must be positive at both ends"),
        ({"grid": {"x": "0:2:0"}}, "`x` must be an integer from 1"),
        ({"grid": {"n": "1.5"}}, "`n` must be integers; got '1.5'"),
        ({"grid": {"n": [True]}}, "`n` must be finite numbers"),
        ({"grid": {"loud": "maybe"}}, "`loud` must be true or false"),
        ({"grid": {"word": [1]}}, "`word` must be strings"),
        ({"grid": {"x": "0:1:2000"}, "seeds": 1000}, "at most 1000000 cells"),
        ({"grid": None}, "`grid` must be a mapping of parameter names"),
        ({"seeds": 0}, "`seeds` must be an integer from 1"),
        ({"seeds": "3:1"}, "`seeds` must be a count"),
        ({"seeds": "a"}, "`seeds` must be a count"),
        ({"seeds": "1:2:3"}, "`seeds` must be a count"),
        ({"seeds": "1:99999999999999999999"}, "`seeds` must be a count"),
        ({"seeds": [2**63]}, "`seeds` must be a count"),
        ({"grid": {"n": "1,1e30"}}, r"`n` must be integers below 2\*\*63"),
        ({"seeds": [1, 1]}, "`seeds` must be a count"),
        ({"seeds": [-1]}, "`seeds` must be an integer >= 0"),
        ({"preset": "demo"}, "`preset` must be one of 'smoke', 'slow'"),
        ({"backend": "spark"}, "`backend` must be one of 'loky', 'threading', 'dask'"),
        ({"address": "tcp://x"}, "`address` must be the address of a scheduler"),
        ({"jobs": 0}, "`jobs` must be an integer >= 1"),
        ({"out": None}, "`out` must be the path of a folder"),
    ],
)
def test_junk_is_refused_with_a_sentence(tmp_path, change, sentence):
    options = {"grid": {"x": "1"}, "out": tmp_path, **change}
    with pytest.raises(ValueError, match=rf"^sweep: .*{sentence}"):
        swept(options.pop("out"), **options)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_grids_are_read_as_written(tmp_path):
    grid = {"x": "0.05:0.5:10", "n": "1e2:1e9:8:log", "loud": "true,false", "word": "b"}
    axes = swept(tmp_path, grid=grid, seeds="5:6").axes
    assert axes["x"] == (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)
    assert axes["n"] == tuple(10**k for k in range(2, 10))
    assert all(type(n) is int for n in axes["n"])
    assert axes["loud"] == (True, False)
    assert axes["word"] == ("b",)


def test_a_worker_of_another_version_gets_a_sentence():
    import pickle

    from eigenheads._errors import UsageError
    from eigenheads_papers.sweeps._run import _CellFunction

    elsewhere = _CellFunction(None, "marion2025/fig4", "another version")
    with pytest.raises(UsageError, match="Install the same version on every") as caught:
        elsewhere(None)
    # As it comes back from a cluster.
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), UsageError)
