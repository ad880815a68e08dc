"""Papers, reproduced: parameters, simulation, claims, drawing."""

from eigenheads.experiments._core import Claim, Experiment, Paper, Result, Table
from eigenheads.experiments._registry import (
    PRESETS,
    experiment_keys,
    get_experiment,
    get_paper,
)
from eigenheads.experiments._run import Listener, current_figure, reproduce
from eigenheads.experiments._store import StoreError, code_version, stored_results

__all__ = [
    "PRESETS",
    "Claim",
    "Experiment",
    "Listener",
    "Paper",
    "Result",
    "StoreError",
    "Table",
    "code_version",
    "current_figure",
    "experiment_keys",
    "get_experiment",
    "get_paper",
    "reproduce",
    "stored_results",
]
