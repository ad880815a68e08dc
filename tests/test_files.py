import errno
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

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
        tmp_path / "x.safetensors",
        lambda file: seen.extend(p.suffix for p in tmp_path.iterdir()),
    )
    assert seen == [".tmp"]


def test_leftovers_of_the_dead_are_removed_and_of_the_living_kept(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead = tmp_path / f".x.safetensors.{socket.gethostname()}.{gone.pid}.tmp"
    living = tmp_path / f".x.safetensors.{socket.gethostname()}.{os.getpid()}.tmp"
    elsewhere = tmp_path / f".x.safetensors.another-machine.{gone.pid}.tmp"
    for path in (dead, living, elsewhere):
        path.touch()
    remove_leftovers(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([living, elsewhere])


def test_equal_arrays_give_equal_bytes(tmp_path, rng):
    arrays = {"a": rng.standard_normal((3, 2)), "b": np.arange(4)}
    write_arrays(tmp_path / "1.safetensors", arrays)
    write_arrays(tmp_path / "2.safetensors", arrays)
    assert (tmp_path / "1.safetensors").read_bytes() == (
        tmp_path / "2.safetensors"
    ).read_bytes()


def test_cut_files_are_named(tmp_path):
    path = tmp_path / "x.safetensors"
    write_arrays(path, {"a": np.arange(1000)})
    whole = path.read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"is not a whole file of arrays"):
            read_arrays(path)


NAMES = ["file", "allow_pickle", "a", "a.npy", "a/b", "self", "λ", " ", ".."]


def test_any_name_survives_and_safetensors_reads_the_file(tmp_path):
    path = tmp_path / "x.safetensors"
    arrays = {name: np.full(2, index) for index, name in enumerate(NAMES)}
    write_arrays(path, {**arrays, "words": np.array(["a", "ä"])})
    again = read_arrays(path)
    assert set(again) == {*NAMES, "words"}
    assert again.pop("words").tolist() == ["a", "ä"]
    public = safetensors.numpy.load_file(path)
    for name in NAMES:
        np.testing.assert_array_equal(again[name], arrays[name])
        np.testing.assert_array_equal(public[name], arrays[name])


@pytest.mark.parametrize("dtype", [object, [("a", object)]])
def test_python_objects_are_refused(tmp_path, dtype):
    message = "write_arrays: `x` must be an array of numbers or texts"
    with pytest.raises(ValueError, match=message):
        write_arrays(tmp_path / "x.safetensors", {"x": np.empty(2, dtype=dtype)})
    assert not list(tmp_path.iterdir())


def test_a_flipped_bit_is_seen(tmp_path):
    path = tmp_path / "x.safetensors"
    write_arrays(path, {"a": np.arange(1000)})
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ValueError, match="its content does not match its digest"):
        read_arrays(path)


def test_an_error_of_the_disk_names_the_file(tmp_path):
    def full(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(
        OSError, match=r"No space left on device: '.*/table.safetensors'"
    ):
        write_atomically(tmp_path / "table.safetensors", full)
    assert list(tmp_path.iterdir()) == []
