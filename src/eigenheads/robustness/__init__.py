"""Robustness of models to corrupted, attacked and foreign input."""

from eigenheads._extras import missing as _missing

try:
    import torch as _torch  # noqa: F401 -- asked for here, so that the error is clear
except ImportError as error:
    raise _missing("PyTorch", extra="torch", owner="eigenheads.robustness") from error

from eigenheads.robustness._attacks import fgsm, pgd
from eigenheads.robustness._blind_attacks import spsa, square
from eigenheads.robustness._corruptions import CORRUPTIONS, SEVERITIES, corrupt
from eigenheads.robustness._evaluate import ATTACKS, evaluate_robustness
from eigenheads.robustness._result import Robustness, RobustnessRow
from eigenheads.robustness._tokens import corrupting_tokens, swap_words

__all__ = [
    "ATTACKS",
    "CORRUPTIONS",
    "SEVERITIES",
    "Robustness",
    "RobustnessRow",
    "corrupt",
    "corrupting_tokens",
    "evaluate_robustness",
    "fgsm",
    "pgd",
    "spsa",
    "square",
    "swap_words",
]
