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
from eigenheads.experiments._registry import experiment_keys, get_experiment
from eigenheads.experiments._run import Listener, reproduce
from eigenheads.experiments._store import StoreError, stored_results
from eigenheads.experiments.sweeps._result import SweepResult
from eigenheads.experiments.sweeps._run import SweepError, sweep

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
