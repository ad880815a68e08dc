"""Robust PCA keeps scikit-learn's contract."""

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from eigenheads.estimators import RobustPCA


def contract_checks():
    for subject, check in estimator_checks_generator(RobustPCA()):
        name = getattr(check, "func", check).__name__
        # Runs only where SciPy was imported with SCIPY_ARRAY_API set: see
        # test_decompositions_contract.py.
        if name != "check_array_api_input":
            yield pytest.param(subject, check, id=name)


# The checks lower `max_iter` to 5, and some feed pure noise.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:RobustPCA. no components")
@pytest.mark.parametrize(("estimator", "check"), list(contract_checks()))
def test_keeps_the_scikit_learn_contract(estimator, check):
    check(estimator)
