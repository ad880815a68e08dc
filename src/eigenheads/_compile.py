"""Numba, with a cache on disk that knows the whole package.

Numba's own ``cache=True`` compares the file of the function that is cached. A kernel
here contains, compiled into it, functions and constants of other files: after an edit
there the kernel's file is as it was, and old code would run. So the cached code
carries a digest of all files of the package in which compiled code is written, which
are those that mention ``njit``. (A constant that a kernel reads belongs in such a
file.)
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

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


_DIGEST = source_digest(Path(__file__).parent)


class _CacheFile(IndexDataCacheFile):
    """Numba's files of a cached function, empty where they cannot be read."""

    def _load_index(self) -> dict[Any, str]:
        # An index pickles the types of the arguments. After a class was renamed it
        # cannot be unpickled any more; it is stale then, not an error.
        try:
            return dict(super()._load_index())  # type: ignore[no-untyped-call]
        except Exception:
            return {}


class _PackageCache(FunctionCache):
    """A function's cache that is stale once any compiled code of the package is."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._cache_file = _CacheFile(  # type: ignore[no-untyped-call]
            cache_path=self.cache_path,
            filename_base=self._impl.filename_base,
            source_stamp=(self._impl.locator.get_source_stamp(), _DIGEST),
        )


def njit(**options: Any) -> Callable[[Function], Function]:
    """Compile a function with Numba: without the interpreter lock, kept on disk.

    Where no folder can be written, it is compiled anew in each process.

    Parameters
    ----------
    **options
        Of ``numba.njit``, beyond ``nogil`` and ``cache``.

    Examples
    --------
    >>> @njit(fastmath=True)
    ... def half(x):
    ...     return 0.5 * x
    >>> half(3.0)
    1.5
    """

    def compiled(function: Function) -> Function:
        dispatcher = numba.njit(nogil=True, **options)(function)
        if dispatcher is not function:  # as it is under NUMBA_DISABLE_JIT
            try:
                dispatcher._cache = _PackageCache(function)
            except RuntimeError:
                return dispatcher
        return dispatcher

    return compiled
