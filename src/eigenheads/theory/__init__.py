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

__all__ = [
    "BayesRisk",
    "FixedPoint",
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
]
