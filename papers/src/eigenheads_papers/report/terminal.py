"""Output in a terminal: progress, tables of claims and of sweeps."""

import sys
import time
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

from eigenheads.extend import (
    NotebookBar,
    check_flag,
    check_instance,
    escape_controls,
    format_number,
    is_notebook,
    n_threads,
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
# Without a terminal for a bar, a sweep prints a line after each such share.
_LINE_SHARE = 0.05
# Longer work, in seconds, is announced with an estimate of its time. The speed is
# measured over some seconds after the first burst of reports.
_LONG, _FIRST_SECONDS, _BURST_SECONDS = 60.0, 5.0, 1.0


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
    unit
        Name of a step, such as ``"cells"``: without a terminal, a line is printed
        after each twentieth of the steps. None prints one line per result only.
    estimates
        Whether to print an estimate of the time if it is over a minute.

    Examples
    --------
    >>> from eigenheads_papers import reproduce
    >>> with ProgressDisplay() as listener:  # doctest: +SKIP
    ...     reproduce("marion2025/fig5", listener=listener)
    """

    def __init__(self, *, unit: str | None = None, estimates: bool = True) -> None:
        if unit is not None:
            unit = check_instance("unit", unit, str)
        estimates = check_flag("estimates", estimates)
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
        self._cell_bar: NotebookBar | None = None
        self._task = self._bar.add_task("preparing", total=None)
        self._planned = 0.0
        self._unit = unit
        self._done = self._printed = 0.0
        # Times of the first report and of the last one within a second of it, steps
        # done by then, and the number of reports since; None before the first report.
        self._began: tuple[float, float, float] | None = None
        self._n_reports = 0
        self._estimates, self._is_told = estimates, not estimates

    def __enter__(self) -> "ProgressDisplay":
        if is_notebook():
            self._cell_bar = NotebookBar(None, "preparing")
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
        """Set the number of steps of all results."""
        self._bar.update(self._task, total=total)
        if self._cell_bar is not None:
            self._cell_bar.total = total

    def estimate(self, seconds: float) -> None:
        """Print the estimated time if it is more than a minute."""
        if self._estimates and seconds > _LONG:
            time_needed = told_duration(seconds)
            self._tell(f"Estimated time: {time_needed} on two cores.")

    def start(self, key: str, work: float) -> None:
        """Show that `key` begins, which takes `work` steps."""
        self._planned += work
        self._bar.update(self._task, description=key)
        if self._cell_bar is not None:
            self._cell_bar.description = key
            self._cell_bar.draw()

    def advance(self, units: float) -> None:
        """Add `units` finished steps."""
        self._bar.advance(self._task, units)
        if self._cell_bar is not None:
            self._cell_bar.advance(units)
        self._done += units
        if not self._is_told and units > 0:
            self._tell_time_left()
        # The share is counted from the last line that was printed.
        share = (self._done - self._printed) / max(self._planned, 1.0)
        has_bar = self._console.is_terminal or self._cell_bar is not None
        if self._unit and not has_bar and share >= _LINE_SHARE:
            self._printed = self._done
            line = f"{self._done:.0f} of {self._planned:.0f} {self._unit} done"
            self._console.print(line, highlight=False)

    def _tell_time_left(self) -> None:
        """Print the time left once, from the speed of the first steps.

        Stored cells are reported first, one by one, and take no time: the first second
        with reports does not count. Workers that began together end together, so the
        speed is known after one report of each.
        """
        now = time.monotonic()
        if self._began is None or now - self._began[0] < _BURST_SECONDS:
            first = now if self._began is None else self._began[0]
            self._began = (first, now, self._done)
            return
        _, began, done_before = self._began
        self._n_reports += 1
        if self._n_reports < n_threads() or now - began < _FIRST_SECONDS:
            return
        self._is_told = True
        seconds_left = (
            (self._planned - self._done) * (now - began) / (self._done - done_before)
        )
        if seconds_left > _LONG:
            self._tell(
                f"About {told_duration(seconds_left)} left at the speed so far. "
                "If it is interrupted, the same call continues."
            )

    def _tell(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)

    def finish(self, result: Result) -> None:
        """Print a line about a stored result."""
        # The bar moves to the planned end of this result, also if it was reused.
        self._bar.update(self._task, completed=self._planned)
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
