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

from eigenheads._checks import escape_controls
from eigenheads.experiments import Claim, Listener, Result
from eigenheads.report._page import format_expected, format_number

# Rich cuts tables at 80 columns when the output is not a terminal.
_PIPED_WIDTH = 160


def terminal_text(text: object) -> str:
    r"""Return text that a terminal shows and does not obey: no markup, no controls.

    Examples
    --------
    >>> print(terminal_text("[red]\x1b[2J"))
    \[red]\x1b[2J
    """
    return escape(escape_controls(str(text)))


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
        """Hear that all results together take `total` steps."""
        self._bar.update(self._task, total=total)

    def start(self, key: str, work: float) -> None:
        """Hear that `key` begins, which takes `work` steps."""
        self._planned += work
        self._bar.update(self._task, description=key)

    def advance(self, units: float) -> None:
        """Hear that `units` more steps are done."""
        self._bar.advance(self._task, units)

    def finish(self, result: Result) -> None:
        """Hear that a result is whole and stored."""
        self._bar.update(self._task, completed=self._planned)
        how = "reused" if result.reused else f"{result.seconds:.1f} s"
        met = sum(claim.verdict == "reproduced" for claim in result.claims)
        line = f"{result.key}: {met} of {len(result.claims)} claims hold ({how})"
        self._console.print(terminal_text(line), highlight=False)

    def leave_out(self, key: str, reason: str) -> None:
        """Hear that `key`, which a pattern matched, cannot run here."""
        line = f"{key}: left out, it {reason}"
        self._console.print(terminal_text(line), highlight=False, soft_wrap=True)


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
        table.add_row(f"[bold]{terminal_text(result.key)}[/]")
        for claim in result.claims:
            table.add_row(
                terminal_text(claim.statement),
                terminal_text(format_expected(claim)),
                format_number(claim.measured),
                _verdict(claim),
            )
    console.print(table)


def _verdict(claim: Claim) -> str:
    on_record = terminal_text(claim.on_record)
    if claim.undecided:
        why = terminal_text(claim.undecided)
        return f"[yellow]undecided[/] (on record: {on_record}): {why}"
    color = "green" if claim.holds else "red"
    text = f"[{color}]{claim.verdict}[/]"
    return f"{text} [bold](on record: {on_record})[/]" if claim.is_news else text
