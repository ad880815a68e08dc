"""Each formula once, pure, on NumPy or PyTorch arrays."""

from eigenheads.functional._location import location_predictor
from eigenheads.functional._pursuit import AttentionPursuit, attention_pursuit
from eigenheads.functional._shrinkage import soft_threshold

__all__ = [
    "AttentionPursuit",
    "attention_pursuit",
    "location_predictor",
    "soft_threshold",
]
