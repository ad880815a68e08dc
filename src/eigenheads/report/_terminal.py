"""The same report in a terminal: a progress bar, then a table of claims."""

import sys
from collections.abc import Iterable
from types import TracebackType

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from eigenheads.experiments import Claim, Listener, Result
from eigenheads.experiments._claims import count_verdicts
from eigenheads.report._page import format_expected, format_measured

# Rich cuts tables at 80 columns when the output is not a terminal.
_PIPED_WIDTH = 160


class ProgressDisplay(Listener):
    """A bar over all runs with the time left; a line a result when not a terminal."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("elapsed"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("preparing", total=None)
        self._planned = 0.0

    def __enter__(self) -> "ProgressDisplay":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def begin(self, total: float) -> None:
        """Set the total of the bar."""
        self._bar.update(self._task, total=total)

    def start(self, key: str, work: float) -> None:
        """Show the key that begins."""
        self._planned += work
        self._bar.update(self._task, description=key)

    def advance(self, units: float) -> None:
        """Advance the bar."""
        self._bar.advance(self._task, units)

    def finish(self, result: Result) -> None:
        """Print one line for a stored result."""
        self._bar.update(self._task, completed=self._planned)
        how = "reused" if result.reused else f"{result.seconds:.1f} s"
        line = f"{result.key}: {count_verdicts(result.claims)} ({how})"
        self._console.print(line, highlight=False)

    def leave_out(self, key: str, reason: str) -> None:
        """Print why a key cannot run here."""
        line = f"{key}: left out, it {reason}"
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def print_claims(results: Iterable[Result]) -> None:
    """Print the table *claim · paper · ours · verdict*."""
    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    console = Console(width=width)
    table = Table(box=box.SIMPLE_HEAD, expand=False)
    table.add_column("claim", overflow="fold", ratio=1)
    table.add_column("paper", justify="right", no_wrap=True)
    table.add_column("ours", justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    for result in results:
        table.add_section()
        table.add_row(f"[bold]{escape(result.key)}[/]")
        for claim in result.claims:
            table.add_row(
                escape(claim.statement),
                format_expected(claim),
                format_measured(claim),
                _verdict(claim),
            )
    console.print(table)


def _verdict(claim: Claim) -> str:
    color = {"held": "green", "contradicted": "red", "undecided": "yellow"}
    text = f"[{color[claim.verdict]}]{claim.verdict}[/]"
    if claim.is_changed:
        text += f" [bold](on record: {claim.on_record})[/]"
    elif claim.verdict != claim.on_record:
        text += f" (on record: {claim.on_record})"
    return f"{text}: {escape(claim.note)}" if claim.note else text
