"""Commands that this package adds to the command ``eigenheads``."""

import typer

from eigenheads_papers.cli._experiments import (
    demo_command,
    describe_command,
    list_command,
    report_command,
    reproduce_command,
    sweep_command,
)
from eigenheads_papers.cli._recipes import evaluate_command, train_command

__all__ = ["add_commands"]


def add_commands(app: typer.Typer) -> None:
    """Add the commands; the entry point of this package."""
    app.command("demo")(demo_command)
    app.command("list")(list_command)
    app.command("describe")(describe_command)
    app.command("reproduce")(reproduce_command)
    app.command("report")(report_command)
    app.command("sweep")(sweep_command)
    app.command("train")(train_command)
    app.command("evaluate")(evaluate_command)
