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
from eigenheads.experiments._grid import parse_grid
from eigenheads.experiments._registry import (
    PRESETS,
    experiment_keys,
    get_experiment,
    get_paper,
)
from eigenheads.experiments._run import Listener, current_figure, reproduce
from eigenheads.experiments._store import StoreError, code_version, stored_results
from eigenheads.experiments._sweep import SweepResult, sweep
from eigenheads.experiments._sweep_files import SweepFollower, SweepState
from eigenheads.experiments._sweeper import SweepError
from eigenheads.experiments._untested import Untested, untested_claims

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
    "SweepFollower",
    "SweepResult",
    "SweepState",
    "Table",
    "Untested",
    "code_version",
    "current_figure",
    "experiment_keys",
    "get_experiment",
    "get_paper",
    "parse_grid",
    "reproduce",
    "stored_results",
    "sweep",
    "untested_claims",
]
