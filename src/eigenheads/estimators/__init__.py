"""scikit-learn estimators."""

from eigenheads.estimators._attention_pca import AttentionPCA
from eigenheads.estimators._bags import GroupedBags, group_bags
from eigenheads.estimators._batches import row_blocks
from eigenheads.estimators._location import (
    SingleLocationClassifier,
    SingleLocationRegressor,
)
from eigenheads.estimators._robust_pca import RobustPCA
from eigenheads.estimators._signal_direction import SignalDirection
from eigenheads.estimators._token_screen import TokenScreen
from eigenheads.estimators._token_transformer import TokenTransformer

__all__ = [
    "AttentionPCA",
    "GroupedBags",
    "RobustPCA",
    "SignalDirection",
    "SingleLocationClassifier",
    "SingleLocationRegressor",
    "TokenScreen",
    "TokenTransformer",
    "group_bags",
    "row_blocks",
]
