"""Files that are whole or not there: written to a temporary name, then renamed."""

import os
import socket
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

_TEMPORARY = ".tmp"
# What reading a cut or foreign file may raise, depending on where it is cut.
_DAMAGE = (OSError, ValueError, KeyError, EOFError, AttributeError, TypeError)


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
    """Write arrays as ``.npz`` without pickle; equal arrays give equal bytes."""

    def write(file: IO[bytes]) -> None:
        np.savez(
            file, allow_pickle=False, **{n: np.asarray(a) for n, a in arrays.items()}
        )

    write_atomically(path, write)


def read_arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    """Read what :func:`write_arrays` wrote; a ValueError says what is wrong."""
    with path.open("rb") as file:  # np.load leaves a damaged file open
        try:
            with np.load(file, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        except (*_DAMAGE, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} is not a whole .npz file ({error})") from error
