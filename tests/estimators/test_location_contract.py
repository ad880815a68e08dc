"""The single-location estimators keep scikit-learn's contract."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from eigenheads.estimators import SingleLocationClassifier, SingleLocationRegressor


# The checks lower `max_iter` to 5.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [
        SingleLocationRegressor(),
        SingleLocationClassifier(),
        SingleLocationRegressor(head="erf", l1_ratio=0.5),
    ]
)
def test_keeps_the_scikit_learn_contract(estimator, check):
    check(estimator)
