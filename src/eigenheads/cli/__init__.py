"""Command line of the package: parse arguments, call the library, print."""

import sys
from collections.abc import Sequence

__all__ = ["main", "run"]


def run() -> None:
    """Run the command line and exit with its status (the console script)."""
    sys.exit(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    from eigenheads.cli._app import app
    from eigenheads.cli._errors import run_app

    return run_app(app, sys.argv[1:] if argv is None else argv)
