"""Each formula once, pure, on NumPy or PyTorch arrays."""

from eigenheads.functional._location import location_predictor
from eigenheads.functional._pca import pca_head
from eigenheads.functional._pca_gradient import PromptLoss, pca_prompt_loss
from eigenheads.functional._pca_subspace import (
    NotIdentifiedWarning,
    PrincipalSubspace,
    principal_subspace,
)
from eigenheads.functional._pursuit import AttentionPursuit, attention_pursuit
from eigenheads.functional._shrinkage import soft_threshold
from eigenheads.functional._signal import signal_output, signal_output_gradient

__all__ = [
    "AttentionPursuit",
    "NotIdentifiedWarning",
    "PrincipalSubspace",
    "PromptLoss",
    "attention_pursuit",
    "location_predictor",
    "pca_head",
    "pca_prompt_loss",
    "principal_subspace",
    "signal_output",
    "signal_output_gradient",
    "soft_threshold",
]
