"""The cache on disk: used while nothing changes, stale once anything compiled does."""

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba import float64
from numba.core.caching import NullCache

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


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """Return a package and its cache, compiled once; tests damage copies of it."""
    package = write_package(tmp_path_factory.mktemp("package"))
    cache = tmp_path_factory.mktemp("filled")
    assert run(package, NUMBA_CACHE_DIR=str(cache)) == ["20.0", "0"]
    return package, cache


def test_a_copied_cache_is_a_hit(filled, tmp_path):
    package, cache = filled
    folder = shutil.copytree(cache, tmp_path / "cache")
    assert run(package, NUMBA_CACHE_DIR=str(folder)) == ["20.0", "1"]


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "foreign", "empty", "fifo"])
def test_a_damaged_cache_is_a_miss_and_renewed(filled, tmp_path, suffix, damage):
    package, cache = filled
    folder = shutil.copytree(cache, tmp_path / "cache")
    environment = {"NUMBA_CACHE_DIR": str(folder)}
    damaged = list(folder.rglob(f"outer*{suffix}"))
    assert damaged
    for path in damaged:
        content = path.read_bytes()
        path.unlink()
        if damage == "fifo":
            os.mkfifo(path)
            continue
        middle = len(content) // 2
        flipped = (
            content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        )
        path.write_bytes(
            {
                "cut": content[:-10],
                "flipped": flipped,
                "foreign": pickle.dumps({"a": 1}),
                "empty": b"",
            }[damage]
        )
    assert run(package, **environment) == ["20.0", "0"]
    assert run(package, **environment) == ["20.0", "1"]


def test_a_cache_that_cannot_be_written_does_no_harm(package, tmp_path):
    folder = tmp_path / "cache"
    environment = {"NUMBA_CACHE_DIR": str(folder)}
    run(package, **environment)
    for path in folder.rglob("*.nb?"):
        path.unlink()
        path.mkdir()  # where a file should be
    assert run(package, **environment) == ["20.0", "0"]


def test_digest_sees_names_and_contents_of_compiled_files_alone(package):
    first = source_digest(package)
    (package / "other.py").write_text("x = 1")
    assert source_digest(package) == first
    (package / "inner.py").rename(package / "moved.py")
    moved = source_digest(package)
    (package / "moved.py").write_text(INNER + "# njit")
    assert len({first, moved, source_digest(package)}) == 3


def add(x, y):
    for i in range(x.shape[0]):
        y[i] += x[i]


def test_short_loops_stay_single_loops():
    sizes = []
    for short_loops in (False, True):
        kernel = njit(no_cpython_wrapper=True, short_loops=short_loops)(add)
        kernel._cache = NullCache()  # code from the cache cannot be inspected
        kernel.compile((float64[::1], float64[::1]))
        (llvm,) = kernel.inspect_llvm().values()
        sizes.append(len(llvm.splitlines()))
    # Vectorised and unrolled, with a path for arrays that overlap, and one for the
    # rest, the loop has several times the code.
    assert sizes[0] > 2 * sizes[1]
