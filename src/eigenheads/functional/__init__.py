"""Each formula once, pure, on NumPy or PyTorch arrays."""

from eigenheads.functional._location import location_predictor
from eigenheads.functional._pca import pca_head
from eigenheads.functional._pca_subspace import (
    NotIdentifiedWarning,
    PrincipalSubspace,
    principal_subspace,
)

__all__ = [
    "NotIdentifiedWarning",
    "PrincipalSubspace",
    "location_predictor",
    "pca_head",
    "principal_subspace",
]
