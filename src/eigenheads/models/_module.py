"""Generated modules: source on disk, compiled once, loaded by every later process.

Numba keeps compiled code beside the file of a function, so the source of a model is
written to a file whose name is the digest of its contents. Processes that write the
same file at the same time write the same bytes, under temporary names that are then
moved into place. Where no folder can be written, the module lives in memory and each
process compiles it.
"""

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from eigenheads._files import check_module_file


def cache_folder() -> Path:
    """Return the folder of generated modules.

    ``EIGENHEADS_CACHE_DIR``, else a folder in ``NUMBA_CACHE_DIR``, else in the user's
    folder for caches.
    """
    own = os.environ.get("EIGENHEADS_CACHE_DIR")
    if own:
        return Path(own)
    numba = os.environ.get("NUMBA_CACHE_DIR")
    if numba:
        return Path(numba) / "eigenheads-models"
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", str(Path.home()))
    else:
        base = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    return Path(base) / "eigenheads" / "models"


_LOADED: dict[str, ModuleType] = {}


def load_module(source: str, custom: Callable[..., Any] | None = None) -> ModuleType:
    """Return the module of this source, from the cache if it is there.

    A module that calls a function of the user (`custom`) lives in memory: nothing on
    disk would know of an edit of that function.
    """
    if custom is not None:
        return _in_memory(source, custom)
    # The name is a digest of the whole source: an edited model or a new version of a
    # template gets a new file, and no file changes its meaning.
    name = "eigenheads_model_" + hashlib.sha256(source.encode()).hexdigest()[:20]
    if name not in _LOADED:
        path = _written(name, source)
        _LOADED[name] = (
            _in_memory(source) if path is None else _imported(name, source, path)
        )
    return _LOADED[name]


def _written(name: str, source: str) -> Path | None:
    """Return the file of a module, written if it is not there; None if it cannot be."""
    path = cache_folder() / f"{name}.py"
    try:
        check_module_file(path)
        # Left alone if it is there: its age is part of the key of compiled code.
        if path.exists() and path.read_text(encoding="utf-8") == source:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        # Each writer has a temporary file of its own, in the same folder, so that the
        # rename is atomic: readers see no file or a whole file. If two processes write
        # at the same time, the last one wins, with the same bytes.
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(source)
        Path(temporary).replace(path)
    # A folder that cannot be written is no error: the module lives in memory.
    except OSError:
        return None
    return path


def _imported(name: str, source: str, path: Path) -> ModuleType:
    """Run the source, which the file has, under the name of the file.

    An import would run bytecode beside the file, which need not be of this source.
    """
    module = ModuleType(name)
    module.__file__ = str(path)
    # Numba finds a cached function's module by its name.
    sys.modules[name] = module
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def _in_memory(source: str, custom: Callable[..., Any] | None = None) -> ModuleType:
    module = ModuleType("eigenheads_model_in_memory")
    if custom is not None:
        module.__dict__["custom_draw"] = custom
    exec(compile(source, "<model>", "exec"), module.__dict__)
    return module
