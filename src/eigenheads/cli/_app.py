"""Commands of the command line; commands on models are in ``_models``."""

import inspect
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from eigenheads import __version__
from eigenheads.cli._errors import EXIT_CHANGED, EXIT_OK, EXIT_STATUSES, say
from eigenheads.cli._experiments import (
    describe_command,
    list_command,
    reproduce_command,
)
from eigenheads.cli._models import Out, probe_command, robustness_command
from eigenheads.cli._recipes import evaluate_command, train_command

app = typer.Typer(
    name="eigenheads",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help=(
        "Attention heads as statistical estimators: reproduce the claims of papers, "
        "and compare theory with simulation.\n\n"
        "Start with [bold]eigenheads demo[/], or [bold]eigenheads list[/] and then "
        "[bold]eigenheads reproduce marion2025/fig4[/]."
    ),
    epilog=EXIT_STATUSES,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


# A callback without code gives the program itself the option --version.
@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    pass


app.command("list")(list_command)
app.command("describe")(describe_command)
app.command("reproduce")(reproduce_command)


@app.command("demo")
def demo_command(
    out: Out = Path("results"),
    preset: Annotated[
        str, typer.Option(help="Preset of the reproductions: smoke, demo or paper.")
    ] = "demo",
    seed: Annotated[int, typer.Option(help="Master seed of the reproductions.")] = 0,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Number of threads; does not change results.", show_default="all cores"
        ),
    ] = None,
) -> int:
    """Run a tour of two minutes: a question per chapter, examples, claims of papers.

    Every number is measured during the run. Writes OUT/report.html and suggests next
    steps.
    """
    from eigenheads._tour._run import run_tour

    results = run_tour(out, preset=preset, seed=seed, jobs=jobs)
    return EXIT_CHANGED if any(result.changed for result in results) else EXIT_OK


@app.command("report")
def report_command(
    out: Out = Path("results"),
    preset: Annotated[
        str | None,
        typer.Option(help="Only results of this preset.", show_default="newest"),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Only results of this seed.", show_default="newest"),
    ] = None,
) -> None:
    """Write OUT/report.html from stored results: figures, claims, settings.

    Does not simulate: figures are drawn from the stored tables.
    """
    from eigenheads.report import write_report

    say(f"Report: {write_report(out, preset=preset, seed=seed)}")


app.command("probe")(probe_command)


@app.command("live")
def live_command(
    browser: Annotated[
        bool,
        typer.Option(help="Open the page in a web browser, or only print its path."),
    ] = True,
) -> None:
    """Open the live page, which simulates training of attention in the browser.

    The page works offline, from the file system.
    """
    from eigenheads.live import live_page, open_live_page

    say(f"Live page: {live_page()}")
    if browser and not open_live_page():
        say("No web browser could be started. Open this file in one.")


@app.command("sweep")
def sweep_command(
    key: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT",
            help="Key of an experiment; `eigenheads list` shows them.",
            show_default=False,
        ),
    ],
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            metavar="NAME=VALUES",
            help="Values of one parameter: a,b,c or low:high:count or "
            "low:high:count:log. Repeat it for each parameter.",
        ),
    ] = None,
    seeds: Annotated[
        str, typer.Option(metavar="N", help="Seeds 0 to N-1, or FIRST:STOP.")
    ] = "10",
    preset: Annotated[
        str, typer.Option(help="Parameters outside the grid: smoke, demo or paper.")
    ] = "demo",
    backend: Annotated[
        str,
        typer.Option(
            help="loky: processes of this machine. threading: threads. dask: a cluster."
        ),
    ] = "loky",
    address: Annotated[
        str | None,
        typer.Option(
            help="Scheduler of a cluster, such as tcp://node:8786. Both sides run code "
            "that the other sends: use only a cluster that you trust.",
            show_default="workers on this machine",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Number of cores; does not change results.", show_default="all cores"
        ),
    ] = None,
    out: Out = Path("results"),
    force: Annotated[
        bool, typer.Option("--force", help="Recompute stored cells.")
    ] = False,
) -> None:
    """Run an experiment at every point of a grid with every seed.

    Cells are stored as they finish. After an interruption, the same call computes only
    the missing cells. Writes a table (table.csv, table.safetensors) and map.svg.

    For example:

      eigenheads sweep marion2025/fig4 --grid d=1e2,1e4
          --grid step_size=1e-4:1e-2:5:log
      eigenheads sweep truong2026/phase_diagram --grid share=.001:.3:8:log
          --grid strength=.1:1.5:8:log --seeds 30
          --backend dask --address tcp://node:8786
    """
    from eigenheads._parallel import interrupted_between_blocks
    from eigenheads.experiments import sweep
    from eigenheads.experiments.sweeps._grid import parse_grid
    from eigenheads.experiments.sweeps._run import tell_plan
    from eigenheads.report._terminal import ProgressDisplay, print_sweep

    values = parse_grid(grid or [])
    plan = tell_plan(key, grid=values, seeds=seeds, preset=preset)
    say(plan, is_result=False)
    # Ctrl-C must not interrupt compiled code, which runs here unless there are workers.
    runs_here = backend == "threading" or (jobs == 1 and backend == "loky")
    calm = interrupted_between_blocks() if runs_here else nullcontext()
    with calm, ProgressDisplay(unit="cells") as listener:
        result = sweep(
            key,
            grid=values,
            seeds=seeds,
            preset=preset,
            backend=backend,
            address=address,
            jobs=jobs,
            out=out,
            force=force,
            listener=listener,
        )
    print_sweep(result)
    n_stored = len(result.table["seed"]) - result.computed
    say(f"Cells computed: {result.computed}; stored before: {n_stored}.")
    say(f"Table and map: {result.folder}")


app.command("robustness")(robustness_command)
app.command("train")(train_command)
app.command("evaluate")(evaluate_command)


def _flowing(text: str) -> str:
    """Join the lines of paragraphs; Rich wraps them to the width of the terminal."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    # An indented paragraph is a list of examples, whose line breaks must stay.
    return "\n\n".join(
        one if one.startswith(" ") else " ".join(one.split()) for one in paragraphs
    )


# Typer shows docstrings with their line breaks; help texts should flow instead.
for _command in app.registered_commands:
    _command.help = _flowing(getattr(_command.callback, "__doc__", "") or "")
