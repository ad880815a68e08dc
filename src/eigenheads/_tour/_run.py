"""Run the chapters of the tour one after the other, and print their durations."""

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from rich import box
from rich.console import Console
from rich.table import Table

from eigenheads._checks import check_choice
from eigenheads._extras import how_to_get
from eigenheads._parallel import interrupted_between_blocks
from eigenheads._tour._chapters import digit_streams, kernel_facts, pursuit_facts
from eigenheads.experiments import Result, reproduce
from eigenheads.experiments._claims import count_verdicts
from eigenheads.experiments._registry import PRESETS
from eigenheads.report import write_report
from eigenheads.report._page import format_expected, format_number
from eigenheads.report._terminal import ProgressDisplay, print_claims, terminal_text

Say: TypeAlias = Callable[[str], None]

# Experiments that the tour reproduces.
HEADLINES = (
    "marion2025",
    "truong2026/alignment",
    "truong2026/phase_diagram",
    "maulensoto2026/fig1",
    "maulensoto2026/fig2",
    "teo2024/sign",
)
_PIPED_WIDTH = 120
_NEXT = (
    "Watch training:     {program} live",
    "Reproduce a paper:  {program} reproduce marion2025 --preset paper",
    "Use the library:    docs/start.md, ten minutes with your own data and models",
)


def run_tour(
    out: str | PathLike[str] = "results",
    *,
    keys: Sequence[str] = HEADLINES,
    preset: str = "demo",
    seed: int = 0,
    jobs: int | None = None,
) -> list[Result]:
    """Reproduce headline claims, fit an estimator, inspect a model; print findings.

    Parameters
    ----------
    out
        Folder of results, as for :func:`eigenheads.experiments.reproduce`.
    keys, preset, seed, jobs
        Experiments to reproduce, and options of `reproduce`.

    Returns
    -------
    results
        Results of the headline experiments; ``result.changed`` has the verdicts that
        differ from the record.
    """
    check_choice("preset", preset, PRESETS, owner="demo")
    # Outside a terminal, Rich would cut tables at 80 columns.
    console = Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH)

    def say(line: str) -> None:
        console.print(terminal_text(line), highlight=False, soft_wrap=True)

    start = time.perf_counter()
    with _chapter(say, "1. Claims of papers, measured again"):
        with interrupted_between_blocks(), ProgressDisplay() as listener:
            results = reproduce(
                list(keys),
                preset=preset,
                seed=seed,
                out=out,
                jobs=jobs,
                listener=listener,
            )
        _print_headlines(console, say, results)
    with _chapter(say, "2. An attention head as an estimator"):
        _say_all(say, digit_streams())
    with _chapter(say, "3. Attention as kernel PCA and as robust PCA"):
        _say_all(say, kernel_facts())
        _say_all(say, pursuit_facts())
    with _chapter(say, "4. Heads of a trained model"):
        _say_all(say, _look_inside())
    page = write_report(out)
    say(f"\nReport: {page} ({page.stat().st_size / 1e6:.1f} MB, opens offline)")
    say(f"The tour took {time.perf_counter() - start:.0f} s. Next steps:")
    _say_all(say, [line.format(program=_program()) for line in _NEXT])
    return results


@contextmanager
def _chapter(say: Say, title: str) -> Iterator[None]:
    say(f"\n{title}")
    start = time.perf_counter()
    yield
    say(f"  ({time.perf_counter() - start:.1f} s)")


def _say_all(say: Say, lines: Sequence[str] | Iterator[str]) -> None:
    for line in lines:
        say(f"  {line}")


def _program() -> str:
    """Return the command that runs this program from the current folder."""
    called = Path(sys.argv[0])
    # A program that the shell does not find by its name is shown with its path.
    is_elsewhere = called.name == "eigenheads" and shutil.which("eigenheads") is None
    return str(called) if is_elsewhere else "eigenheads"


def _look_inside() -> Iterator[str]:
    if find_spec("torch") is None:
        yield (
            f"Skipped, because PyTorch is not installed. `{how_to_get('torch')}` adds "
            "layers, swaps of attention and probes of heads;"
        )
        yield "`eigenheads demo` then shows them here."
        return
    from eigenheads._tour._torch import swap_and_probe

    yield from swap_and_probe()


def _print_headlines(console: Console, say: Say, results: Sequence[Result]) -> None:
    """Print one row per result: its first claim, and the number of claims that hold."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("key", no_wrap=True)
    table.add_column("first claim", overflow="fold", ratio=1)
    table.add_column("paper", justify="right", no_wrap=True)
    table.add_column("ours", justify="right", no_wrap=True)
    table.add_column("held", justify="right", no_wrap=True)
    for result in results:
        first = result.claims[0]
        met = sum(claim.verdict == "held" for claim in result.claims)
        table.add_row(
            terminal_text(result.key),
            terminal_text(first.statement),
            terminal_text(format_expected(first)),
            format_number(first.measured),
            f"{met} of {len(result.claims)}",
        )
    console.print(table)
    claims = [claim for result in results for claim in result.claims]
    changed = sum(claim.is_changed for claim in claims)
    say(
        f"  {count_verdicts(claims)}; "
        f"{changed or 'no'} verdict(s) differ from the record. All are in the report."
    )
    if changed:
        print_claims([result for result in results if result.changed])
