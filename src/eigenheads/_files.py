"""Atomic writing and careful reading of files.

A file is written under a temporary name and then renamed, so that it is either complete
or absent, whenever the process is killed.
"""

import gzip
import hashlib
import json
import os
import socket
import stat
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import safetensors
import safetensors.numpy
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
    zipfile.BadZipFile,
    zlib.error,
)
# Entry of the header of a file of arrays.
_HEADER = "eigenheads"
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
    """Write arrays of numbers and of texts; equal arrays give equal bytes.

    Numbers are stored in the format safetensors, which has no code and no compression.
    Its header holds the texts, and a digest that shows flipped bits.
    """
    numbers: dict[str, NDArray[np.generic]] = {}
    texts: dict[str, dict[str, Any]] = {}
    for name, values in arrays.items():
        array = np.asarray(values)
        if array.dtype.kind in "SU":
            encoded = np.char.decode(array, "latin-1") if _is_bytes(array) else array
            texts[name] = {
                "bytes": _is_bytes(array),
                "shape": array.shape,
                "values": encoded.ravel().tolist(),
            }
        elif array.dtype.kind in "biuf" and array.dtype.itemsize <= 8:
            order = array.dtype.newbyteorder("=")
            numbers[name] = np.asarray(array, dtype=order, order="C")
        else:
            contract = "an array of numbers or texts, without Python objects"
            fail(name, contract, array)
    # One entry, because the order of several entries is random.
    header = json.dumps({"sha256": _digest(numbers, texts), "texts": texts})
    content = safetensors.numpy.save(numbers, metadata={_HEADER: header})
    write_atomically(path, lambda file: _fill(file, content))


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read arrays that :func:`write_arrays` wrote; a ValueError names what is wrong.

    Reading needs at most three times the size of the file.
    """
    check_regular(path, MAX_ARRAYS)
    content = path.read_bytes()
    try:
        # The reader compares all sizes with that of the file before it allocates.
        numbers = safetensors.numpy.load(content)
        length = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + length])["__metadata__"]
        header = json.loads(metadata[_HEADER])
        if header["sha256"] != _digest(numbers, header["texts"]):
            raise ValueError("its content does not match its digest")
        arrays = {name: np.array(array) for name, array in numbers.items()}
        for name, stored in header["texts"].items():
            arrays[name] = _texts(stored)
    except (*_DAMAGE, RecursionError, safetensors.SafetensorError) as error:
        raise ValueError(f"{path} is not a whole file of arrays ({error})") from error
    return arrays


def arrays_digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return a digest of names, types, shapes and contents, in any order."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {arrays[name].shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _digest(numbers: Mapping[str, NDArray[Any]], texts: Mapping[str, Any]) -> str:
    whole = arrays_digest(numbers) + json.dumps(texts, sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()


def _is_bytes(array: NDArray[Any]) -> bool:
    return array.dtype.kind == "S"


def _texts(stored: Mapping[str, Any]) -> NDArray[Any]:
    """Return an array of texts or bytes from the header of a file."""
    values = stored["values"]
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise ValueError("a text is none")
    array: NDArray[Any] = np.array(values, dtype=str).reshape(stored["shape"])
    return np.char.encode(array, "latin-1") if stored["bytes"] else array


def _fill(file: IO[bytes], content: bytes) -> None:
    file.write(content)


def check_gzip(name: str, path: Path, contract: str, *, largest: int) -> None:
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
        fail(name, contract, got)


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
