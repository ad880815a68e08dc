"""Numba compilation with a disk cache that depends on the whole package.

Numba's own ``cache=True`` checks only the file of the cached function. Our kernels
inline functions and constants of other files, so an edit there would leave old code in
the cache. Here the cache also depends on a digest of every file that mentions ``njit``.
Constants that a kernel reads must therefore be defined in such a file.
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
    """Numba's cache files of a function; unreadable ones count as empty."""

    def _load_index(self) -> dict[Any, str]:
        # The index pickles argument types. After a class is renamed it cannot be
        # unpickled any more: it is stale, which is not an error.
        try:
            return dict(super()._load_index())  # type: ignore[no-untyped-call]
        except Exception:
            return {}


class _PackageCache(FunctionCache):
    """Cache of a function that depends on all compiled code of the package."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._cache_file = _CacheFile(  # type: ignore[no-untyped-call]
            cache_path=self.cache_path,
            filename_base=self._impl.filename_base,
            source_stamp=(self._impl.locator.get_source_stamp(), _DIGEST),
        )


def njit(**options: Any) -> Callable[[Function], Function]:
    """Compile a function with Numba, without the interpreter lock; cache it on disk.

    If no folder can be written, it is compiled again in each process.

    Parameters
    ----------
    **options
        Options of ``numba.njit`` other than ``nogil`` and ``cache``.

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
