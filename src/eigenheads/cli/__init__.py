"""Command line of the package: parse arguments, call the library, print."""

import signal
import sys
from collections.abc import Sequence

__all__ = ["main", "run"]


def run() -> None:
    """Run the command line and exit with its status (the console script)."""
    from eigenheads.cli.status import flush_output

    status = flush_output(main())
    # Nothing is left to interrupt: Ctrl-C must not print a traceback on the way out.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(status)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    from eigenheads.cli.status import interrupted, prepare_streams, run_app

    try:
        prepare_streams()
        from eigenheads.cli._app import app

        return run_app(app, arguments)
    except KeyboardInterrupt:  # while modules are imported, or after the last line
        return interrupted(arguments)
