"""Papers on attention, reproduced: parameters, simulation, claims, drawing, records."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eigenheads_papers._claims import (
        Claim,
        about,
        at_least,
        at_most,
        difference,
        no_difference,
    )
    from eigenheads_papers._core import (
        Boundary,
        Cells,
        Experiment,
        Paper,
        Result,
        Run,
        Table,
    )
    from eigenheads_papers._registry import experiment_keys, get_experiment
    from eigenheads_papers._run import Listener, reproduce
    from eigenheads_papers._store import StoreError, stored_results
    from eigenheads_papers.sweeps._result import SweepResult
    from eigenheads_papers.sweeps._run import SweepError, sweep

# The version of the library that this package is made for, too.
__version__ = "0.1.0.dev0"

# A module is imported when a name is first used, so that commands start at once.
_HOMES = {
    "_claims": (
        "Claim",
        "about",
        "at_least",
        "at_most",
        "difference",
        "no_difference",
    ),
    "_core": ("Boundary", "Cells", "Experiment", "Paper", "Result", "Run", "Table"),
    "_registry": ("experiment_keys", "get_experiment"),
    "_run": ("Listener", "reproduce"),
    "_store": ("StoreError", "stored_results"),
    "sweeps._result": ("SweepResult",),
    "sweeps._run": ("SweepError", "sweep"),
}

__all__ = [
    "Boundary",
    "Cells",
    "Claim",
    "Experiment",
    "Listener",
    "Paper",
    "Result",
    "Run",
    "StoreError",
    "SweepError",
    "SweepResult",
    "Table",
    "about",
    "at_least",
    "at_most",
    "difference",
    "experiment_keys",
    "get_experiment",
    "no_difference",
    "reproduce",
    "stored_results",
    "sweep",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
