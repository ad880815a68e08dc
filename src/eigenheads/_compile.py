"""Numba compilation with a disk cache that depends on the whole package.

Numba's own ``cache=True`` checks only the file of the cached function. Our kernels
inline functions and constants of other files, so an edit there would leave old code in
the cache. Here the cache also depends on a digest of every file that mentions ``njit``.
Constants that a kernel reads must therefore be defined in such a file.
"""

# mypy: disable-error-code="no-untyped-call"

import contextlib
import gc
import hashlib
import os
import pickle
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import config
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import NativeLowering

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
_DIGEST_BYTES = hashlib.sha256().digest_size
# Kernels of the package take less than a megabyte each.
_LARGEST_FILE = 2**26


class _CheckedFile(IndexDataCacheFile):
    """Index and data files that carry their digest; damaged ones count as missing.

    Compiled code that lost a few bits may load and then crash. So a file is unpickled
    only if it is regular, not huge, and has the digest of its content in front.
    """

    def _save_index(self, overloads: dict[Any, str]) -> None:
        self._write(self._index_path, (self._version, self._source_stamp, overloads))

    def _load_index(self) -> dict[Any, str]:
        try:
            version, stamp, overloads = self._read(self._index_path)
        except Exception:  # unpickling a foreign file may raise anything
            return {}
        is_fresh = (version, stamp) == (self._version, self._source_stamp)
        return dict(overloads) if is_fresh else {}

    def _save_data(self, name: str, data: Any) -> None:
        self._write(self._data_path(name), data)

    def _load_data(self, name: str) -> Any:
        return self._read(self._data_path(name))

    def _write(self, path: str, value: Any) -> None:
        content = self._dump(value)
        with self._open_for_write(path) as file:
            file.write(hashlib.sha256(content).digest() + content)

    def _read(self, path: str) -> Any:
        # A pipe would block, and a device never end: look before opening.
        status = os.stat(path)  # noqa: PTH116 -- Numba's paths are strings
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_FILE:
            raise OSError(f"{path} is not a cache file")
        content = Path(path).read_bytes()
        digest, pickled = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(pickled).digest() != digest:
            raise OSError(f"{path} is damaged")
        return pickle.loads(pickled)


class _PackageCache(FunctionCache):
    """Cache of a function that depends on all compiled code of the package.

    If the cache cannot be read or written, the function is compiled.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = _CheckedFile(
            cache_path=self.cache_path,
            filename_base=self._impl.filename_base,
            source_stamp=(self._impl.locator.get_source_stamp(), _DIGEST),
        )

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        # A full disk, or a folder that is gone.
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)


@contextlib.contextmanager
def _paused_collector() -> Iterator[None]:
    """Stop the search for cycles: a compilation makes millions of objects."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _lightly_optimised() -> Iterator[None]:
    """Compile without vectorisation, for good; callers optimise all else again.

    Without any optimisation, counts of references would stay in the code for good.
    """
    changes = {"OPT": 1, "LOOP_VECTORIZE": 0, "SLP_VECTORIZE": 0}
    # These options are global. All compilations hold the lock.
    with global_compiler_lock:
        chosen = {name: getattr(config, name) for name in changes}
        try:
            for name, value in changes.items():
                setattr(config, name, type(chosen[name])(value))
            yield
        finally:
            for name, value in chosen.items():
                setattr(config, name, value)


class _SmallLower(Lower):
    """Writes the LLVM code of a function that is to stay small."""

    def pre_lower(self) -> None:
        super().pre_lower()
        self.function.attributes.add("optsize")


@register_pass(mutates_CFG=True, analysis_only=False)
class _SmallLowering(NativeLowering):
    """Numba's pass that writes LLVM code, with :class:`_SmallLower`."""

    _name = "small_lowering"

    @property
    def lowering_class(self) -> type[Lower]:
        return _SmallLower


class _SmallCompiler(Compiler):
    """Numba's compiler, with :class:`_SmallLowering`."""

    def define_pipelines(self) -> list[Any]:
        pipelines: list[Any] = super().define_pipelines()
        for pipeline in pipelines:
            pipeline.passes = [
                (_SmallLowering if step is NativeLowering else step, label)
                for step, label in pipeline.passes
            ]
        return pipelines


def njit(
    *, is_part: bool = False, short_loops: bool = False, **options: Any
) -> Callable[[Function], Function]:
    """Compile a function with Numba, without the interpreter lock; cache it on disk.

    If no folder can be written, it is compiled again in each process.

    Parameters
    ----------
    is_part
        True for a function that compiled functions call, and that calls none itself.
    short_loops
        True for a function whose loops run over a few coordinates. They are compiled to
        single small loops. Unrolled and vectorised, they would take three times the
        code, and the compilation of each caller longer, for turns that never come. They
        are fully optimised in their callers only. Long loops must not be: a loop that
        has been passed over once is never vectorised, which costs a factor of 1.6.
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
        # Nothing takes the address of a kernel, so no wrapper for C is compiled.
        chosen: dict[str, Any] = {"nogil": True, "no_cfunc_wrapper": True} | options
        if short_loops:
            chosen["pipeline_class"] = _SmallCompiler
        dispatcher = numba.njit(**chosen)(function)
        if dispatcher is not function:  # as it is under NUMBA_DISABLE_JIT
            dispatcher.compile = _paused_collector()(dispatcher.compile)
            if is_part and short_loops:
                dispatcher.compile = _lightly_optimised()(dispatcher.compile)
            try:
                dispatcher._cache = _PackageCache(function)
            except RuntimeError:
                return dispatcher
        return dispatcher

    return compiled
