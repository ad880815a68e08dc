"""Attention models, declared or of the papers, simulated exactly in any dimension."""

from eigenheads._parallel import progress_bar, threads
from eigenheads._trajectories import Trajectories
from eigenheads.models._landscape import StationaryPoint, critical_points, risk
from eigenheads.models._location import location_start, simulate_location
from eigenheads.models._mean_dynamics import mean_dynamics
from eigenheads.models._model import Model
from eigenheads.models._pca import pca_start, simulate_pca
from eigenheads.models._program import softmax
from eigenheads.models._signal import simulate_signal
from eigenheads.models._simulate import simulate
from eigenheads.models._tokens import (
    Token,
    choice,
    chosen_by,
    gaussian,
    mixture,
    multiple_of,
    one_of,
    signs,
)
from eigenheads.models._verify import verify

__all__ = [
    "Model",
    "StationaryPoint",
    "Token",
    "Trajectories",
    "choice",
    "chosen_by",
    "critical_points",
    "gaussian",
    "location_start",
    "mean_dynamics",
    "mixture",
    "multiple_of",
    "one_of",
    "pca_start",
    "progress_bar",
    "risk",
    "signs",
    "simulate",
    "simulate_location",
    "simulate_pca",
    "simulate_signal",
    "softmax",
    "threads",
    "verify",
]
