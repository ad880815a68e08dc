"""Each theorem as a closed form."""

from eigenheads.theory._location_bayes import (
    BayesRisk,
    location_bayes_risk,
    location_linear_risk,
    location_null_risk,
    location_oracle_risk,
)
from eigenheads.theory._location_descent import location_descent
from eigenheads.theory._location_flow import (
    FixedPoint,
    location_field,
    location_fixed_points,
    location_flow,
)
from eigenheads.theory._location_risk import location_risk, location_risk_gradient
from eigenheads.theory._pca_descent import descend
from eigenheads.theory._pca_landscape import CriticalPoint, PCALandscape
from eigenheads.theory._pca_risk import (
    in_context_landscape,
    in_context_pca_risk,
    in_context_pca_risk_gradient,
    linear_landscape,
    linear_pca_risk,
    linear_pca_risk_gradient,
    softmax_landscape,
    softmax_pca_risk,
    softmax_pca_risk_gradient,
)

__all__ = [
    "BayesRisk",
    "CriticalPoint",
    "FixedPoint",
    "PCALandscape",
    "descend",
    "in_context_landscape",
    "in_context_pca_risk",
    "in_context_pca_risk_gradient",
    "linear_landscape",
    "linear_pca_risk",
    "linear_pca_risk_gradient",
    "location_bayes_risk",
    "location_descent",
    "location_field",
    "location_fixed_points",
    "location_flow",
    "location_linear_risk",
    "location_null_risk",
    "location_oracle_risk",
    "location_risk",
    "location_risk_gradient",
    "softmax_landscape",
    "softmax_pca_risk",
    "softmax_pca_risk_gradient",
]
