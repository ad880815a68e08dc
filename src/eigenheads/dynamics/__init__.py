"""Stochastic training, simulated exactly in any dimension."""

from eigenheads._parallel import progress_bar, threads
from eigenheads._trajectories import Trajectories
from eigenheads.dynamics._location import location_start, simulate_location
from eigenheads.dynamics._pca import pca_start, simulate_pca
from eigenheads.dynamics._signal import simulate_signal

__all__ = [
    "Trajectories",
    "location_start",
    "pca_start",
    "progress_bar",
    "simulate_location",
    "simulate_pca",
    "simulate_signal",
    "threads",
]
