"""Errors that a caller's arguments or installation cause.

The command line prints a :class:`UsageError` as one line and exits with status 2. Any
other exception is an internal error: it prints a traceback and exits with status 70.
Each class below is also the built-in exception that its name ends with, so that callers
may catch either.
"""

from collections.abc import Iterator
from contextlib import contextmanager


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
