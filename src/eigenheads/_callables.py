"""What a user names as ``module:callable`` on the command line."""

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from eigenheads._checks import Got, fail


def call_source(source: str, *, name: str, owner: str) -> Any:
    """Return what the callable that `source` names returns; it takes no arguments.

    Parameters
    ----------
    source
        ``"module:callable"``; the module may lie in the current folder. This runs
        code of the user's own.
    name, owner
        Of the argument, and of the command: for the errors, which are one sentence
        also where that code fails. They name its last line that was run.

    Examples
    --------
    >>> call_source("string:Formatter", name="MODEL", owner="probe")
    <string.Formatter object at ...>
    >>> call_source("string:nothing", name="MODEL", owner="probe")
    Traceback (most recent call last):
    ...
    ValueError: probe: `MODEL` must be module:callable; got 'string:nothing', ...
    """

    def refuse(why: str, hint: str = "") -> NoReturn:
        got = Got(f"{source!r}{why}")
        fail(name, "module:callable", got, owner=owner, hint=hint)

    with _current_folder():
        made = _find(source, refuse)
        try:
            return made()
        except Exception as error:
            refuse(_what_happened(error))


def _find(source: str, refuse: Callable[..., NoReturn]) -> Callable[[], Any]:
    module, _, name = source.partition(":")
    if not (module and name):
        refuse("", "mymodels:trained is `trained` in mymodels.py.")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            refuse(f", and there is no module {error.name!r} here")
        refuse(_what_happened(error))
    except Exception as error:
        refuse(_what_happened(error))
    if found is None:
        refuse(f", and {module} has no {name!r}")
    if not callable(found):
        refuse(f", whose type is {type(found).__name__}")
    return found


def _what_happened(error: Exception) -> str:
    """Return the error, and the line of the user's that it came from."""
    said = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    here = Path(__file__).parent
    theirs = [
        frame
        for frame in frames
        if here not in Path(frame.filename).parents
        and "importlib" not in frame.filename
    ]
    own = [
        frame
        for frame in theirs
        if Path.cwd() in Path(frame.filename).resolve().parents
    ]
    last = (own or theirs)[-1:]
    where = "".join(f" ({Path(at.filename).name}, line {at.lineno})" for at in last)
    return f", which raised {type(error).__name__}: {said}{where}"


@contextmanager
def _current_folder() -> Iterator[None]:
    """Import from the current folder first, inside this context."""
    here = os.getcwd()  # noqa: PTH109 -- as Python puts it on the path
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(here)
