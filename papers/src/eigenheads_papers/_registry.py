"""The experiments: ours, those of installed packages, and those that a caller names.

Ours are listed here, and a module is imported when it is first used. A package adds its
own by an entry point of the group ``eigenheads.experiments``. A caller names further
ones as ``module:object``, which imports the module: only callers and installed packages
name modules, never a stored file.
"""

import difflib
import fnmatch
import importlib
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from eigenheads.extend import (
    Got,
    UsageError,
    check_choice,
    fail,
    public_call,
)
from eigenheads_papers._core import Experiment, Paper

PRESETS = ("smoke", "demo", "paper")
GROUP = "eigenheads.experiments"
_KEY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

# By paper, in the order of the report: each figure, and after a colon the module of its
# simulation where its name is another one. Screening is no paper, but ours.
_FIGURES = """
marion2025 fig1:words fig3a:descent fig3b:descent
    small_lambda:descent large_lambda:descent fig4:online fig5:flow any_dimension bayes
    transformers bags
truong2026 alignment nuisance:recovery strength:recovery readings phase_diagram
maulensoto2026 fig1:fixed fig2:in_context fig3a:fixed fig3b:fixed fig4a:fixed
    fig4b:fixed fig5a:lengths fig5b:lengths fig6a:dimensions fig6b:dimensions
    fig7a:in_context fig7b:in_context replay fig8a:in_context
    fig8b:dimensions rank_k non_gaussian real_heads finite_prompts
teo2024 finetune robustness sparsity:robustness masking scaled language
    segmentation reconstruction sign imagenet:at_scale wikitext:at_scale
saritas2025 values:readings norms:readings eigenvalues:readings gamma:readings
    reparameterised heads ablation
arnaboldi2025 fig3:gain fig4:phase_diagram fig5:transition any_dimension:transition
duranthon2026 population training
dohmatob2025 risk descent
barnfield2026 alignment strength
screening mnist:images photographs:images
"""


def _read_figures(text: str) -> dict[str, dict[str, str]]:
    """Return the module of each figure, by paper; a paper begins a line."""
    modules: dict[str, dict[str, str]] = {}
    for paper in text.replace("\n    ", " ").strip().splitlines():
        name, *figures = paper.split()
        pairs = [figure.partition(":") for figure in figures]
        modules[name] = {figure: module or figure for figure, _, module in pairs}
    return modules


_MODULES = _read_figures(_FIGURES)
PAPERS = tuple(_MODULES)


def experiment_keys() -> list[str]:
    """Return every key: ours in the order of the report, then of installed packages.

    Examples
    --------
    >>> "marion2025/fig4" in experiment_keys()
    True
    """
    return [*_built_in_keys(), *_installed_experiments()]


def _built_in_keys() -> list[str]:
    return [
        f"{paper}/{figure}" for paper, figures in _MODULES.items() for figure in figures
    ]


def is_built_in(key: str) -> bool:
    """Tell whether a key is one of ours."""
    paper, _, figure = key.partition("/")
    return figure in _MODULES.get(paper, {})


@cache
def _installed_experiments() -> dict[str, Experiment[Any]]:
    """Return the experiments of installed packages, by key."""
    installed: dict[str, Experiment[Any]] = {}
    for point in entry_points(group=GROUP):
        # A package that is broken must not disable all others.
        try:
            experiments = load_experiments(point.value)
            for experiment in experiments:
                if experiment.key in installed:
                    _refuse_key(experiment.key, "another package")
        except UsageError as error:
            text = f"Entry point {point.name!r} is left out. {error}"
            warnings.warn(text, stacklevel=2)
            continue
        installed |= {experiment.key: experiment for experiment in experiments}
    return installed


def get_experiment(key: str | Experiment[Any]) -> Experiment[Any]:
    """Return one experiment.

    Parameters
    ----------
    key
        Its key; ``"module:object"``, which imports a module of yours; or an experiment,
        which is checked.

    Examples
    --------
    >>> get_experiment("marion2025/fig4").source
    'Figure 4'
    """
    if isinstance(key, Experiment):
        return _check_experiment(key)
    if isinstance(key, str) and ":" in key:
        experiments = load_experiments(key)
        if len(experiments) > 1:
            keys = ", ".join(experiment.key for experiment in experiments)
            got = Got(f"{key!r}, which has {len(experiments)} ({keys})")
            hint = "Give the one that you mean a name of its own in the module."
            fail("key", "one experiment", got, hint=hint)
        return experiments[0]
    if not isinstance(key, str) or key not in experiment_keys():
        # Most commands take a whole paper as well.
        papers = [] if public_call() in ("describe", "sweep") else _papers()
        names = [*papers, *experiment_keys()]
        close = difflib.get_close_matches(str(key), names, n=1, cutoff=0.5)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        hint += "`eigenheads list` shows all."
        fail("key", "the key of an experiment", key, hint=hint)
    return _registered(key)


