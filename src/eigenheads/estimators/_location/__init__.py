"""Single-location estimators: one token per bag decides."""

from eigenheads.estimators._location._estimators import (
    SingleLocationClassifier,
    SingleLocationClassifierCV,
    SingleLocationRegressor,
    SingleLocationRegressorCV,
)

__all__ = [
    "SingleLocationClassifier",
    "SingleLocationClassifierCV",
    "SingleLocationRegressor",
    "SingleLocationRegressorCV",
]
