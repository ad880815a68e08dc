"""Commands on models of the user: ``probe`` and ``robustness``."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from eigenheads._checks import check_count
from eigenheads.cli.status import EXIT_OK, Out, say


def probe_command(
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
        typer.Option(
            help="Text file with one text per line.", show_default="12 passages"
        ),
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="Layers, such as 0,3-5.", show_default="all")
    ] = None,
    statistics: Annotated[
        str | None,
        typer.Option(
            help="Names of statistics, separated by commas.", show_default="all"
        ),
    ] = None,
    ignore_tokens: Annotated[
        str | None,
        typer.Option(
            help="Tokens to ignore: 'first', 'outliers', or positions such as 0,5.",
            show_default="none",
        ),
    ] = None,
    permutations: Annotated[
        int, typer.Option(help="Draws of the cheap null distributions.")
    ] = 200,
    redraws: Annotated[
        int | None,
        typer.Option(
            help="Draws of the expensive null distributions: random values, keys and "
            "projections.",
            show_default="a fifth of --permutations for 64 texts; more for fewer",
        ),
    ] = None,
    untrained: Annotated[
        int, typer.Option(help="Number of untrained copies to compare with.")
    ] = 8,
    max_length: Annotated[
        int | None,
        typer.Option(
            help="Number of tokens at which texts are cut.", show_default="128"
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Texts per batch.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed of the null distributions.")] = 0,
    jobs: Annotated[
        int | None, typer.Option(help="Number of threads.", show_default="all cores")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of results.")] = Path(
        "results/probe"
    ),
) -> int:
    """Run all probes on every head of a model, with a null for each statistic.

    Prints findings and a table of statistics and nulls, and writes OUT/probe.html (a
    page with heat maps), OUT/probe.json (rows) and OUT/probe.safetensors (arrays).
    Nothing is downloaded, and code in a model's folder is not run.

    For example:

      eigenheads probe models/all-MiniLM-L6-v2
      eigenheads probe models/gpt2 --data sentences.txt --layers 0,3-5
      eigenheads probe my_models:vision_transformer
    """
    from eigenheads._parallel import interrupted_between_blocks
    from eigenheads.adapters import probe_model
    from eigenheads.cli._sources import load_model, parse_layers
    from eigenheads.report._probe import print_probe, write_probe

    # Options are read before the model, which may take long to load.
    chosen = parse_layers(layers)
    if jobs is not None:
        check_count("--jobs", jobs)
    loaded = load_model(model, data=data, max_length=max_length)
    with interrupted_between_blocks():
        probe = probe_model(
            loaded.model,
            loaded.batch,
            layers=chosen,
            statistics=None if statistics is None else statistics.split(","),
            ignore_tokens=_ignored(ignore_tokens),
            jobs=jobs,
            n_permutations=permutations,
            n_redraws=redraws,
            n_untrained=untrained,
            batch_size=batch_size,
            seed=seed,
            progress=True,
        )
    print_probe(probe, title=loaded.about)
    say(f"Page: {write_probe(probe, out, title=loaded.about)}")
    return EXIT_OK


def _ignored(text: str | None) -> str | list[int] | None:
    """Return positions as integers; other words are left to `probe_model`."""
    parts = [] if text is None else text.split(",")
    is_positions = bool(parts) and all(part.strip().isdecimal() for part in parts)
    return [int(part) for part in parts] if is_positions else text


def robustness_command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Your module:callable that returns (models, data), or (models, data, "
            "options) with options of evaluate_robustness. It is imported and run.",
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
            help="Severities of corruptions, 1 to 5, separated by commas.",
            show_default="all",
        ),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            help="Name of the module that embeds tokens; a share of them is replaced.",
            show_default=False,
        ),
    ] = None,
    word: Annotated[
        int | None,
        typer.Option(
            help="For language models: id of the replacement word.",
            show_default=False,
        ),
    ] = None,
    shares: Annotated[
        str | None,
        typer.Option(
            help="Shares of tokens or words that are replaced.",
            show_default="0.1,0.2,0.4",
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Examples per batch.", show_default="256")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of corruptions and attacks.", show_default="0"),
    ] = None,
) -> int:
    """Measure the accuracy of your models on corrupted and attacked input.

    Prints a table with 95 % intervals (over the models of a list, else over examples),
    and writes OUT/robustness.csv, .json and .svg. Options given here override those
    that the callable returns.

    For example, with a file mymodels.py that has a function `trained`:

      eigenheads robustness mymodels:trained --attacks pgd --budgets 1,4
    """
    from eigenheads._parallel import interrupted_between_blocks
    from eigenheads._plotting.robustness import draw_robustness, robustness_size
    from eigenheads._plotting.svg import render_svg
    from eigenheads.cli._sources import evaluate_source

    with interrupted_between_blocks():
        result = evaluate_source(
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
    say(result)
    say(f"95 % intervals: {result.interval}. Budgets of attacks are in 1/255.")
    svg = render_svg(
        lambda figure: draw_robustness(figure, result.rows),
        size=robustness_size(result.rows),
    )
    for suffix in (".csv", ".json"):
        say(f"Table: {result.save(out / f'robustness{suffix}')}")
    (out / "robustness.svg").write_bytes(svg)
    say(f"Figure: {out / 'robustness.svg'}")
    return EXIT_OK
