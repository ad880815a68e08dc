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
from eigenheads.theory._signal_ascent import finite_signal_ascent, finite_signal_flow
from eigenheads.theory._signal_finite import (
    finite_signal_gradient,
    finite_signal_noise,
    finite_signal_objective,
)
from eigenheads.theory._signal_flow import (
    SignalFixedPoint,
    random_alignment,
    signal_escape_rate,
    signal_escape_time,
    signal_fixed_points,
    signal_flow,
)
from eigenheads.theory._signal_objective import (
    signal_objective,
    signal_objective_gradient,
)
from eigenheads.theory._signal_pca import pooled_pca_alignment, pooled_pca_threshold
from eigenheads.theory._signal_steps import (
    SignalConditions,
    SignalSteps,
    signal_conditions,
    signal_steps,
)

__all__ = [
    "BayesRisk",
    "CriticalPoint",
    "FixedPoint",
    "PCALandscape",
    "SignalConditions",
    "SignalFixedPoint",
    "SignalSteps",
    "descend",
    "finite_signal_ascent",
    "finite_signal_flow",
    "finite_signal_gradient",
    "finite_signal_noise",
    "finite_signal_objective",
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
    "pooled_pca_alignment",
    "pooled_pca_threshold",
    "random_alignment",
    "signal_conditions",
    "signal_escape_rate",
    "signal_escape_time",
    "signal_fixed_points",
    "signal_flow",
    "signal_objective",
    "signal_objective_gradient",
    "signal_steps",
    "softmax_landscape",
    "softmax_pca_risk",
    "softmax_pca_risk_gradient",
]
