"""Generated modules: kept on disk, safe for several processes and without a disk."""

import importlib.util
import os
import py_compile
import subprocess
import sys

import pytest

from eigenheads.models import Model, Token
from eigenheads.models._model import cache_folder, load_module

CODE = """
import sys
from eigenheads.models import Model, Token, simulate
def loss(X, w, u, g, p):
    return (X[0] @ w.k - X[0] @ u.key) ** 2
model = Model(loss, weights={"k": "free"}, planted=("key",), tokens=Token())
paths = simulate(model, d=10, step_size=0.01, n_steps=5, n_runs=1, record_every=5,
                 seed=0, start={"k.key": 0.5})
block = model.compiled.exact_block
print(repr(float(paths.final("k.key")[0])), sum(block.stats.cache_hits.values()))
"""


def started(folder):
    environment = os.environ | {"EIGENHEADS_CACHE_DIR": str(folder)}
    environment.pop("NUMBA_CACHE_DIR", None)
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", CODE],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process):
    out, error = process.communicate(timeout=200)
    assert process.returncode == 0, error
    number, hits = out.split()
    return float(number), int(hits)


def test_a_second_process_compiles_nothing(tmp_path):
    # Two first users at once: both get their numbers, and the cache is whole.
    both = [started(tmp_path), started(tmp_path)]
    numbers = {finished(process)[0] for process in both}
    assert len(numbers) == 1
    assert len(list(tmp_path.glob("*.py"))) == 1
    assert not list(tmp_path.glob("*.tmp"))
    again, hits = finished(started(tmp_path))
    assert (again, hits) == (numbers.pop(), 1)


def test_an_edit_of_the_loss_is_another_module():
    def declared(factor):
        def loss(X, w, u, g, p):
            return factor * (X[0] @ w.k) ** 2

        return Model(loss, weights={"k": "free"}, tokens=Token())

    assert declared(1.0).source != declared(2.0).source
    assert declared(2.0).compiled is declared(2.0).compiled
    assert declared(1.0).compiled is not declared(2.0).compiled


def test_without_a_writable_folder_the_module_lives_in_memory(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("EIGENHEADS_CACHE_DIR", str(blocked / "below"))
    module = load_module("NUMBER = 7\n")
    assert module.NUMBER == 7
    assert blocked.read_text() == "not a folder"


def test_a_damaged_file_is_written_again(tmp_path, monkeypatch):
    monkeypatch.setenv("EIGENHEADS_CACHE_DIR", str(tmp_path))
    load_module("NUMBER = 8\n")
    (path,) = tmp_path.glob("*.py")
    path.write_text("NUMBER = ")
    monkeypatch.setattr("eigenheads.models._model._LOADED", {})
    assert load_module("NUMBER = 8\n").NUMBER == 8
    assert path.read_text() == "NUMBER = 8\n"


@pytest.mark.parametrize("damage", ["bytes", "pipe", "large"])
def test_any_damage_of_the_cache_is_a_miss(tmp_path, monkeypatch, damage):
    monkeypatch.setenv("EIGENHEADS_CACHE_DIR", str(tmp_path))
    source = f"NUMBER = 9  # {damage}\n"
    monkeypatch.setattr("eigenheads.models._model._LOADED", {})
    load_module(source)
    (path,) = tmp_path.glob("*.py")
    if damage == "bytes":
        path.write_bytes(b"\xff\xfe")
    elif damage == "pipe":
        path.unlink()
        os.mkfifo(path)
    else:
        with path.open("wb") as file:
            file.truncate(2**40)
    monkeypatch.setattr("eigenheads.models._model._LOADED", {})
    assert load_module(source).NUMBER == 9
    assert path.read_text() == source


def test_bytecode_beside_a_module_is_not_run(tmp_path, monkeypatch):
    monkeypatch.setenv("EIGENHEADS_CACHE_DIR", str(tmp_path))
    load_module("NUMBER = 10\n")
    (path,) = tmp_path.glob("*.py")
    forged = tmp_path / "forged.py"
    forged.write_text("NUMBER = 66\n")
    times = path.stat().st_atime, path.stat().st_mtime
    os.utime(forged, times)  # bytecode knows its source by age and size
    py_compile.compile(str(forged), importlib.util.cache_from_source(str(path)))
    monkeypatch.setattr("eigenheads.models._model._LOADED", {})
    assert load_module("NUMBER = 10\n").NUMBER == 10


def test_the_folder_is_the_own_the_compilers_or_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("EIGENHEADS_CACHE_DIR", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("EIGENHEADS_CACHE_DIR")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert cache_folder().parent == tmp_path
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if sys.platform != "win32":
        assert cache_folder() == tmp_path / "xdg" / "eigenheads" / "models"
