"""Atomic writing and careful reading of files.

A file is written under a temporary name and then renamed, so that it is either complete
or absent, whenever the process is killed.
"""

import gzip
import math
import os
import socket
import stat
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from eigenheads._checks import Got, fail

_TEMPORARY = ".tmp"
# Exceptions that reading a truncated or foreign file may raise.
_DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    EOFError,
    AttributeError,
    TypeError,
    MemoryError,
    OverflowError,
    RuntimeError,
    UserWarning,  # Python 3.13 warns of members that overlap
    zipfile.BadZipFile,
    zlib.error,
)
_SUFFIX = ".npy"
# Largest file of arrays that is read: 4 GiB.
MAX_ARRAYS = 2**32
# Largest generated module that is read: a few hundred kilobytes are usual.
_LARGEST_MODULE = 2**26


def write_atomically(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Call `write` on a temporary file, and rename it to `path` when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = f".{path.name}.{socket.gethostname()}.{os.getpid()}{_TEMPORARY}"
    temporary = path.with_name(name)
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        # The error of a full disk has no file name; a temporary name would not help.
        error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of ended processes of this machine."""
    for leftover in folder.glob(f".*.{socket.gethostname()}.*{_TEMPORARY}"):
        pid = leftover.name.removesuffix(_TEMPORARY).rpartition(".")[2]
        if pid.isdigit() and not _is_running(int(pid)):
            leftover.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def write_arrays(path: Path, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Write arrays as ``.npz`` without pickle; equal arrays give equal bytes.

    ``np.savez`` is not used, because it takes the names of arrays as keywords beside
    its own, and writes the date into the file.
    """
    plain = {name: np.asarray(array) for name, array in arrays.items()}
    for name, array in plain.items():
        if array.dtype.hasobject:
            fail(name, "an array without Python objects", array, owner="write_arrays")

    def write(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, array in plain.items():
                # Without a date: zipfile writes 1980, so that bytes are equal.
                entry = zipfile.ZipInfo(name + _SUFFIX)
                with archive.open(entry, "w", force_zip64=True) as member:
                    npy.write_array(member, array, allow_pickle=False)

    write_atomically(path, write)


def read_arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    """Read arrays that :func:`write_arrays` wrote; a ValueError names what is wrong.

    Sizes are compared with the file's own before anything is allocated, and nothing
    is unpacked: reading needs at most twice the size of the file.
    """
    size = check_regular(path, MAX_ARRAYS)
    with path.open("rb") as file, warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        try:
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
                _check_entries(entries, size)
                return {
                    entry.filename.removesuffix(_SUFFIX): _read_entry(archive, entry)
                    for entry in entries
                }
        except _DAMAGE as error:
            raise ValueError(f"{path} is not a whole .npz file ({error})") from error


def check_gzip(
    name: str, path: Path, contract: str, *, largest: int, owner: str
) -> None:
    """Raise unless a gzip file is whole and at most so large when it is unpacked.

    It is unpacked a piece at a time, because a small file may contain terabytes.
    """
    try:
        check_regular(path, largest)
        with gzip.open(path) as file:
            size = 0
            while piece := file.read(2**20):
                size += len(piece)
                if size > largest:
                    raise ValueError(f"more than {largest} bytes")
    except _DAMAGE as error:
        got = Got(f"{path.name!r} ({type(error).__name__}: {error})")
        fail(name, contract, got, owner=owner)


def check_module_file(path: Path) -> None:
    """Remove a damaged module of the cache, to be written again.

    The caller compares the text of the module; here it is made sure that it is one.
    """
    if not path.exists():
        return
    try:
        check_regular(path, _LARGEST_MODULE)
        path.read_text(encoding="utf-8")
    except ValueError:
        path.unlink()


def check_stored(path: Path) -> None:
    """Raise ValueError if a zip archive has compressed members, as no file of ours has.

    A compressed member may be a thousand times as large in memory as in the file.
    Files of another kind pass.
    """
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            _check_entries(archive.infolist(), path.stat().st_size)
    except _DAMAGE as error:
        raise ValueError(f"{path} is not a whole archive ({error})") from error


def check_regular(path: Path, largest: float) -> int:
    """Return the size of a regular file, or raise ValueError: no device, no pipe.

    Examples
    --------
    >>> check_regular(Path("/dev/null"), 100)
    Traceback (most recent call last):
    ...
    ValueError: /dev/null is not a regular file
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path} is not a regular file")
    if status.st_size > largest:
        raise ValueError(f"{path} has {status.st_size} bytes, more than {largest}")
    return status.st_size


def _check_entries(entries: Sequence[zipfile.ZipInfo], size: int) -> None:
    """Raise unless the members are stored as they are, and fit into the file."""
    names = [entry.filename for entry in entries]
    if len(set(names)) < len(names):
        raise ValueError("a name occurs twice")
    for entry in entries:
        is_stored = entry.compress_type == zipfile.ZIP_STORED
        if not is_stored or entry.file_size != entry.compress_size:
            raise ValueError(f"{entry.filename} is compressed")
    if sum(entry.file_size for entry in entries) > size:
        raise ValueError("its members are larger than the file")


def _read_entry(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo
) -> NDArray[np.generic]:
    with archive.open(entry) as member:
        version = npy.read_magic(member)
        if version != (1, 0):
            raise ValueError(f"{entry.filename} has format {version}")
        shape, is_fortran, dtype = npy.read_array_header_1_0(member)
        if dtype.kind not in "biufSU" or not dtype.itemsize or dtype.names:
            raise ValueError(f"{entry.filename} has dtype {dtype}")
        content = member.read()  # to the end, where zipfile compares the checksum
        if min(shape, default=0) < 0:
            raise ValueError(f"{entry.filename} has shape {shape}")
        if math.prod(shape) * dtype.itemsize != len(content):
            raise ValueError(f"{entry.filename} is not of its shape {shape}")
    flat = np.frombuffer(bytearray(content), dtype=dtype)
    return flat.reshape(shape, order="F" if is_fortran else "C")