def _registered(key: str) -> Experiment[Any]:
    if not is_built_in(key):
        return _installed_experiments()[key]
    paper, _, figure = key.partition("/")
    module = importlib.import_module(
        f"eigenheads_papers.{paper}.{_MODULES[paper][figure]}"
    )
    experiments: tuple[Experiment[Any], ...] = module.experiments
    return next(experiment for experiment in experiments if experiment.key == key)


def is_registered(experiment: Experiment[Any]) -> bool:
    """Tell whether its key finds this very experiment, in every process."""
    return (
        experiment.key in experiment_keys()
        and _registered(experiment.key) is experiment
    )


def load_experiments(source: str) -> list[Experiment[Any]]:
    """Return the experiments that ``module:object`` names; runs the caller's code.

    Parameters
    ----------
    source
        Module, from the current folder or the path, and an experiment or a sequence of
        experiments in it.

    Examples
    --------
    >>> load_experiments("string:digits")
    Traceback (most recent call last):
    ...
    eigenheads._errors.UsageValueError:
    load_experiments: `key` must be module:object with an Experiment or several; got ...
    """
    contract = "module:object with an Experiment or several"
    name, _, attribute = source.partition(":")
    if not (name and attribute):
        hint = "my_module:experiments means `experiments` of my_module.py."
        fail("key", contract, source, hint=hint)
    try:
        module = _import_from_here(name)
    except (Exception, SystemExit) as error:
        why = f", which raised {describe_error(error)}"
        # A module above this one may be missing; otherwise, one that it imports.
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{name}.".startswith(f"{missing}."):
            why = f", and there is no module {missing!r} here"
        fail("key", contract, Got(f"{source!r}{why}"))
    if not hasattr(module, attribute):
        got = Got(f"{source!r}, and {name} has no {attribute!r}")
        fail("key", contract, got)
    value = getattr(module, attribute)
    experiments = [value] if isinstance(value, Experiment) else value
    is_sequence = isinstance(experiments, Sequence) and len(experiments) > 0
    if not is_sequence or not all(isinstance(e, Experiment) for e in experiments):
        got = Got(f"{source!r}, whose type is {type(value).__name__}")
        fail("key", contract, got)
    return _check_distinct([_check_experiment(e) for e in experiments])


def _import_from_here(name: str) -> Any:
    """Import a module, from the current folder first."""
    here = os.getcwd()  # noqa: PTH109 -- as Python puts it on the path
    was_there = here in sys.path
    sys.path.insert(0, here)
    # The caches may lack a file that was written after the program started.
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(here)
        # Last on the path, the folder hides no library, and what the module imports
        # later is still found, here and in worker processes.
        if not was_there:
            sys.path.append(here)


def describe_error(error: BaseException) -> str:
    """Return an error of a user's code in one line, with the place that raised it."""
    message = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    here = [f for f in frames if Path.cwd() in Path(f.filename).resolve().parents]
    where = "".join(
        f" ({Path(frame.filename).name}, line {frame.lineno})"
        for frame in (here or frames)[-1:]
    )
    return f"{type(error).__name__}: {message}{where}"


def _check_experiment(experiment: Experiment[Any]) -> Experiment[Any]:
    key = experiment.key
    # The key is a path below the folder of results.
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        fail("key", "paper/figure, of letters, digits, _, . and -", key)
    if is_built_in(key) and _registered(key) is not experiment:
        _refuse_key(key, "Eigenheads")
    if not experiment.presets:
        got = Got(f"{key} without one")
        fail("presets", "parameters by name", got)
    return experiment


def _refuse_key(key: str, whose: str) -> None:
    got = Got(f"{key!r}, which {whose} has")
    fail("key", "a key of its own", got, hint="Give it another one.")


