"""The explicit list of experiments; a module is imported when it is first used."""

import difflib
import fnmatch
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from eigenheads.extend import check_choice, fail
from eigenheads_papers._core import Experiment, Paper

PRESETS = ("smoke", "demo", "paper")

# By paper and figure, in the order of the report: the module of its simulation.
_MODULES = {
    "marion2025": {
        "fig1": "words",
        "manifold": "descent",
        "fig3a": "descent",
        "fig3b": "descent",
        "large_lambda": "descent",
        "fig4": "online",
        "fig5": "flow",
        "any_dimension": "any_dimension",
        "bayes": "bayes",
        "transformers": "transformers",
        "bags": "bags",
    },
    "truong2026": {
        "alignment": "alignment",
        "nuisance": "recovery",
        "strength": "recovery",
        "readings": "readings",
        "phase_diagram": "phase_diagram",
    },
    "maulensoto2026": {
        "fig1": "fixed",
        "fig2": "in_context",
        "fig3a": "fixed",
        "fig3b": "fixed",
        "fig4a": "fixed",
        "fig4b": "fixed",
        "fig5a": "lengths",
        "fig5b": "lengths",
        "fig6a": "dimensions",
        "fig6b": "dimensions",
        "fig7a": "in_context",
        "fig7b": "in_context",
        "fig7b_weak": "in_context",
        "fig8a": "in_context",
        "fig8b": "dimensions",
        "rank_k": "rank_k",
        "non_gaussian": "non_gaussian",
        "real_heads": "real_heads",
        "finite_prompts": "finite_prompts",
    },
    "teo2024": {
        "finetune": "finetune",
        "robustness": "robustness",
        "sparsity": "robustness",
        "scaled": "scaled",
        "language": "language",
        "segmentation": "segmentation",
        "reconstruction": "reconstruction",
        "sign": "sign",
        "imagenet": "at_scale",
        "wikitext": "at_scale",
    },
    "saritas2025": {
        "values": "readings",
        "norms": "readings",
        "eigenvalues": "eigenvalues",
        "gamma": "readings",
        "reparameterised": "reparameterised",
        "heads": "heads",
    },
    "arnaboldi2025": {
        "fig3": "gain",
        "fig4": "phase_diagram",
        "fig5": "transition",
        "any_dimension": "transition",
    },
    "duranthon2026": {"population": "population", "training": "training"},
    "dohmatob2025": {"risk": "risk", "descent": "descent"},
    "barnfield2026": {"alignment": "alignment", "strength": "strength"},
    # No paper: measurements of our own.
    "screening": {"mnist": "images", "photographs": "images"},
}


def experiment_keys() -> list[str]:
    """Return every key, paper by paper, in the order of the report.

    Examples
    --------
    >>> "marion2025/fig4" in experiment_keys()
    True
    """
    return [f"{paper}/{figure}" for paper, all_ in _MODULES.items() for figure in all_]


def get_experiment(key: str, *, owner: str = "reproduce") -> Experiment[Any]:
    """Return the experiment of this key.

    Examples
    --------
    >>> get_experiment("marion2025/fig4").source
    'Figure 4'
    """
    keys = experiment_keys()
    if not isinstance(key, str) or key not in keys:
        names = [*(_MODULES if owner == "reproduce" else ()), *keys]  # or a whole paper
        close = difflib.get_close_matches(str(key), names, n=1, cutoff=0.3)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        hint += "`eigenheads list` shows all."
        fail("key", "the key of an experiment", key, owner=owner, hint=hint)
    experiments: tuple[Experiment[Any], ...] = import_module(module_of(key)).experiments
    return next(experiment for experiment in experiments if experiment.key == key)


def module_of(key: str) -> str:
    """Return the name of the module that simulates a key."""
    paper, _, figure = key.partition("/")
    return f"eigenheads_papers.{paper}.{_MODULES[paper][figure]}"


def get_paper(key: str) -> Paper:
    """Return title, authors and summary of a paper, by its key."""
    check_choice("paper", key, list(_MODULES), owner="get_paper")
    paper: Paper = import_module(f"eigenheads_papers.{key}").paper
    return paper


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
            get_experiment(pattern)  # raises, and names the nearest key
        chosen.update(matching)
    if not chosen:
        hint = "`eigenheads list` shows all."
        fail("keys", "at least one key", [], owner="reproduce", hint=hint)
    return [key for key in keys if key in chosen]


def preset_params(experiment: Experiment[Any], preset: str) -> Any:
    """Return the parameters of a preset, or name the nearest one that exists."""
    check_choice("preset", preset, list(experiment.presets), owner="reproduce")
    return experiment.presets[preset]
