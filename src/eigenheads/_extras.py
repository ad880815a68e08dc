"""Optional libraries, and the error that names the extra to install."""

from importlib import import_module
from typing import Any

from eigenheads._errors import UsageImportError, public_call


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


def require(module: str, name: str, *, extra: str) -> Any:
    """Return a module of an extra, or raise the error of :func:`missing`.

    Examples
    --------
    >>> require("math", "The standard library", extra="torch").pi
    3.14...
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise missing(name, extra=extra) from error
