import errno
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


NAMES = ["file", "allow_pickle", "a", "a.npy", "a/b", "self", "λ", " ", ".."]


def test_any_name_survives_and_numpy_reads_the_file(tmp_path):
    path = tmp_path / "x.npz"
    arrays = {name: np.full(2, index) for index, name in enumerate(NAMES)}
    write_arrays(path, arrays)
    again = read_arrays(path)
    assert list(again) == NAMES
    for name in NAMES:
        np.testing.assert_array_equal(again[name], arrays[name])
    with np.load(path) as archive:
        np.testing.assert_array_equal(archive["file"], arrays["file"])


@pytest.mark.parametrize("dtype", [object, [("a", object)]])
def test_python_objects_are_refused(tmp_path, dtype):
    message = "write_arrays: `x` must be an array without Python objects; got an array"
    with pytest.raises(ValueError, match=message):
        write_arrays(tmp_path / "x.npz", {"x": np.empty(2, dtype=dtype)})
    assert not list(tmp_path.iterdir())


def test_a_flipped_bit_is_seen(tmp_path):
    path = tmp_path / "x.npz"
    write_arrays(path, {"a": np.arange(1000)})
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ValueError, match=r"not a whole \.npz file \(Bad CRC"):
        read_arrays(path)


def test_an_error_of_the_disk_names_the_file(tmp_path):
    def full(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match=r"No space left on device: '.*/table.npz'"):
        write_atomically(tmp_path / "table.npz", full)
    assert list(tmp_path.iterdir()) == []
