"""A sweep in a terminal: how it ended, and how far a running one has come."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from eigenheads.experiments import SweepFollower, SweepResult, SweepState
from eigenheads.report._page import format_number
from eigenheads.report._terminal import terminal_text

# A folder in which nothing new appears for this long is called quiet.
_QUIET_SECONDS = 60.0
_MOST_ROWS = 20
# Where there is no terminal for a bar, a line each time so much more is stored.
_NEWS_SHARE = 0.05


def print_sweep(result: SweepResult) -> None:
    """Print the means at the points, the first ones if they are many."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    n_points = len(next(iter(result.table.values()))) // len(result.seeds)
    table = Table(box=box.SIMPLE_HEAD)
    for name in [*result.axes, *result.names]:
        table.add_column(terminal_text(name), justify="right")
    means = [result.mean(name).ravel() for name in result.names]
    for point in range(min(n_points, _MOST_ROWS)):
        row = point * len(result.seeds)
        at = [_value(result.table[name][row]) for name in result.axes]
        table.add_row(*at, *(format_number(float(mean[point])) for mean in means))
    console.print(table)
    if n_points > _MOST_ROWS:
        console.print(f"({n_points - _MOST_ROWS} more points in the table)")
    for sentence in result.refused[:3]:
        console.print(f"No run: {terminal_text(sentence)}", highlight=False)
    for path in result.damaged:
        note = f"Damaged, its cells computed again: {path}"
        console.print(terminal_text(note), highlight=False, soft_wrap=True)


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def watch_sweep(
    out: str | Path,
    key: str | None = None,
    *,
    every: float = 1.0,
    sleep: Callable[[float], None] = time.sleep,
) -> SweepState:
    """Follow a sweep that another process runs, till it is whole.

    Parameters
    ----------
    out
        The sweep's folder.
    key
        Of the experiment; by default the sweep that was begun last.
    every
        Seconds between two looks.
    sleep
        What waits.

    Returns
    -------
    state
        The last one. Not whole if all cells are stored and yet nobody wrote the table:
        the process ended before, or no point of the grid allowed a run.
    """
    follower = SweepFollower(out, key)
    state = follower.state()
    console = Console()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    said = -1
    with bar:
        task = bar.add_task(terminal_text(state.key), total=state.total, note="")
        while not (state.is_whole or _is_left(state)):
            bar.update(task, completed=state.done, note=_note(state))
            is_news = said < 0 or state.done - said >= _NEWS_SHARE * state.total
            if not console.is_terminal and is_news:
                said = state.done
                console.print(
                    terminal_text(_line(state)), highlight=False, soft_wrap=True
                )
            sleep(every)
            state = follower.state()
    console.print(terminal_text(_line(state)), highlight=False, soft_wrap=True)
    return state


def _note(state: SweepState, before: str = "") -> str:
    if not _QUIET_SECONDS < state.idle < float("inf"):
        return ""
    return f"{before}quiet for {state.idle:.0f} s"


def _is_left(state: SweepState) -> bool:
    return state.done == state.total and state.idle > _QUIET_SECONDS


def _line(state: SweepState) -> str:
    text = f"{state.key}: {state.done} of {state.total} cells stored"
    if state.is_whole:
        return f"{text}. Table: {state.folder / 'table.csv'}"
    if _is_left(state):
        return f"{text}, but no table. The same sweep again writes it or says why not."
    return f"{text}{_note(state, ', ')}"
