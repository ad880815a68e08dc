"""scikit-learn estimators."""

from eigenheads.estimators._attention_pca import AttentionPCA
from eigenheads.estimators._bag_pooling import (
    BagPooling,
    PooledBagClassifier,
    PooledBagRegressor,
)
from eigenheads.estimators._bags import GroupedBags, group_bags
from eigenheads.estimators._batches import row_blocks
from eigenheads.estimators._compare import BagComparison, compare_bag_estimators
from eigenheads.estimators._feature_maps import RBFFeatures
from eigenheads.estimators._location import (
    SingleLocationClassifier,
    SingleLocationClassifierCV,
    SingleLocationRegressor,
    SingleLocationRegressorCV,
)
from eigenheads.estimators._parameters import link_to_documentation
from eigenheads.estimators._robust_pca import RobustPCA
from eigenheads.estimators._signal_direction import SignalDirection
from eigenheads.estimators._token_screen import TokenScreen
from eigenheads.estimators._token_transformer import TokenTransformer

__all__ = [
    "AttentionPCA",
    "BagComparison",
    "BagPooling",
    "GroupedBags",
    "PooledBagClassifier",
    "PooledBagRegressor",
    "RBFFeatures",
    "RobustPCA",
    "SignalDirection",
    "SingleLocationClassifier",
    "SingleLocationClassifierCV",
    "SingleLocationRegressor",
    "SingleLocationRegressorCV",
    "TokenScreen",
    "TokenTransformer",
    "compare_bag_estimators",
    "group_bags",
    "row_blocks",
]

link_to_documentation([globals()[name] for name in __all__])
