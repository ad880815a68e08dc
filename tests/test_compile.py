"""The cache on disk: used while nothing changes, stale once anything compiled does."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import eigenheads
from eigenheads._compile import njit, source_digest

INNER = """
from eigenheads._compile import njit

@njit()
def inner(x):
    return x + 1.0
"""
OUTER = """
from eigenheads._compile import njit
from eigenheads.inner import inner

@njit()
def outer(x):
    return 10.0 * inner(x)
"""
RUN = """
from eigenheads.outer import outer
print(outer(1.0), sum(outer.stats.cache_hits.values()))
"""


def write_package(root):
    """Write a package of the same name with two kernels, one calling the other."""
    folder = root / "eigenheads"
    folder.mkdir()
    (folder / "__init__.py").touch()
    shutil.copy(Path(eigenheads.__file__).with_name("_compile.py"), folder)
    (folder / "inner.py").write_text(INNER)
    (folder / "outer.py").write_text(OUTER)
    return folder


@pytest.fixture
def package(tmp_path):
    return write_package(tmp_path)


def run(package, **environment):
    result = subprocess.run(
        [sys.executable, "-c", RUN],
        env=os.environ | {"PYTHONPATH": str(package.parent)} | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return result.stdout.split()


def test_an_edit_of_a_called_function_reaches_its_caller(package):
    assert run(package) == ["20.0", "0"]
    assert run(package) == ["20.0", "1"]  # from the cache
    (package / "inner.py").write_text(INNER.replace("x + 1.0", "x + 2.0"))
    assert run(package) == ["30.0", "0"]
    assert run(package) == ["30.0", "1"]


def test_a_cache_of_a_class_that_is_gone_is_stale(package):
    record = "from typing import NamedTuple\nclass Old(NamedTuple):\n    x: float\n"
    kernel = INNER.replace("return x + 1.0", "return x.x + 1.0")
    (package / "inner.py").write_text(record + kernel)
    call = OUTER.replace("@njit()", "from eigenheads.inner import Old").replace(
        "inner(x)", "inner(Old(x))"
    )
    (package / "outer.py").write_text(call + "\nouter.stats = inner.stats\n")
    assert run(package) == ["20.0", "0"]
    assert run(package) == ["20.0", "1"]
    for name in ("inner.py", "outer.py"):
        path = package / name
        path.write_text(path.read_text().replace("Old", "New"))
    assert run(package) == ["20.0", "0"]


def test_an_edit_of_what_is_not_compiled_keeps_the_cache(package):
    run(package)
    (package / "other.py").write_text("x = 1")
    assert run(package) == ["20.0", "1"]


def test_kernels_are_kept_where_numba_is_told_to(package, tmp_path):
    folder = tmp_path / "cache"
    run(package, NUMBA_CACHE_DIR=str(folder))
    assert list(folder.rglob("*.nbi"))
    assert not list(package.rglob("*.nbi"))
    assert run(package, NUMBA_CACHE_DIR=str(folder)) == ["20.0", "1"]


def test_without_a_folder_for_the_cache_it_is_said(package, monkeypatch):
    def refuse(*_, cache=False, **__):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr("eigenheads._compile.numba.njit", refuse)
    with pytest.warns(RuntimeWarning, match="Set NUMBA_CACHE_DIR"):
        assert njit()(run) is run


def test_digest_sees_names_and_contents_of_compiled_files_alone(package):
    first = source_digest(package)
    (package / "other.py").write_text("x = 1")
    assert source_digest(package) == first
    (package / "inner.py").rename(package / "moved.py")
    moved = source_digest(package)
    (package / "moved.py").write_text(INNER + "# njit")
    assert len({first, moved, source_digest(package)}) == 3