def _check_distinct(experiments: list[Experiment[Any]]) -> list[Experiment[Any]]:
    """Return experiments without repetitions; raise if two have the same key."""
    by_key: dict[str, Experiment[Any]] = {}
    for experiment in experiments:
        if by_key.setdefault(experiment.key, experiment) is not experiment:
            got = Got(f"{experiment.key!r} of two experiments")
            fail("key", "a key of its own", got)
    return list(by_key.values())


@contextmanager
def explaining_errors(experiment: Experiment[Any]) -> Iterator[None]:
    """Turn an error of a user's experiment into a sentence that names the place."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        if is_built_in(experiment.key):
            raise
        raise UsageError(
            f"{public_call()}: {experiment.key} raised {describe_error(error)}."
        ) from error


def _papers() -> list[str]:
    return list(dict.fromkeys(key.partition("/")[0] for key in experiment_keys()))


def get_paper(key: str) -> Paper:
    """Return title, authors and summary of a paper of ours, by its key."""
    check_choice("paper", key, PAPERS)
    paper: Paper = importlib.import_module(f"eigenheads_papers.{key}").paper
    return paper


def paper_of(experiment: Experiment[Any]) -> Paper:
    """Return title, authors and summary of the paper of an experiment.

    For an experiment of a user, that is the object ``paper`` of the module of its
    simulation or of a package above it. Without one, only the key is known.
    """
    key = experiment.paper
    if is_built_in(experiment.key):
        return get_paper(key)
    name = getattr(experiment.simulate, "__module__", None) or ""
    while name:
        described = getattr(sys.modules.get(name), "paper", None)
        if isinstance(described, Paper) and described.key == key:
            return described
        name = name.rpartition(".")[0]
    return Paper(key=key, title=key)


def command_name(experiment: Experiment[Any]) -> str:
    """Return what names an experiment on the command line; nothing if no name does."""
    if is_registered(experiment):
        return experiment.key
    module = getattr(experiment.simulate, "__module__", None) or ""
    if module == "__main__":
        return ""
    values = vars(sys.modules[module]) if module in sys.modules else {}
    for name, value in values.items():
        several = value if isinstance(value, list | tuple) else [value]
        if any(part is experiment for part in several):
            return f"{module}:{name}"
    return ""


def select_keys(patterns: Iterable[str]) -> list[str]:
    """Return the keys that match any pattern: a key, a paper, a glob, or ``all``.

    Examples
    --------
    >>> select_keys(["marion2025/fig3*"])
    ['marion2025/fig3a', 'marion2025/fig3b']
    """
    keys = experiment_keys()
    chosen: set[str] = set()
    for pattern in patterns:
        glob = "*" if pattern == "all" else pattern
        matching = fnmatch.filter(keys, glob) or fnmatch.filter(keys, f"{glob}/*")
        if not matching:
            get_experiment(pattern)  # raises, names the nearest key
        chosen.update(matching)
    return [key for key in keys if key in chosen]


def select_experiments(keys: object) -> tuple[list[Experiment[Any]], set[str]]:
    """Return the experiments that a caller chose, and the keys that it named.

    Parameters
    ----------
    keys
        A key, a paper, a glob, ``"all"``, ``"module:object"``, an experiment, or a
        sequence of these.

    Returns
    -------
    experiments
        Registered ones in the order of the report, then the others.
    named
        Keys that no mere pattern matched: these must run, or raise.
    """
    choices = [keys] if isinstance(keys, str | Experiment) else keys
    if not isinstance(choices, Sequence) or not all(
        isinstance(choice, str | Experiment) for choice in choices
    ):
        contract = "a key, a glob, 'all', module:object, an Experiment, or a list"
        fail("keys", contract, keys)
    patterns, experiments = [], []
    for choice in choices:
        if isinstance(choice, Experiment):
            experiments.append(_check_experiment(choice))
        elif ":" in choice:
            experiments += load_experiments(choice)
        else:
            patterns.append(choice)
    if not choices:
        hint = "`eigenheads list` shows all."
        fail("keys", "at least one key", [], hint=hint)
    named = {experiment.key for experiment in experiments} | set(patterns)
    registered = [_registered(key) for key in select_keys(patterns)]
    return _check_distinct([*registered, *experiments]), named


def preset_params(experiment: Experiment[Any], preset: str) -> Any:
    """Return the parameters of a preset, or name the nearest one that exists."""
    check_choice("preset", preset, list(experiment.presets))
    return experiment.presets[preset]
