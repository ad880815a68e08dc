"""Command line: parse, call the library, print. No logic of its own."""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from eigenheads import __version__
from eigenheads._exits import EXIT_NEWS, EXIT_OK, status_of

app = typer.Typer(
    name="eigenheads",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help=(
        "Attention heads as statistical estimators: reproduce what papers claim of "
        "them, with theory on top of simulation.\n\n"
        "Start with [bold]eigenheads demo[/], or [bold]eigenheads list[/] and then "
        "[bold]eigenheads reproduce marion2025/fig4[/]."
    ),
    epilog=(
        "Exit status: 0 all verdicts as on record, 1 some differ, "
        "2 a mistake in the call (said in one line), 130 interrupted."
    ),
)

Out = Annotated[Path, typer.Option("--out", help="Folder of results.")]


def run() -> None:
    """Run the command line and exit with its status (the console script)."""
    sys.exit(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    return status_of(app, sys.argv[1:] if argv is None else argv)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


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


@app.command("list")
def list_command() -> None:
    """List the experiments: key, what of the paper it is, and what it shows.

    When the output is not a terminal, one key a line and nothing else.
    """
    from eigenheads.experiments import experiment_keys, get_experiment

    if not sys.stdout.isatty():
        print(*experiment_keys(), sep="\n")
        return
    table = Table(box=box.SIMPLE)
    for column in ("key", "source", "shows"):
        table.add_column(column)
    for experiment in map(get_experiment, experiment_keys()):
        table.add_row(experiment.key, experiment.source, experiment.title)
    Console().print(table)


@app.command()
def reproduce(
    keys: Annotated[
        list[str],
        typer.Argument(
            metavar="KEYS...",
            help="Keys, a paper's name, globs such as 'marion2025/fig3*', or 'all'.",
            show_default=False,
        ),
    ],
    preset: Annotated[
        str,
        typer.Option(
            help="smoke: seconds, for a first look. demo: what `make demo` shows. "
            "paper: the paper's own settings (where these are fast, demo is the same)."
        ),
    ] = "demo",
    seed: Annotated[
        int, typer.Option(help="Master seed. The same seed gives the same bytes.")
    ] = 0,
    out: Out = Path("results"),
    jobs: Annotated[
        int | None,
        typer.Option(help="Threads; never changes a result.", show_default="all cores"),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compute again what is stored already.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder of real data that is not shipped, such as mnist/*-ubyte.gz.",
            envvar="EIGENHEADS_DATA",
        ),
    ] = None,
) -> int:
    """Simulate figures of papers, check their claims, and store the results.

    What is stored already is reused, so an interrupted call goes on where it
    stopped. Ends with a table of claims and writes OUT/report.html.

    For example:

      eigenheads reproduce marion2025/fig4
      eigenheads reproduce 'marion2025/fig3*' --preset paper --seed 1
      eigenheads reproduce all --preset smoke --out first-look
    """
    from eigenheads._parallel import interrupted_between_blocks
    from eigenheads.experiments import reproduce as reproduce_keys
    from eigenheads.report import ProgressDisplay, print_claims, write_report

    with interrupted_between_blocks(), ProgressDisplay() as listener:
        results = reproduce_keys(
            keys,
            preset=preset,
            seed=seed,
            out=out,
            jobs=jobs,
            force=force,
            data=data,
            listener=listener,
        )
    print_claims(results)
    print(f"Report: {write_report(out)}")
    news = sum(len(result.news) for result in results)
    if news:
        print(f"{news} verdict(s) differ from the record.", file=sys.stderr)
    return EXIT_NEWS if news else EXIT_OK


@app.command()
def demo(
    out: Out = Path("results"),
    preset: Annotated[
        str, typer.Option(help="Preset of the reproductions: smoke, demo or paper.")
    ] = "demo",
    seed: Annotated[int, typer.Option(help="Master seed of the reproductions.")] = 0,
    jobs: Annotated[
        int | None,
        typer.Option(help="Threads; never changes a result.", show_default="all cores"),
    ] = None,
) -> int:
    """Take the tour: headlines checked again, a fit on real data, a model looked into.

    Every number is measured while you watch. Ends with OUT/report.html and what to do
    next.
    """
    from eigenheads._tour import run_tour

    results = run_tour(out, preset=preset, seed=seed, jobs=jobs)
    return EXIT_NEWS if any(result.news for result in results) else EXIT_OK


@app.command()
def report(
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
    """Write OUT/report.html from stored results: figures, claims, how each was made.

    Never simulates: the figures are drawn from the stored tables.
    """
    from eigenheads.report import write_report

    print(f"Report: {write_report(out, preset=preset, seed=seed)}")


@app.command()
def probe(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Folder of a Hugging Face model, or module:callable that returns "
            "(model, batch); the latter runs your own code.",
            show_default=False,
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(help="Text file, one text a line.", show_default="12 passages"),
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="Layers, such as 0,3-5.", show_default="all")
    ] = None,
    permutations: Annotated[
        int, typer.Option(help="Draws of the nulls that cost little.")
    ] = 200,
    redraws: Annotated[
        int | None,
        typer.Option(
            help="Draws of the costly nulls: random values, keys and projections.",
            show_default="a fifth of --permutations",
        ),
    ] = None,
    untrained: Annotated[
        int, typer.Option(help="Untrained models to compare with.")
    ] = 4,
    max_length: Annotated[
        int | None,
        typer.Option(help="Cut texts at so many tokens.", show_default="128"),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Texts at a time.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed of the nulls.")] = 0,
    out: Annotated[Path, typer.Option("--out", help="Folder of results.")] = Path(
        "results/probe"
    ),
) -> int:
    """Question every head of a trained model, with a null for each number.

    Prints a table by layer and head, and writes OUT/probe.html (heat maps) and
    OUT/probe.json. Nothing is downloaded, and no code that comes with a model is run.

    For example:

      eigenheads probe models/all-MiniLM-L6-v2
      eigenheads probe models/gpt2 --data sentences.txt --layers 0,3-5
      eigenheads probe my_models:vision_transformer
    """
    from eigenheads._parallel import interrupted_between_blocks
    from eigenheads.adapters import load_model, parse_layers, probe_model
    from eigenheads.report import print_probe, write_probe

    chosen = parse_layers(layers)
    loaded = load_model(model, data=data, max_length=max_length)
    with interrupted_between_blocks():
        found = probe_model(
            loaded.model,
            loaded.batch,
            layers=chosen,
            n_permutations=permutations,
            n_redraws=redraws,
            n_untrained=untrained,
            batch_size=batch_size,
            seed=seed,
            progress=True,
        )
    print_probe(found, title=loaded.about)
    print(f"Page: {write_probe(found, out, title=loaded.about)}")
    return EXIT_OK


@app.command()
def live(
    browser: Annotated[
        bool, typer.Option(help="Open it in the web browser, or only say where it is.")
    ] = True,
) -> None:
    """Open the live page: watch attention learn, in any dimension, in the browser.

    The page works offline, from the file system.
    """
    from eigenheads.live import live_page, open_live_page

    print(f"Live page: {live_page()}")
    if browser and not open_live_page():
        print("No web browser could be started: open this file in one.")


@app.command()
def sweep(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="EXPERIMENT",
            help="Key of an experiment; `eigenheads list` shows them.",
            show_default=False,
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            metavar="NAME=VALUES",
            help="Values of one parameter: a,b,c or low:high:count or "
            "low:high:count:log. Once a parameter.",
        ),
    ] = None,
    seeds: Annotated[
        str, typer.Option(metavar="N", help="Seeds 0 to N-1, or FIRST:STOP.")
    ] = "10",
    preset: Annotated[
        str, typer.Option(help="Parameters outside the grid: smoke, demo or paper.")
    ] = "demo",
    backend: Annotated[
        str, typer.Option(help="loky: processes of this machine. dask, ray: clusters.")
    ] = "loky",
    address: Annotated[
        str | None,
        typer.Option(
            help="Scheduler of a cluster, such as tcp://node:8786.",
            show_default="workers on this machine",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(help="Cores; never changes a result.", show_default="all cores"),
    ] = None,
    out: Out = Path("results"),
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Follow the sweep that runs in OUT; run nothing."),
    ] = False,
) -> None:
    """Run an experiment at every point of a grid with every seed.

    Cells are stored as they finish: whatever ends a sweep, the same call does only
    what is missing. Writes a table (table.csv, table.npz) and a map (map.svg).

    For example:

      eigenheads sweep marion2025/fig4 --grid d=1e2,1e4 --grid step_size=1e-4:1e-2:5:log
      eigenheads sweep truong2026/phase_diagram --grid share=.001:.3:8:log
          --grid strength=.1:1.5:8:log --seeds 30 --backend dask --address tcp://node:8786
      eigenheads sweep --watch
    """
    from eigenheads.report import watch_sweep

    if watch:
        watch_sweep(out, key)
        return
    from eigenheads._checks import Got, fail
    from eigenheads._parallel import interrupted_between_blocks
    from eigenheads.experiments import parse_grid
    from eigenheads.experiments import sweep as sweep_grid
    from eigenheads.report import ProgressDisplay, print_sweep

    if key is None:
        hint = "`eigenheads list` shows all."
        fail(
            "EXPERIMENT",
            "the key of an experiment",
            Got("none"),
            owner="sweep",
            hint=hint,
        )
    # Workers do the computing, and this process may stop at once; alone, it may not.
    is_alone = jobs == 1 and backend == "loky"
    calm = interrupted_between_blocks() if is_alone else nullcontext()
    with calm, ProgressDisplay() as listener:
        result = sweep_grid(
            key,
            grid=parse_grid(grid or []),
            seeds=seeds,
            preset=preset,
            backend=backend,
            address=address,
            jobs=jobs,
            out=out,
            listener=listener,
        )
    print_sweep(result)
    n_stored = len(result.table["seed"]) - result.computed
    print(f"Cells computed: {result.computed}; stored before: {n_stored}.")
    print(f"Table and map: {result.folder}")


@app.command()
def robustness(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="module:callable of yours that returns (models, data), or with "
            "options of evaluate_robustness (models, data, {...}).",
            show_default=False,
        ),
    ],
    out: Out = Path("results"),
    attacks: Annotated[
        str | None,
        typer.Option(
            help="Attacks, separated by commas; 'none' for none.",
            show_default="fgsm,pgd,spsa,square",
        ),
    ] = None,
    budgets: Annotated[
        str | None,
        typer.Option(
            help="Budgets of the attacks in 1/255, separated by commas.",
            show_default="1,2,4,8",
        ),
    ] = None,
    corruptions: Annotated[
        str | None,
        typer.Option(
            help="Corruptions, separated by commas; 'all' or 'none'.",
            show_default="all",
        ),
    ] = None,
    severities: Annotated[
        str | None,
        typer.Option(
            help="Severities of corruptions, 1 to 5, by commas.", show_default="all"
        ),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            help="Name of the module that embeds tokens: a share of them is replaced.",
            show_default=False,
        ),
    ] = None,
    word: Annotated[
        int | None,
        typer.Option(
            help="For language models: id of the word that is swapped in.",
            show_default=False,
        ),
    ] = None,
    shares: Annotated[
        str | None,
        typer.Option(
            help="Shares of tokens replaced, or words swapped.",
            show_default="0.1,0.2,0.4",
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Examples at a time.", show_default="256")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of corruptions and attacks.", show_default="0"),
    ] = None,
) -> int:
    """Measure what models of yours lose on corrupted and attacked input.

    Prints a table with 95 % intervals (over models of a list, else over examples), and
    writes OUT/robustness.csv, .json and .svg. Options given here go before those that
    the callable returns.

    For example, with a file mymodels.py that has a function `trained`:

      eigenheads robustness mymodels:trained --attacks pgd --budgets 1,4
    """
    from eigenheads._parallel import interrupted_between_blocks
    from eigenheads.plotting import draw_robustness, render_svg, robustness_size
    from eigenheads.robustness import evaluate_source

    with interrupted_between_blocks():
        found = evaluate_source(
            source,
            attacks=attacks,
            budgets=budgets,
            corruptions=corruptions,
            severities=severities,
            tokens=tokens,
            word=word,
            shares=shares,
            batch_size=batch_size,
            seed=seed,
            progress=sys.stderr.isatty(),
        )
    print(found)
    print(f"95 % intervals: {found.interval}. Budgets of attacks are in 1/255.")
    svg = render_svg(
        lambda figure: draw_robustness(figure, found.rows),
        size=robustness_size(found.rows),
    )
    for suffix in (".csv", ".json"):
        print(f"Table: {found.save(out / f'robustness{suffix}')}")
    (out / "robustness.svg").write_bytes(svg)
    print(f"Figure: {out / 'robustness.svg'}")
    return EXIT_OK
