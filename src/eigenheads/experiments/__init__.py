"""Papers, reproduced: parameters, simulation, claims, drawing."""

from eigenheads.experiments._core import (
    Boundary,
    Cells,
    Claim,
    Experiment,
    Paper,
    Result,
    Table,
)
from eigenheads.experiments._registry import (
    PRESETS,
    experiment_keys,
    get_experiment,
    get_paper,
)
from eigenheads.experiments._run import Listener, current_figure, reproduce
from eigenheads.experiments._store import StoreError, code_version, stored_results
from eigenheads.experiments._untested import Untested, untested_claims
from eigenheads.experiments.sweeps._run import SweepError, SweepResult, sweep

__all__ = [
    "PRESETS",
    "Boundary",
    "Cells",
    "Claim",
    "Experiment",
    "Listener",
    "Paper",
    "Result",
    "StoreError",
    "SweepError",
    "SweepResult",
    "Table",
    "Untested",
    "code_version",
    "current_figure",
    "experiment_keys",
    "get_experiment",
    "get_paper",
    "reproduce",
    "stored_results",
    "sweep",
    "untested_claims",
]
