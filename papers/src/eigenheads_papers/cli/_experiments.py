"""Commands on experiments: list, describe, reproduce, sweep, report and demo."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from eigenheads.cli.status import EXIT_CHANGED, EXIT_OK, Out, say
from eigenheads.extend import check_choice
from eigenheads_papers.cli._recipes import evaluate_for_claims, is_first_process

_KEY_HELP = (
    "Key of an experiment (`eigenheads list` shows them), or module:object of your own."
)
_KEYS_HELP = (
    "Keys, a paper's name, globs such as 'marion2025/fig3*', 'all', or module:object "
    "with experiments of your own; the module may be in the current folder."
)


def list_command(
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEYS]", help=_KEYS_HELP, show_default="all"),
    ] = None,
) -> None:
    """List experiments by paper: key, title, and time at presets demo and paper.

    If the output is not a terminal, print one key per line and nothing else.
    """
    from eigenheads_papers import experiment_keys
    from eigenheads_papers._records import estimated_seconds, told_duration
    from eigenheads_papers._registry import paper_of, select_experiments

    # For scripts: `eigenheads list | xargs ...`.
    if not keys and not sys.stdout.isatty():
        print(*experiment_keys(), sep="\n")
        return
    experiments, _ = select_experiments(keys or "all")
    if not sys.stdout.isatty():
        print(*(experiment.key for experiment in experiments), sep="\n")
        return
    console = Console()
    papers = dict.fromkeys(experiment.paper for experiment in experiments)
    for paper in papers:
        chosen = [experiment for experiment in experiments if experiment.paper == paper]
        title = paper_of(chosen[0]).title
        console.print(f"\n[bold]{paper}[/]  {escape(title) if title != paper else ''}")
        table = Table(box=None, show_header=paper == next(iter(papers)), padding=(0, 1))
        # A key that is cut cannot be copied; titles may wrap.
        table.add_column("key", no_wrap=True, min_width=28)
        table.add_column("shows", ratio=1)
        table.add_column("demo", justify="right", no_wrap=True, min_width=6)
        table.add_column("paper", justify="right", no_wrap=True, min_width=6)
        for experiment in chosen:
            times = [
                told_duration(
                    estimated_seconds(experiment, experiment.presets[name])
                    if name in experiment.presets
                    else None
                )
                for name in ("demo", "paper")
            ]
            table.add_row(experiment.key, escape(experiment.title), *times)
        console.print(table)
    console.print("\nTimes are estimates for two cores, at presets demo and paper.")


def describe_command(
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help=_KEY_HELP,
            show_default=False,
        ),
    ],
) -> None:
    """Describe an experiment: what it shows, parameters, presets, columns, time."""
    from eigenheads_papers import get_experiment
    from eigenheads_papers._parameters import parameter_rows
    from eigenheads_papers._records import (
        estimated_seconds,
        table_columns,
        told_duration,
    )
    from eigenheads_papers._registry import command_name
    from eigenheads_papers._run import obstacle

    experiment = get_experiment(key)
    console = Console(highlight=False)
    console.print(f"[bold]{experiment.key}[/]  {escape(experiment.title)}")
    console.print(f"Source: {escape(experiment.source)}\n")
    console.print(escape(experiment.about) + "\n")
    table = Table(box=box.SIMPLE, title="Parameters", title_justify="left")
    table.add_column("name", no_wrap=True)
    for column in ("meaning", *experiment.presets):
        table.add_column(column)
    for row in parameter_rows(experiment):
        table.add_row(*map(escape, row))
    console.print(table)
    times = ", ".join(
        f"{name} {told_duration(estimated_seconds(experiment, params))}"
        for name, params in experiment.presets.items()
    )
    console.print(f"Time on two cores, estimated: {times}.")
    columns = ", ".join(table_columns(experiment.key)) or "–"
    console.print(f"Columns of the table: {columns}.")
    *_, (largest, params) = experiment.presets.items()
    reason = obstacle(experiment, params)
    if reason:
        console.print(f"Preset {escape(largest)}: {escape(reason)}")
    preset = "demo" if "demo" in experiment.presets else next(iter(experiment.presets))
    name = command_name(experiment) or key
    console.print(
        f"Run it: eigenheads reproduce {name} --preset {preset}", markup=False
    )


def reproduce_command(
    keys: Annotated[
        list[str],
        typer.Argument(
            metavar="KEYS",
            help=_KEYS_HELP,
            show_default=False,
        ),
    ],
    preset: Annotated[
        str,
        typer.Option(
            help="smoke: seconds, for a first look. demo: as in `make demo`. "
            "paper: the settings of the paper (equal to demo if these are fast)."
        ),
    ] = "demo",
    seed: Annotated[
        int, typer.Option(help="Master seed. The same seed gives identical results.")
    ] = 0,
    out: Out = Path("results"),
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Number of threads; does not change results.", show_default="all cores"
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Recompute stored results.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder of real data that is not shipped, such as mnist/*-ubyte.gz.",
            envvar="EIGENHEADS_DATA",
        ),
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder that `train` wrote, for teo2024/imagenet or teo2024/wikitext; "
            "once per run. DATA then holds the benchmarks.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Change a parameter of the experiments; `eigenheads describe KEY` "
            "lists them. Claims are then measured, but not judged.",
        ),
    ] = None,
    figure: Annotated[
        str, typer.Option(help="Format of the figures: svg, pdf or png.")
    ] = "svg",
) -> int:
    """Simulate figures of papers, check their claims, and store the results.

    Stored results are reused, so an interrupted call continues where it stopped.
    Prints a table of claims and writes OUT/report.html.

    For example:

      eigenheads reproduce marion2025/fig4
      eigenheads reproduce 'marion2025/fig3*' --preset paper --seed 1
      eigenheads reproduce all --preset smoke --out first-look
      eigenheads reproduce marion2025/fig4 --set d=400 --figure pdf
      eigenheads reproduce my_module:experiments --preset smoke
      eigenheads reproduce teo2024/imagenet --data /data --runs runs/rpc-0
          --runs runs/symmetric-0 --out my-ledger
    """
    # These imports are local, so that other commands start without the modules.
    from eigenheads.extend import interrupted_between_blocks
    from eigenheads_papers import reproduce
    from eigenheads_papers._parameters import parse_settings
    from eigenheads_papers._registry import select_experiments
    from eigenheads_papers._run import save_figures
    from eigenheads_papers.report import write_report
    from eigenheads_papers.report.terminal import ProgressDisplay, print_claims

    if runs:
        data = evaluate_for_claims(runs, data, out)
        if not is_first_process():
            return EXIT_OK
    changed = parse_settings(settings or [], option="set")
    check_choice("figure", figure, ("svg", "pdf", "png"))
    experiments, _ = select_experiments(keys)
    with interrupted_between_blocks(), ProgressDisplay() as listener:
        results = reproduce(
            keys,
            preset=preset,
            seed=seed,
            out=out,
            jobs=jobs,
            force=force,
            data=data,
            listener=listener,
            **changed,
        )
    print_claims(results)
    if any(result.reused for result in results):
        say("Stored results were read; --force computes them again.")
    if figure != "svg":
        for file in save_figures(results, out, figure, experiments=experiments):
            say(file)
    say(f"Report: {write_report(out, experiments=experiments)}")
    # The exit status tells scripts whether a verdict differs from the record.
    n_changed = sum(len(result.changed) for result in results)
    if n_changed:
        print(f"{n_changed} verdict(s) differ from the record.", file=sys.stderr)
    return EXIT_CHANGED if n_changed else EXIT_OK


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
    from eigenheads_papers.tour._run import run_tour

    results = run_tour(out, preset=preset, seed=seed, jobs=jobs)
    return EXIT_CHANGED if any(result.changed for result in results) else EXIT_OK


def report_command(
    experiments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODULE:OBJECT]",
            help="Experiments of your own whose results the page shows, too.",
            show_default=False,
        ),
    ] = None,
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
    from eigenheads_papers.report import write_report

    path = write_report(out, preset=preset, seed=seed, experiments=experiments or ())
    say(f"Report: {path}")


def sweep_command(
    key: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT",
            help=_KEY_HELP,
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
    from eigenheads.extend import interrupted_between_blocks
    from eigenheads_papers import sweep
    from eigenheads_papers.report.terminal import ProgressDisplay, print_sweep
    from eigenheads_papers.sweeps._grid import parse_grid
    from eigenheads_papers.sweeps._run import tell_plan

    values = parse_grid(grid or [])
    plan = tell_plan(key, grid=values, seeds=seeds, preset=preset)
    say(plan, is_result=False)
    # Ctrl-C must not interrupt compiled code, which runs here unless there are workers.
    runs_here = backend == "threading" or (jobs == 1 and backend == "loky")
    calm = interrupted_between_blocks() if runs_here else nullcontext()
    with calm, ProgressDisplay() as listener:
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
