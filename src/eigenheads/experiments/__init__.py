"""Reproductions of papers: parameters, simulation, claims, drawing."""

from eigenheads.experiments._claims import (
    Claim,
    about,
    at_least,
    at_most,
    difference,
    no_difference,
)
from eigenheads.experiments._core import (
    Boundary,
    Cells,
    Experiment,
    Result,
    Run,
    Table,
)
from eigenheads.experiments._grid import parse_grid
from eigenheads.experiments._registry import experiment_keys, get_experiment
from eigenheads.experiments._run import Listener, reproduce
from eigenheads.experiments._store import StoreError, stored_results
from eigenheads.experiments._sweep import SweepResult, sweep
from eigenheads.experiments._sweep_files import SweepFollower, SweepState
from eigenheads.experiments._sweeper import SweepError

__all__ = [
    "Boundary",
    "Cells",
    "Claim",
    "Experiment",
    "Listener",
    "Result",
    "Run",
    "StoreError",
    "SweepError",
    "SweepFollower",
    "SweepResult",
    "SweepState",
    "Table",
    "about",
    "at_least",
    "at_most",
    "difference",
    "experiment_keys",
    "get_experiment",
    "no_difference",
    "parse_grid",
    "reproduce",
    "stored_results",
    "sweep",
]
