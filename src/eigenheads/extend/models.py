"""Parts of models and of their evaluation, for packages that build on this one.

They need PyTorch, and trust their callers: arguments are not checked.
"""

from eigenheads.adapters._probe import probe_captured
from eigenheads.adapters._screen import ScreenModule
from eigenheads.adapters._untrained_copy import untrained_copy
from eigenheads.nn._projections import AbstractAttention
from eigenheads.robustness._text import Encoded, corrupt_texts, read_labelled_texts

__all__ = [
    "AbstractAttention",
    "Encoded",
    "ScreenModule",
    "corrupt_texts",
    "probe_captured",
    "read_labelled_texts",
    "untrained_copy",
]
