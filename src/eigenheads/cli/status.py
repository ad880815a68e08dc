"""Exit statuses of the command line, and its lines of output."""

import io
import os
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from eigenheads._checks import escape_controls
from eigenheads._errors import UsageError

EXIT_OK, EXIT_CHANGED, EXIT_USAGE = 0, 1, 2
# sysexits.h calls this status EX_SOFTWARE.
EXIT_INTERNAL = 70
# As shells report a process that SIGINT, SIGPIPE or SIGTERM ended.
EXIT_INTERRUPTED, EXIT_PIPE, EXIT_TERMINATED = 130, 141, 143

# Commands that cannot be continued, and what they keep.
_START_AGAIN = {
    "probe": "probe keeps the layers that were finished",
    "robustness": "robustness stores its results at its end",
}

EXIT_STATUSES = (
    "Exit status: 0 all verdicts agree with the record, 1 a verdict differs, 2 a "
    "mistake in the call (explained in one line), 70 an internal error (with a "
    "traceback), 130 interrupted, 141 the output was closed by its reader, 143 stopped "
    "by SIGTERM (the same call continues)."
)


def say(text: object, *, is_result: bool = True) -> None:
    """Print text with control characters written out; folders may contain any."""
    stream = sys.stdout if is_result else sys.stderr
    print(escape_controls(str(text)), file=stream)


def read_folder(text: str) -> Path:
    """Return the path of a folder; an empty text would be the current one."""
    if not str(text):
        raise typer.BadParameter("must be the path of a folder; got ''.")
    return Path(text)


# Options that several commands share.
Out = Annotated[
    Path,
    typer.Option(
        "--out", metavar="FOLDER", parser=read_folder, help="Folder of results."
    ),
]


def run_app(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run a command line and return its exit status.

    Usage errors print one line, internal errors a traceback.
    """
    arguments = list(arguments)
    # Numba would print a warning with a traceback, or fail, when it is imported.
    if arguments and "--help" not in arguments and (mistake := _threads_mistake()):
        return _usage_error(mistake)
    try:
        # Outside the standalone mode, Typer raises its errors instead of exiting.
        status = app(arguments, prog_name="eigenheads", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return interrupted(arguments)
    except SystemExit as error:
        # Click ends in this way, with status 1, when the reader of a pipe has gone.
        if isinstance(error.__context__, BrokenPipeError):
            return EXIT_PIPE
        raise
    except (UsageError, OSError) as error:  # an OSError is a full disk, for example
        return _usage_error(str(error))
    except Exception as error:
        # Typer's own errors about a call bring their message with them.
        if hasattr(error, "format_message"):
            return _usage_error(_in_our_grammar(error.format_message(), error))
        mistake = _environment_mistake(error)
        if mistake:
            return _usage_error(mistake)
        print(escape_controls(traceback.format_exc()), end="", file=sys.stderr)
        print(
            "eigenheads: internal error. Please report the traceback above.",
            file=sys.stderr,
        )
        return EXIT_INTERNAL
    # Depending on its version, Typer turns Ctrl-C into an exception or a status.
    if status == EXIT_INTERRUPTED:
        return interrupted(arguments)
    return status if isinstance(status, int) else EXIT_OK


def prepare_streams() -> None:
    """Make standard output and error accept any text, even if they are closed.

    A stream that the shell closed (``>&-``) is discarded, and characters that an
    encoding such as Latin-1 lacks are written as escapes.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            null = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
            setattr(sys, name, null)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def flush_output(status: int) -> int:
    """Flush standard output; return the status, or another one if this fails.

    Otherwise Python would try again at exit, and print an error of its own.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
        if isinstance(error, BrokenPipeError):
            return EXIT_PIPE
        return _usage_error(f"standard output: {error.strerror or error}")
    return status


def _environment_mistake(error: Exception) -> str:
    """Return a sentence if an environment variable made a library fail to import."""
    backend = os.environ.get("MPLBACKEND")
    if backend and isinstance(error, ValueError) and "Key backend:" in str(error):
        contract = "a backend of Matplotlib, or not be set"
        return f"environment: `MPLBACKEND` must be {contract}; got {backend!r}."
    return ""


def _threads_mistake() -> str:
    """Return a sentence if ``NUMBA_NUM_THREADS`` is not a number of threads."""
    threads = os.environ.get("NUMBA_NUM_THREADS")
    if threads is None or (threads.isdecimal() and int(threads) > 0):
        return ""
    contract = "an integer >= 1, or not be set"
    return f"environment: `NUMBA_NUM_THREADS` must be {contract}; got {threads!r}."


def _usage_error(message: str) -> int:
    if message:  # empty when Typer has printed the help instead
        say(f"eigenheads: {' '.join(message.split())}", is_result=False)
    return EXIT_USAGE


def _in_our_grammar(message: str, error: Exception) -> str:
    """Return Typer's message with the command in front and a hint at the end."""
    if not message:
        return ""
    # The command path is the program and the command; the latter is the owner.
    called = getattr(getattr(error, "ctx", None), "command_path", "eigenheads")
    owner = called.partition(" ")[2]
    who = f"{owner}: " if owner else ""
    # The names that Typer suggests become a question.
    text = re.sub(r" \(Possible options: (.*)\)$", r". Did you mean \1?", message)
    end = "" if text.endswith((".", "?")) else "."
    return f"{who}{text}{end} `{called} --help` lists arguments and options."


def interrupted(arguments: Sequence[str]) -> int:
    """Print how to go on; return the status of an interrupted command."""
    called = Path(sys.argv[0])
    # A suffix means that a file was run, as by `python -m`.
    program = ["python", "-m", "eigenheads"] if called.suffix else [str(called)]
    # With --force the finished results would be computed again.
    again = shlex.join([*program, *(word for word in arguments if word != "--force")])
    advice = f"All finished results are stored. To continue: {again}"
    if arguments and arguments[0] in _START_AGAIN:
        advice = f"{_START_AGAIN[arguments[0]]}. To start again: {again}"
    say(f"\nInterrupted. {advice}", is_result=False)
    return EXIT_INTERRUPTED
