"""Commands on models of the user: ``probe`` and ``robustness``."""

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from eigenheads._checks import Got, as_float, check_count, fail
from eigenheads.cli.status import EXIT_INTERRUPTED, EXIT_OK, Out, say

if TYPE_CHECKING:
    from eigenheads.adapters import LoadedModel
    from eigenheads.robustness import Robustness

# Owners in error messages: the names of the commands.
_PROBE, _ROBUSTNESS = "probe", "robustness"


def call_source(source: str, *, name: str) -> Any:
    """Call the function that `source` names, without arguments, and return its result.

    Parameters
    ----------
    source
        ``"module:callable"``; the module may be in the current folder. This runs the
        user's own code.
    name
        The argument, for error messages. An error in the user's code is
        reported in one sentence that names the line of code.

    Examples
    --------
    >>> call_source("string:Formatter", name="MODEL")
    <string.Formatter object at ...>
    >>> call_source("string:nothing", name="MODEL")
    Traceback (most recent call last):
    ...
    eigenheads._errors.UsageValueError:
    eigenheads: `MODEL` must be module:callable; got 'string:nothing', ...
    """

    def refuse(why: str, hint: str = "") -> NoReturn:
        got = Got(f"{source!r}{why}")
        fail(name, "module:callable", got, hint=hint)

    with _current_folder():
        function = _find(source, refuse)
        try:
            return function()
        except (Exception, SystemExit) as error:
            refuse(_describe_error(error))


def _find(source: str, refuse: Callable[..., NoReturn]) -> Callable[[], Any]:
    module, _, name = source.partition(":")
    if not (module and name):
        refuse("", "mymodels:trained means function `trained` in mymodels.py.")
    try:
        attribute = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        # Either this module or a package above it is missing. Otherwise the missing
        # module is one that the user's code imports.
        if error.name and f"{module}.".startswith(f"{error.name}."):
            refuse(f", and there is no module {error.name!r} here")
        refuse(_describe_error(error))
    except (Exception, SystemExit) as error:
        refuse(_describe_error(error))
    if attribute is None:
        refuse(f", and {module} has no {name!r}")
    if not callable(attribute):
        refuse(f", whose type is {type(attribute).__name__}")
    return attribute


def _describe_error(error: BaseException) -> str:
    """Return the error, and the line of the user's code that raised it."""
    said = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    here = Path(__file__).parents[1]
    # Frames of this package and of the import system do not help the user.
    theirs = [
        frame
        for frame in frames
        if here not in Path(frame.filename).parents
        and "importlib" not in frame.filename
    ]
    # Code in the current folder is preferred to libraries that it calls.
    ours = [
        frame
        for frame in theirs
        if Path.cwd() in Path(frame.filename).resolve().parents
    ]
    last = (ours or theirs)[-1:]
    where = "".join(f" ({Path(at.filename).name}, line {at.lineno})" for at in last)
    return f", which raised {type(error).__name__}: {said}{where}"


@contextmanager
def _current_folder() -> Iterator[None]:
    """Import from the current folder first, inside this context."""
    here = os.getcwd()  # noqa: PTH109 -- as Python puts it on the path
    sys.path.insert(0, here)
    # The caches may lack a file that was written after the program started.
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(here)


def read_source(
    spec: str,
    *,
    data: Path | None = None,
    max_length: int | None = None,
    download: bool = False,
) -> "LoadedModel":
    """Return the model that `spec` names, with a batch.

    Parameters
    ----------
    spec
        Folder of a Hugging Face model, or its name in the local cache; or
        ``module:callable`` that returns ``(model, batch)``, which runs your own code.
    data, max_length, download
        Options of :func:`~eigenheads.adapters.load_model`.
    """
    # Imported here: the command line must start without PyTorch.
    from eigenheads.adapters import load_model

    # A folder with a colon in its name is still a folder.
    if ":" not in spec or Path(spec).is_dir():
        return load_model(spec, data=data, max_length=max_length, download=download)
    for option, value in (("data", data), ("max_length", max_length)):
        if value is not None:
            hint = "The callable returns its own batch."
            contract = "left out for module:callable"
            fail(option, contract, str(value), hint=hint)
    return _from_callable(spec)


def _from_callable(spec: str) -> "LoadedModel":
    from eigenheads.adapters import LoadedModel

    pair = call_source(spec, name="MODEL")
    if not isinstance(pair, tuple) or len(pair) != 2:
        got = Got(f"{spec!r}, which returned {type(pair).__name__}")
        contract = "a callable that returns (model, batch)"
        fail("MODEL", contract, got)
    return LoadedModel(pair[0], pair[1], f"{spec}: {type(pair[0]).__name__}")


def parse_layers(text: str | None) -> list[int] | None:
    """Return layers from a string such as ``0,3-5``.

    Examples
    --------
    >>> parse_layers("0,3-5")
    [0, 3, 4, 5]
    """
    if text is None:
        return None
    layers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            contract = "indices and ranges such as 0,3-5"
            fail("layers", contract, text)
        stop = int(last) if dash else int(first)
        # The limit keeps a mistyped range from filling the memory.
        if stop > 10_000 or stop < int(first):
            fail("layers", "ranges from a layer to a later one", text)
        layers += range(int(first), stop + 1)
    return sorted(set(layers))


