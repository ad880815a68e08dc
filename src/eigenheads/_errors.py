"""Errors that a caller's arguments or installation cause.

The command line prints a :class:`UsageError` as one line and exits with status 2. Any
other exception is an internal error: it prints a traceback and exits with status 70.
Each class below is also the built-in exception that its name ends with, so that callers
may catch either.
"""


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
