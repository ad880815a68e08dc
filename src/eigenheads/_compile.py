"""Numba compilation, cached on disk until any compiled file of the package changes."""

import contextlib
import hashlib
import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def source_digest(folder: Path) -> str:
    """Return a digest of the files below `folder` that mention ``njit``."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        source = path.read_bytes()
        if b"njit" in source:
            name = path.relative_to(folder).as_posix()
            digest.update(f"{name} {len(source)}\n".encode() + source)
    return digest.hexdigest()


def _forget_stale_code(folder: Path, digest: str) -> None:
    """Remove compiled code below `folder` that another version of it left.

    Numba checks only the file of a function. Our kernels inline functions and constants
    of other files: an edit there must reach them, too.
    """
    stamp = folder / "__pycache__" / "compiled-from"
    with contextlib.suppress(OSError):  # a folder that cannot be written has no cache
        if stamp.is_file() and stamp.read_text() == digest:
            return
        for index in folder.rglob("*.nbi"):
            index.unlink(missing_ok=True)
        stamp.parent.mkdir(exist_ok=True)
        stamp.write_text(digest)


PACKAGE_DIGEST = source_digest(Path(__file__).parent)
_forget_stale_code(Path(__file__).parent, PACKAGE_DIGEST)


def njit(**options: Any) -> Callable[[Function], Function]:
    """Compile a function with Numba, without the interpreter lock; cache it on disk.

    If no folder can be written, each process compiles again, and a warning says so.

    Examples
    --------
    >>> @njit(fastmath=True)
    ... def half(x):
    ...     return 0.5 * x
    >>> half(3.0)
    1.5
    """

    def compiled(function: Function) -> Function:
        try:
            return numba.njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:
            # A function that was written in memory has no file, and so no cache.
            if Path(inspect.getfile(function)).is_file():
                warnings.warn(
                    "eigenheads: no folder for compiled code can be written, so each "
                    "process compiles for some seconds. Set NUMBA_CACHE_DIR to one.",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return numba.njit(nogil=True, **options)(function)

    return compiled