def evaluate_source(
    source: str,
    *,
    attacks: str | None = None,
    budgets: str | None = None,
    corruptions: str | None = None,
    severities: str | None = None,
    tokens: str | None = None,
    word: int | None = None,
    shares: str | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    progress: bool = False,
) -> "Robustness":
    """Call the function that `source` names, and evaluate the models it returns.

    Parameters
    ----------
    source
        ``"module:callable"``; the module may be in the current folder. It returns
        ``(models, data)``, or ``(models, data, options)`` with options of
        :func:`~eigenheads.robustness.evaluate_robustness`. Options given here override
        these.
    attacks, budgets, corruptions, severities, shares
        Values separated by commas.
    tokens, word, batch_size, seed, progress
        As in :func:`~eigenheads.robustness.evaluate_robustness`.

    Returns
    -------
    robustness
        The table.
    """
    from eigenheads.robustness import evaluate_robustness
    from eigenheads.robustness._evaluate import check_options

    # Options are read before the user's code runs, which may take long.
    given_here: dict[str, Any] = {
        "attacks": _given(attacks),
        "budgets": _numbers("budgets", budgets),
        "corruptions": None if corruptions == "all" else _given(corruptions),
        "severities": _whole_numbers("severities", severities),
        "shares": _numbers("shares", shares),
        "tokens": tokens,
        "word": word,
        "batch_size": batch_size,
        "seed": seed,
    }
    last = {name: value for name, value in given_here.items() if value is not None}
    check_options(last)
    returned = call_source(source, name="MODEL")
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        contract = "a callable that returns (models, data) or (models, data, options)"
        got = Got(f"{source!r}, which returned {type(returned).__name__}")
        fail("MODEL", contract, got)
    models, data, own_options = returned if len(returned) == 3 else (*returned, {})
    if not isinstance(own_options, Mapping):
        fail("options", "a mapping", own_options)
    return evaluate_robustness(
        models, data, **{"progress": progress, **own_options, **last}
    )


def _given(text: str | None) -> list[str] | None:
    return None if text is None else _listed(text)


def _listed(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    return [] if names == ["none"] else names


def _numbers(name: str, text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [as_float(float(part)) for part in _listed(text)]
    except ValueError:
        fail(name, "numbers separated by commas", text)


def _whole_numbers(name: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in _listed(text)]
    except ValueError:
        fail(name, "whole numbers separated by commas", text)


def probe_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Folder of a Hugging Face model, its name in the local cache, or "
            "module:callable that returns (model, batch); the latter runs your own "
            "code.",
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
            help="Names of statistics, separated by commas.",
            show_default="all but those of kernel PCA",
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All statistics, which takes longer.")
    ] = False,
    download: Annotated[
        bool,
        typer.Option("--download", help="Download a model that is not in the cache."),
    ] = False,
    ignore_tokens: Annotated[
        str | None,
        typer.Option(
            help="Tokens to ignore: 'first', 'outliers', or positions such as 0,5.",
            show_default="none",
        ),
    ] = None,
    permutations: Annotated[
        int, typer.Option(help="Draws of the cheap null distributions.")
    ] = 99,
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
    """Measure every head of a model, with a null for each statistic.

    Prints findings and a table of statistics and nulls, and writes OUT/probe.html (a
    page with heat maps), OUT/heads.csv (heads in the order of each statistic),
    OUT/probe.json (rows) and OUT/probe.safetensors (arrays). Ctrl-C keeps the layers
    that are finished. Nothing is downloaded without --download, and code that comes
    with a model is not run.

    For example:

      eigenheads probe models/all-MiniLM-L6-v2
      eigenheads probe models/gpt2 --data sentences.txt --layers 0,3-5
      eigenheads probe my_models:vision_transformer
    """
    from eigenheads._parallel import interrupted_between_blocks
    from eigenheads.adapters import probe_model
    from eigenheads.cli._models import parse_layers, read_source
    from eigenheads.report._probe import print_probe, write_probe

    # Options are read before the model, which may take long to load.
    chosen = parse_layers(layers)
    if jobs is not None:
        check_count("--jobs", jobs)
    if everything and statistics is not None:
        fail("statistics", "left out with --all", statistics)
    names = "quick" if statistics is None else statistics.split(",")
    loaded = read_source(model, data=data, max_length=max_length, download=download)
    probe = None
    try:
        with interrupted_between_blocks():
            probe = probe_model(
                loaded.model,
                loaded.batch,
                layers=chosen,
                statistics=None if everything else names,
                ignore_tokens=_ignored(ignore_tokens),
                jobs=jobs,
                n_permutations=permutations,
                n_redraws=redraws,
                n_untrained=untrained,
                batch_size=batch_size,
                seed=seed,
                progress=True,
                keep_partial=True,
            )
    except KeyboardInterrupt:
        if probe is None:  # no layer was finished
            raise
        status = EXIT_INTERRUPTED
    else:
        status = EXIT_OK
    print_probe(probe, title=loaded.about)
    say(f"Page: {write_probe(probe, out, title=loaded.about)}")
    return status


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
    from eigenheads.cli._models import evaluate_source

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
