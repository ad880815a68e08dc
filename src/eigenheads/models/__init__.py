"""Attention models that are declared: a loss in NumPy, simulated in any dimension."""

from eigenheads.models._landscape import StationaryPoint, critical_points, risk
from eigenheads.models._mean_dynamics import mean_dynamics
from eigenheads.models._model import Model
from eigenheads.models._program import softmax
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
    "choice",
    "chosen_by",
    "critical_points",
    "gaussian",
    "mean_dynamics",
    "mixture",
    "multiple_of",
    "one_of",
    "risk",
    "signs",
    "simulate",
    "softmax",
    "verify",
]
