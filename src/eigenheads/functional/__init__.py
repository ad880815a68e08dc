"""Each formula once, pure, on NumPy or PyTorch arrays."""

from eigenheads.functional._location import location_predictor
from eigenheads.functional._pca import pca_head
from eigenheads.functional._pca_subspace import (
    NotIdentifiedWarning,
    PrincipalSubspace,
    principal_subspace,
)
from eigenheads.functional._pursuit import AttentionPursuit, attention_pursuit
from eigenheads.functional._shrinkage import soft_threshold
from eigenheads.functional._signal import signal_output, signal_output_gradient
from eigenheads.functional._singular_values import singular_value_threshold

__all__ = [
    "AttentionPursuit",
    "NotIdentifiedWarning",
    "PrincipalSubspace",
    "attention_pursuit",
    "location_predictor",
    "pca_head",
    "principal_subspace",
    "signal_output",
    "signal_output_gradient",
    "singular_value_threshold",
    "soft_threshold",
]
