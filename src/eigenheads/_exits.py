"""How the command line ends: its statuses, and the one line said of a mistake."""

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from eigenheads._checks import escape_controls

EXIT_OK, EXIT_CHANGED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


def status_of(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run a command line; a mistake of the caller is one line, ours a traceback."""
    arguments = list(arguments)
    try:
        status = app(arguments, prog_name="eigenheads", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted(arguments)
    except OSError as error:  # a full disk, say
        return _mistake(str(error))
    except Exception as error:
        if getattr(error, "is_of_the_caller", False):
            return _mistake(str(error))
        # Typer's own complaints about a call know how to say themselves.
        if hasattr(error, "format_message"):
            return _mistake(_complaint(error.format_message(), error))
        raise
    # Depending on its version, Typer turns Ctrl-C into an exception or a status.
    if status == EXIT_INTERRUPTED:
        return _interrupted(arguments)
    return status if isinstance(status, int) else EXIT_OK


def _mistake(message: str) -> int:
    if message:  # empty when Typer has shown the help instead
        line = escape_controls(" ".join(message.split()))
        print(f"eigenheads: {line}", file=sys.stderr)
    return EXIT_USAGE


def _complaint(message: str, error: Exception) -> str:
    """Return what Typer says, in our grammar: who says it first, what to do last."""
    if not message:
        return ""
    called = getattr(getattr(error, "ctx", None), "command_path", "eigenheads")
    owner = called.partition(" ")[2]
    who = f"{owner}: " if owner else ""
    said = re.sub(r" \(Possible options: (.*)\)$", r". Did you mean \1?", message)
    end = "" if said.endswith((".", "?")) else "."
    return f"{who}{said}{end} `{called} --help` shows what there is."


def _interrupted(arguments: list[str]) -> int:
    called = Path(sys.argv[0])
    program = ["python", "-m", "eigenheads"] if called.suffix else [str(called)]
    again = shlex.join([*program, *(word for word in arguments if word != "--force")])
    print(
        f"\nInterrupted. Every finished result is stored and whole. "
        f"To go on from there: {again}",
        file=sys.stderr,
    )
    return EXIT_INTERRUPTED
