"""The single-location estimators keep scikit-learn's contract."""

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from eigenheads.estimators import (
    SingleLocationClassifier,
    SingleLocationClassifierCV,
    SingleLocationRegressor,
    SingleLocationRegressorCV,
)

# One setting and few folds: the contract is about input, not about the search.
SMALL = {"feature_maps": (None,), "heads": ("softmax",), "cv": 2}


def contract_checks():
    for estimator in (
        SingleLocationRegressor(),
        SingleLocationClassifier(),
        SingleLocationRegressorCV(**SMALL),
        SingleLocationClassifierCV(**SMALL),
    ):
        for subject, check in estimator_checks_generator(estimator):
            name = getattr(check, "func", check).__name__
            # Runs only where SciPy was imported with SCIPY_ARRAY_API set.
            if name != "check_array_api_input":
                label = f"{type(estimator).__name__}-{name}"
                yield pytest.param(subject, check, id=label)


# The checks lower `max_iter` to 5.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("estimator", "check"), list(contract_checks()))
def test_keeps_the_scikit_learn_contract(estimator, check):
    check(estimator)
