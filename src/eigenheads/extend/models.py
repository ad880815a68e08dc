"""Parts of models and of their evaluation, for packages that build on this one.

They need PyTorch, and trust their callers: arguments are not checked.
"""

from eigenheads.adapters._probe import untrained_copy
from eigenheads.adapters._screen import ScreenModule
from eigenheads.nn._layers import AbstractAttention
from eigenheads.probes._captured import probe_captured
from eigenheads.robustness._attack_input import margin
from eigenheads.robustness._attacks import input_gradient
from eigenheads.robustness._intervals import run_bounds
from eigenheads.robustness._text import Encoded, corrupt_texts, read_labelled_texts

__all__ = [
    "AbstractAttention",
    "Encoded",
    "ScreenModule",
    "corrupt_texts",
    "input_gradient",
    "margin",
    "probe_captured",
    "read_labelled_texts",
    "run_bounds",
    "untrained_copy",
]
