"""Stochastic training, simulated exactly in any dimension."""

from eigenheads._parallel import progress_bar, threads
from eigenheads.dynamics._engine import (
    chi,
    combine,
    reframe,
    reveal,
    reveal_along,
    sphere_step,
)
from eigenheads.dynamics._location import simulate_location
from eigenheads.dynamics._location_start import location_start

__all__ = [
    "chi",
    "combine",
    "location_start",
    "progress_bar",
    "reframe",
    "reveal",
    "reveal_along",
    "simulate_location",
    "sphere_step",
    "threads",
]
