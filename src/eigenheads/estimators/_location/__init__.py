"""Single-location estimators: one token per bag decides."""

from eigenheads.estimators._location._classifier import SingleLocationClassifier
from eigenheads.estimators._location._regressor import SingleLocationRegressor
from eigenheads.estimators._location._search import (
    SingleLocationClassifierCV,
    SingleLocationRegressorCV,
)

__all__ = [
    "SingleLocationClassifier",
    "SingleLocationClassifierCV",
    "SingleLocationRegressor",
    "SingleLocationRegressorCV",
]
