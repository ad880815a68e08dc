"""scikit-learn estimators."""

from eigenheads.estimators._bags import GroupedBags, group_bags
from eigenheads.estimators._location import SingleLocationRegressor
from eigenheads.estimators._location_classifier import SingleLocationClassifier
from eigenheads.estimators._robust_pca import RobustPCA

__all__ = [
    "GroupedBags",
    "RobustPCA",
    "SingleLocationClassifier",
    "SingleLocationRegressor",
    "group_bags",
]
