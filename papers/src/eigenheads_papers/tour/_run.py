"""Run the chapters of the tour one after the other: a story per system."""

import itertools
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from rich import box
from rich.console import Console
from rich.table import Table

from eigenheads.extend import (
    check_choice,
    format_number,
    how_to_get,
    interrupted_between_blocks,
)
from eigenheads_papers import Claim, Result, reproduce
from eigenheads_papers._claims import (
    count_verdicts,
    format_expected,
    format_measured,
)
from eigenheads_papers._registry import PRESETS, select_keys
from eigenheads_papers.report import write_report
from eigenheads_papers.report.terminal import (
    ProgressDisplay,
    print_claims,
    terminal_text,
)
from eigenheads_papers.tour._chapters import (
    digit_streams,
    kernel_facts,
    learned_components,
    pursuit_facts,
    rare_tokens,
)

Say: TypeAlias = Callable[[str], None]

_PIPED_WIDTH = 120


@dataclass(frozen=True)
class Story:
    """One chapter of the tour: a question, papers on it, and an example on data.

    Attributes
    ----------
    title, question
        Heading, and what the chapter is about, in plain words.
    papers
        Papers whose claims belong to this chapter.
    keys
        Experiments that the tour reproduces.
    example
        Yields sentences with measured numbers, and ends with what to conclude.
    """

    title: str
    question: str
    papers: tuple[str, ...]
    keys: tuple[str, ...]
    example: Callable[[], Iterable[str]]


STORIES = (
    Story(
        "One token decides",
        "Every sequence has one token that determines the answer, and the data do not "
        "say which. Can one attention head find it?",
        ("marion2025",),
        ("marion2025/fig3b", "marion2025/any_dimension"),
        lambda: digit_streams(),
    ),
    Story(
        "A few tokens share a direction",
        "Most tokens are noise, and a few contain the same weak signal. Can a head "
        "find its direction?",
        ("truong2026",),
        ("truong2026/alignment",),
        lambda: rare_tokens(),
    ),
    Story(
        "A head learns principal components",
        "A head that reconstructs its query from the other tokens: does it learn PCA?",
        ("maulensoto2026",),
        ("maulensoto2026/fig1", "maulensoto2026/fig8b"),
        lambda: learned_components(),
    ),
    Story(
        "Attention as kernel PCA, and a layer built on it",
        "Is the output of a head a projection on principal axes, and does the layer "
        "that follows from this idea remove errors from its input?",
        ("teo2024", "saritas2025"),
        ("teo2024/sign",),
        lambda: itertools.chain(kernel_facts(), pursuit_facts()),
    ),
)
HEADLINES = tuple(key for story in STORIES for key in story.keys)
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
        Folder of results, as for :func:`eigenheads_papers.reproduce`.
    keys, preset, seed, jobs
        Experiments to reproduce, and options of `reproduce`.

    Returns
    -------
    results
        Results of the headline experiments; ``result.changed`` has the verdicts that
        differ from the record.
    """
    check_choice("preset", preset, PRESETS)
    # Outside a terminal, Rich would cut tables at 80 columns.
    console = Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH)

    def say(line: str) -> None:
        console.print(terminal_text(line), highlight=False, soft_wrap=True)

    start = time.perf_counter()
    say("The tour takes about two minutes; every number is measured while it runs.")
    results = []
    chosen = select_keys(keys)
    for number, story in enumerate(STORIES, start=1):
        with _chapter(say, f"{number}. {story.title}"):
            say(f"  {story.question}\n")
            _say_all(say, story.example())
            of_chapter = [
                key for key in chosen if key.partition("/")[0] in story.papers
            ]
            if of_chapter:
                with interrupted_between_blocks(), _progress() as listener:
                    reproduced = reproduce(
                        of_chapter,
                        preset=preset,
                        seed=seed,
                        out=out,
                        jobs=jobs,
                        listener=listener,
                    )
                _print_headlines(console, say, reproduced)
                results += reproduced
    with _chapter(say, f"{len(STORIES) + 1}. Heads of a trained model"):
        say("  What do the heads of a model do, and is it more than chance?\n")
        _say_all(say, _look_inside())
    _print_total(say, results)
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


def _say_all(say: Say, lines: Iterable[str]) -> None:
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
    from eigenheads_papers.tour._torch import swap_and_probe

    yield from swap_and_probe()


def _progress() -> ProgressDisplay:
    return ProgressDisplay(estimates=False)


def _print_headlines(console: Console, say: Say, results: Sequence[Result]) -> None:
    """Print one row per result, and why claims were contradicted or undecided."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("key", no_wrap=True)
    table.add_column("first claim", overflow="fold", ratio=1)
    table.add_column("expected", justify="right", no_wrap=True)
    table.add_column("ours", justify="right", no_wrap=True)
    table.add_column("held", justify="right", no_wrap=True)
    for result in results:
        first = result.claims[0]
        met = sum(claim.outcome == "held" for claim in result.claims)
        table.add_row(
            terminal_text(result.key),
            terminal_text(first.statement),
            terminal_text(format_expected(first)),
            format_number(first.measured),
            f"{met} of {len(result.claims)}",
        )
    console.print(table)
    claims = [claim for result in results for claim in result.claims]
    say(f"  In this chapter: {count_verdicts(claims)}.")
    for claim in claims:
        if claim.outcome == "contradicted":
            say(f"  {_told_failure(claim)}")
    n_undecided = sum(claim.outcome == "undecided" for claim in claims)
    if n_undecided:
        say(
            f"  Undecided: {n_undecided}. The runs of this tour are short; "
            "`--preset paper` runs more seeds."
        )
    if any(result.changed for result in results):
        print_claims([result for result in results if result.changed])


def _told_failure(claim: Claim) -> str:
    """Return a sentence on a claim, or check of ours, that does not hold."""
    whose = "Our own check failed" if claim.is_check else "The paper is contradicted"
    record = "as on record" if claim.on_record == claim.outcome else "unlike the record"
    return (
        f"{whose}, {record}: {claim.statement}: expected "
        f"{format_expected(claim).removeprefix('ours: ')}, measured "
        f"{format_measured(claim)}. Tolerance: {claim.reason}."
    )


def _print_total(say: Say, results: Sequence[Result]) -> None:
    claims = [claim for result in results for claim in result.claims]
    changed = sum(claim.is_changed for claim in claims)
    say(
        f"\nAll chapters: {count_verdicts(claims)}; "
        f"{changed or 'no'} verdict(s) differ from the record. All are in the report."
    )
