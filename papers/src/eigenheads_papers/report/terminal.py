"""Output in a terminal: progress, tables of claims and of sweeps."""

import sys
from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from eigenheads.extend import (
    check_flag,
    escape_controls,
    format_number,
    progress_view,
)
from eigenheads_papers import Claim, Listener, Result, SweepResult
from eigenheads_papers._claims import (
    CHANGED_SETTING,
    count_verdicts,
    format_expected,
    format_measured,
    is_judged,
)
from eigenheads_papers._records import told_duration

# Rich cuts tables at 80 columns when the output is not a terminal.
_PIPED_WIDTH = 160
# Rows of a sweep's table that are printed.
_MAX_ROWS = 20
# Longer work, in seconds, is announced with an estimate of its time.
_LONG = 60.0


def terminal_text(text: object) -> str:
    r"""Return text without markup and control characters, safe for a terminal.

    Examples
    --------
    >>> print(terminal_text("[red]\x1b[2J"))
    \[red]\x1b[2J
    """
    return escape(escape_controls(str(text)))


class ProgressDisplay(Listener):
    """Listener with a progress bar, in a terminal or a notebook; elsewhere lines.

    Parameters
    ----------
    estimates
        Whether to print an estimate of the time if it is over a minute.

    Examples
    --------
    >>> from eigenheads_papers import reproduce
    >>> with ProgressDisplay() as listener:  # doctest: +SKIP
    ...     reproduce("marion2025/fig5", listener=listener)
    """

    def __init__(self, *, estimates: bool = True) -> None:
        self._estimates = check_flag("estimates", estimates)
        self._console = Console(stderr=True)
        self._views = ExitStack()
        self._view: Any = None
        self._planned = self._done = 0.0

    def __enter__(self) -> "ProgressDisplay":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._views.close()

    def begin(self, total: float) -> None:
        """Show the number of steps of all results."""
        self._view = progress_view(total, "preparing")
        self._views.callback(self._view.close)

    def estimate(self, seconds: float) -> None:
        """Print the estimated time if it is more than a minute."""
        if self._estimates and seconds > _LONG:
            self._tell(
                f"Estimated time: {told_duration(seconds)} on two cores. If it is "
                "interrupted, the same call continues."
            )

    def start(self, key: str, work: float) -> None:
        """Show that `key` begins, which takes `work` steps."""
        self._planned += work
        if self._view is not None:
            self._view.describe(key)

    def advance(self, units: float) -> None:
        """Add `units` finished steps."""
        self._done += units
        if self._view is not None:
            self._view.advance(units)

    def _tell(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)

    def finish(self, result: Result) -> None:
        """Print a line about a stored result."""
        # The bar moves to the planned end of this result, also if it was reused.
        self.advance(self._planned - self._done)
        how = f"{result.seconds:.1f} s"
        if result.reused:
            how = f"stored on {result.created[:10]} by version {result.version}"
        line = f"{result.key}: {count_verdicts(result.claims)} ({how})"
        self._console.print(terminal_text(line), highlight=False, soft_wrap=True)

    def leave_out(self, key: str, reason: str) -> None:
        """Print that `key` is left out, and the reason."""
        line = f"{key}: left out, it {reason}"
        self._console.print(terminal_text(line), highlight=False, soft_wrap=True)


def print_claims(results: Iterable[Result]) -> None:
    """Print a table of claims: expectation, measured number and verdict."""
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
                format_measured(claim),
                _verdict(claim),
            )
    console.print(table)


def _verdict(claim: Claim) -> str:
    if claim.unjudged == CHANGED_SETTING:
        return f"[yellow]{CHANGED_SETTING}[/]"
    color = {"held": "green", "contradicted": "red", "undecided": "yellow"}
    text = f"[{color[claim.outcome]}]{claim.verdict}[/]"
    if claim.is_changed:
        text += f" [bold](on record: {claim.on_record})[/]"
    elif is_judged(claim) and claim.outcome != claim.on_record:
        text += f" (on record: {claim.on_record})"
    return f"{text}: {terminal_text(claim.note)}" if claim.note else text


def print_sweep(result: SweepResult) -> None:
    """Print the mean over seeds at each point of a sweep, at most the first 20."""
    console = Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    n_points = len(next(iter(result.table.values()))) // len(result.seeds)
    table = Table(box=box.SIMPLE_HEAD)
    for name in [*result.axes, *result.names]:
        table.add_column(terminal_text(name), justify="right")
    means = [result.mean(name).ravel() for name in result.names]
    for point in range(min(n_points, _MAX_ROWS)):
        # The rows of a point are consecutive, one per seed; the first names the point.
        row = point * len(result.seeds)
        at = [_value(result.table[name][row]) for name in result.axes]
        table.add_row(*at, *(format_number(float(mean[point])) for mean in means))
    console.print(table)
    if n_points > _MAX_ROWS:
        console.print(f"({n_points - _MAX_ROWS} more points in the table)")
    for sentence in result.refused[:3]:
        console.print(f"Refused: {terminal_text(sentence)}", highlight=False)
    for path in result.damaged:
        note = f"Damaged file; its cells were computed again: {path}"
        console.print(terminal_text(note), highlight=False, soft_wrap=True)


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else terminal_text(value)
