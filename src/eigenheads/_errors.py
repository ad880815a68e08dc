"""Errors that a caller's arguments or installation cause, and the call they name.

The command line prints a :class:`UsageError` as one line and exits with status 2. Any
other exception is an internal error: it prints a traceback and exits with status 70.
Each class below is also the built-in exception that its name ends with, so that callers
may catch either.
"""

import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from importlib import import_module
from types import FrameType
from typing import Any, TypeVar

_CALL: ContextVar[str] = ContextVar("eigenheads_call", default="")
_Result = TypeVar("_Result")
# Modules whose functions check arguments for others.
_CHECKS = ("eigenheads._checks", "eigenheads._errors")


class UsageError(Exception):
    """An error that the caller can correct; the message explains how."""


class UsageValueError(UsageError, ValueError):
    """An argument has a wrong value."""


class UsageTypeError(UsageError, TypeError):
    """An argument has a wrong type."""


class UsageRuntimeError(UsageError, RuntimeError):
    """An operation cannot run in the present state or on this machine."""


class UsageImportError(UsageError, ImportError):
    """An optional library is not installed."""


@contextmanager
def naming_errors(what: str) -> Iterator[None]:
    """Add a note to errors of a caller's function: which function raised them.

    Errors keep their type and message. A :class:`UsageError` names its cause already.

    Examples
    --------
    >>> try:
    ...     with naming_errors("the statistic 'ratio'"):
    ...         1 / 0
    ... except ZeroDivisionError as error:
    ...     print(error, error.__notes__)
    division by zero ["Raised by the statistic 'ratio'."]
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        error.add_note(f"Raised by {what}.")
        raise


def public_call() -> str:
    """Return the call of this package that the user made, such as ``RobustPCA.score``.

    It is looked for when an error is raised, from the inside outwards: the outermost
    public function of this package before the user's own code. Libraries in between,
    such as scikit-learn, are passed over. A check that the user's code calls itself
    names the function there. If another library calls a private method of ours, such
    as a hook, its class is named.
    """
    if _CALL.get():
        return _CALL.get()
    name, hooked, is_direct = "", "", True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        # Packages that build on this one have names that begin like it.
        if module.startswith("eigenheads"):
            if module not in _CHECKS:
                name, is_direct = _name_of(frame) or name, False
                hooked = hooked or type(frame.f_locals.get("self")).__name__
        elif not _is_library(frame.f_code.co_filename):
            name = _name_of(frame) if is_direct else name
            break
        frame = frame.f_back
    is_class = hooked and not hooked.startswith(("_", "NoneType"))
    return name or (hooked if is_class else "eigenheads")


def for_workers(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Return `function` for threads and processes, where errors name today's call.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor() as pool:
    ...     pool.submit(for_workers(public_call)).result() == public_call()
    True
    """
    return partial(call_as, public_call(), function)


def call_as(
    call: str, function: Callable[..., _Result], *args: Any, **kwargs: Any
) -> _Result:
    """Call a function whose errors name `call`."""
    token = _CALL.set(call)
    try:
        return function(*args, **kwargs)
    finally:
        _CALL.reset(token)


def _name_of(frame: FrameType) -> str:
    """Return how a user writes the function of a frame; nothing for a private one."""
    path = frame.f_code.co_qualname
    *_, last = path.split(".<locals>.")
    # Code in a closure belongs to the function that made it.
    path = last if "." in last else path.partition(".<locals>")[0]
    owner, _, function = path.rpartition(".")
    is_special = function.startswith("__") and function.endswith("__")
    module = str(frame.f_globals.get("__name__", ""))
    if ".cli" in module:  # a command is named after its function
        return function.removesuffix("_command") if "_command" in function else ""
    if function == "<module>" and module.startswith("eigenheads"):  # at import
        return "" if "._" in module else module
    if function.startswith("<") or (function.startswith("_") and not is_special):
        return ""
    if not owner:
        return "" if is_special else function
    instance = frame.f_locals.get("self", frame.f_locals.get("cls"))
    kind = instance if isinstance(instance, type) else type(instance)
    name = owner if instance is None else kind.__name__
    if name.startswith("_"):
        return ""
    # Parameters of estimators are checked when they are fitted; layers are called.
    is_class = is_special or function == "fit" or function.startswith("forward")
    return name if is_class else f"{name}.{function}"


@cache
def _is_library(file: str) -> bool:
    """Return whether a file belongs to Python or to an installed library."""
    if file.startswith("<"):  # code without a file: frozen modules, generated wrappers
        return not file.startswith(("<stdin", "<doctest", "<ipython", "<string"))
    folders = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    return any(file.startswith(folder) for folder in folders if folder)


def how_to_get(extra: str, *, package: str = "eigenheads") -> str:
    """Return the command that installs an extra of a package.

    Examples
    --------
    >>> how_to_get("torch")
    "pip install 'eigenheads[torch]'"
    """
    return f"pip install '{package}[{extra}]'"


def missing(name: str, *, extra: str, package: str = "eigenheads") -> ImportError:
    """Return the error that names the library, its user, and the command to install it.

    Examples
    --------
    >>> raise missing("PyTorch", extra="torch")
    Traceback (most recent call last):
    ...
    eigenheads._errors.UsageImportError:
    eigenheads: PyTorch is not installed. Run `pip install ...`.
    """
    command = how_to_get(extra, package=package)
    return UsageImportError(
        f"{public_call()}: {name} is not installed. Run `{command}`."
    )


def require(module: str, name: str, *, extra: str, package: str = "eigenheads") -> Any:
    """Return a module of an extra, or raise the error of :func:`missing`.

    Examples
    --------
    >>> require("math", "The standard library", extra="torch").pi
    3.14...
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise missing(name, extra=extra, package=package) from error
