"""scikit-learn estimators."""

from eigenheads.estimators._bags import GroupedBags, group_bags
from eigenheads.estimators._batches import row_blocks
from eigenheads.estimators._location import SingleLocationRegressor
from eigenheads.estimators._location_classifier import SingleLocationClassifier

__all__ = [
    "GroupedBags",
    "SingleLocationClassifier",
    "SingleLocationRegressor",
    "group_bags",
    "row_blocks",
]
