"""Files that are whole or not there: written to a temporary name, then renamed."""

import os
import socket
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from eigenheads._checks import fail

_TEMPORARY = ".tmp"
# What reading a cut or foreign file may raise, depending on where it is cut.
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
    zipfile.BadZipFile,
    zlib.error,
)
_SUFFIX = ".npy"


def write_atomically(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Let `write` fill a file that appears under `path` only when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = f".{path.name}.{socket.gethostname()}.{os.getpid()}{_TEMPORARY}"
    temporary = path.with_name(name)
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of processes of this machine that are gone."""
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

    By hand, because the names are keywords of ``np.savez``, beside its own.
    """
    plain = {name: np.asarray(array) for name, array in arrays.items()}
    for name, array in plain.items():
        if array.dtype.hasobject:
            fail(name, "an array without Python objects", array, owner="write_arrays")

    def write(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, array in plain.items():
                # The entry's date is a constant of zipfile: 1980.
                entry = zipfile.ZipInfo(name + _SUFFIX)
                with archive.open(entry, "w", force_zip64=True) as member:
                    npy.write_array(member, array, allow_pickle=False)

    write_atomically(path, write)


def read_arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    """Read what :func:`write_arrays` wrote; a ValueError says what is wrong."""
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                return {
                    entry.filename.removesuffix(_SUFFIX): _read_entry(archive, entry)
                    for entry in archive.infolist()
                }
        except _DAMAGE as error:
            raise ValueError(f"{path} is not a whole .npz file ({error})") from error


def _read_entry(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo
) -> NDArray[np.generic]:
    with archive.open(entry) as member:
        array: NDArray[np.generic] = npy.read_array(member, allow_pickle=False)
        member.read()  # to the end, where zipfile compares the checksum
    return array
