"""Formulas on NumPy or PyTorch arrays, as a readable reference.

Arrays must be finite; NaN raises an error that names its position. Numbers whose
squares exceed the largest float (entries beyond about 1e150) give infinity or NaN, as
in NumPy.
"""

from eigenheads.functional._kernel import (
    KernelPCA,
    gamma_ratios,
    kernel_coefficients,
    kernel_pca,
    kernel_pca_values,
    log_feature_norms,
    relative_differences,
)
from eigenheads.functional._location import location_predictor
from eigenheads.functional._pca import (
    NotIdentifiedWarning,
    PrincipalSubspace,
    pca_head,
    principal_subspace,
)
from eigenheads.functional._pursuit import AttentionPursuit, attention_pursuit
from eigenheads.functional._screening import token_distances
from eigenheads.functional._signal import signal_output, signal_output_gradient
from eigenheads.functional._similarity import (
    linear_cka,
    matching_cosine,
    rbf_cka,
    rbf_gram,
)
from eigenheads.functional._spectrum import (
    effective_rank,
    singular_value_threshold,
    soft_threshold,
)

__all__ = [
    "AttentionPursuit",
    "KernelPCA",
    "NotIdentifiedWarning",
    "PrincipalSubspace",
    "attention_pursuit",
    "effective_rank",
    "gamma_ratios",
    "kernel_coefficients",
    "kernel_pca",
    "kernel_pca_values",
    "linear_cka",
    "location_predictor",
    "log_feature_norms",
    "matching_cosine",
    "pca_head",
    "principal_subspace",
    "rbf_cka",
    "rbf_gram",
    "relative_differences",
    "signal_output",
    "signal_output_gradient",
    "singular_value_threshold",
    "soft_threshold",
    "token_distances",
]
