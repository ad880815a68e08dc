"""Single-location estimators: one token per bag decides."""

from eigenheads.estimators._location._classifier import SingleLocationClassifier
from eigenheads.estimators._location._regressor import SingleLocationRegressor

__all__ = ["SingleLocationClassifier", "SingleLocationRegressor"]
