"""``python -m eigenheads`` is the command line."""

from eigenheads.cli import run

run()
