import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from eigenheads._files import (
    read_arrays,
    remove_leftovers,
    write_arrays,
    write_atomically,
)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")

    def fails(file):
        file.write(b"new")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, fails)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_temporary_names_do_not_look_like_results(tmp_path):
    seen = []
    write_atomically(
        tmp_path / "x.npz",
        lambda file: seen.extend(p.suffix for p in tmp_path.iterdir()),
    )
    assert seen == [".tmp"]


def test_leftovers_of_the_dead_are_removed_and_of_the_living_kept(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead = tmp_path / f".x.npz.{socket.gethostname()}.{gone.pid}.tmp"
    living = tmp_path / f".x.npz.{socket.gethostname()}.{os.getpid()}.tmp"
    elsewhere = tmp_path / f".x.npz.another-machine.{gone.pid}.tmp"
    for path in (dead, living, elsewhere):
        path.touch()
    remove_leftovers(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([living, elsewhere])


def test_equal_arrays_give_equal_bytes(tmp_path, rng):
    arrays = {"a": rng.standard_normal((3, 2)), "b": np.arange(4)}
    write_arrays(tmp_path / "1.npz", arrays)
    write_arrays(tmp_path / "2.npz", arrays)
    assert (tmp_path / "1.npz").read_bytes() == (tmp_path / "2.npz").read_bytes()


def test_cut_files_are_named(tmp_path):
    path = tmp_path / "x.npz"
    write_arrays(path, {"a": np.arange(1000)})
    whole = path.read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"x\.npz is not a whole \.npz file"):
            read_arrays(path)
