"""Real data that is not shipped: where it lies, and how it is read.

A folder is given to :func:`~eigenheads_papers.reproduce` (``--data``, or the
variable ``EIGENHEADS_DATA``); experiments name files in it, never paths of a machine.
"""

import gzip
import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eigenheads.extend import Got, check_gzip, check_regular, fail

# Bytes of a file, unpacked; MNIST has 47 million.
_LARGEST = 2**30
_folder: ContextVar[Path | None] = ContextVar("data_folder", default=None)


@contextmanager
def using_data(folder: str | PathLike[str] | None) -> Iterator[Path | None]:
    """Let :func:`data_file` look into `folder`."""
    root = None if folder is None else _check_folder(folder)
    token = _folder.set(root)
    try:
        yield root
    finally:
        _folder.reset(token)


def _check_folder(folder: object) -> Path:
    if not isinstance(folder, str | PathLike) or not Path(folder).is_dir():
        got = folder if not isinstance(folder, PathLike) else Got(str(folder))
        fail("data", "a folder that exists", got)
    return Path(folder)


def has_data(*names: str) -> bool:
    """Return whether all these files are in the folder of real data."""
    folder = _folder.get()
    return folder is not None and all((folder / name).is_file() for name in names)


def data_file(name: str) -> Path:
    """Return the path of a file of real data, or say what to give."""
    folder = _folder.get()
    if folder is None or not (folder / name).is_file():
        got = Got("no folder" if folder is None else "a folder without it")
        hint = "Give it with --data, or in the variable EIGENHEADS_DATA."
        fail("data", f"a folder that contains {name}", got, hint=hint)
    check_readable(folder / name)
    return folder / name


def check_readable(path: Path) -> None:
    """Raise unless a file is a regular one of limited size; texts are in UTF-8."""
    try:
        check_regular(path, _LARGEST)
        if path.suffix == ".txt":
            with path.open(encoding="utf-8") as file:
                while file.read(2**20):
                    pass
    except (OSError, ValueError) as error:
        got = Got(f"{path.name!r} ({error})")
        fail("data", "files that can be read, texts in UTF-8", got)


def check_axes(shape: tuple[int, ...], path: Path) -> None:
    """Raise if the header of an idx file has lengths that no array has."""
    if len(shape) > 4 or min(shape, default=0) < 0:
        got = Got(f"{path.name!r}, whose header has {len(shape)} axes, {shape[:4]}, …")
        fail("data", "gzipped idx files of bytes", got)


def read_idx(path: str | PathLike[str]) -> NDArray[np.uint8]:
    """Return the array of a gzipped idx file of bytes, as MNIST's are.

    Four bytes 0, 0, type (8: unsigned bytes), number of axes; then each axis' length
    as a big-endian integer of four bytes; then the entries.
    """
    check_gzip("data", Path(path), "gzipped idx files", largest=_LARGEST)
    try:
        raw = gzip.decompress(Path(path).read_bytes())
    except (OSError, EOFError) as error:
        got = Got(f"{Path(path).name!r} ({type(error).__name__})")
        fail("data", "gzipped idx files", got)
    n_axes = raw[3] if raw[:3] == b"\0\0\x08" and len(raw) > 3 else 0
    header = 4 + 4 * n_axes
    lengths = np.frombuffer(raw[4:header].ljust(4 * n_axes, b"\0"), dtype=">i4")
    shape = tuple(int(length) for length in lengths)
    check_axes(shape, Path(path))
    if not n_axes or len(raw) != header + math.prod(shape):
        got = Got(f"{Path(path).name!r}, which is cut short or of another kind")
        fail("data", "gzipped idx files of bytes", got)
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape)
