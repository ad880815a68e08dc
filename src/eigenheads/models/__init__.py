"""Attention models that are declared: a loss in NumPy, simulated in any dimension."""

from eigenheads.models._model import Model
from eigenheads.models._program import softmax
from eigenheads.models._tokens import (
    Token,
    choice,
    gaussian,
    mixture,
    multiple_of,
    one_of,
    signs,
    tilted,
)

__all__ = [
    "Model",
    "Token",
    "choice",
    "gaussian",
    "mixture",
    "multiple_of",
    "one_of",
    "signs",
    "softmax",
    "tilted",
]
