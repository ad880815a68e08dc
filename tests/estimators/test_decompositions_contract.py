"""AttentionPCA and SignalDirection keep scikit-learn's contract."""

import os
import subprocess
import sys

import numpy as np
import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from eigenheads.estimators import AttentionPCA, RobustPCA, SignalDirection

# The check shuffles rows, and prompts and held-out tokens are drawn by row;
# test_signal_direction.py compares weights with repeated tokens.
EQUIVALENCE = {
    f"check_sample_weight_equivalence_on_{kind}_data": "rows are held out at random"
    for kind in ("dense", "sparse")
}
KINDS = ("pandas_series", "not_an_array", "list", "shape", "not_overwritten")
NO_WEIGHTS = dict.fromkeys(
    [*EQUIVALENCE, *(f"check_sample_weights_{kind}" for kind in KINDS)],
    "prompts of random rows take no weights",
)


def contract_checks():
    for estimator, expected in (
        (AttentionPCA(), {}),
        (AttentionPCA(n_tokens=20), NO_WEIGHTS),
        (SignalDirection(), EQUIVALENCE),
    ):
        for case in estimator_checks_generator(
            estimator, expected_failed_checks=expected, mark="xfail"
        ):
            subject, check = getattr(case, "values", case)
            name = getattr(check, "func", check).__name__
            # Runs only where SciPy was imported with SCIPY_ARRAY_API set: below.
            if name != "check_array_api_input":
                label = f"{type(estimator).__name__}-{estimator.n_tokens}-{name}"
                marks = getattr(case, "marks", ())
                yield pytest.param(subject, check, marks=marks, id=label)


# The checks lower `max_iter` to 5.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("estimator", "check"), list(contract_checks()))
def test_keeps_the_scikit_learn_contract(estimator, check):
    check(estimator)


# Three columns of noise need a large sparsity to have two components.
@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize(
    "estimator", [AttentionPCA(2), RobustPCA(2, sparsity=3.0), SignalDirection(2)]
)
def test_output_can_be_a_data_frame(estimator, library):
    frames = pytest.importorskip(library)
    X = frames.DataFrame(
        dict(zip("abc", np.random.default_rng(0).standard_normal((3, 60)), strict=True))
    )
    frame = estimator.set_output(transform=library).fit(X).transform(X)
    stem = type(estimator).__name__.lower()
    assert list(frame.columns) == [f"{stem}0", f"{stem}1"]
    assert list(estimator.feature_names_in_) == [*"abc"]


def test_bags_and_a_data_frame_do_not_go_together():
    pytest.importorskip("pandas")
    bags = np.random.default_rng(0).standard_normal((4, 20, 3))
    model = SignalDirection(random_state=0).fit(bags).set_output(transform="pandas")
    with pytest.raises(ValueError, match="`X` must be rows of tokens; got bags with"):
        model.transform(bags)


@pytest.mark.parametrize("estimator", [AttentionPCA(2), SignalDirection(2)])
def test_float32_is_kept(estimator):
    X = np.random.default_rng(0).standard_normal((60, 3)).astype(np.float32)
    model = estimator.set_params(random_state=0).fit(X)
    assert model.transform(X).dtype == model.components_.dtype == np.float32
    assert model.mean_.dtype == np.float32
    wide = type(estimator)(2, random_state=0).fit(X.astype(np.float64))
    span = wide.components_ @ np.linalg.pinv(model.components_.astype(float))
    back = span @ model.components_
    # Both stop at the tolerance 1e-3 of the residual, or 1e-6 in 1 - cos.
    assert np.abs(back - wide.components_).max() < 0.05


ARRAY_API = """
import warnings
from sklearn.utils.estimator_checks import estimator_checks_generator
from eigenheads.estimators import AttentionPCA, RobustPCA, SignalDirection

warnings.simplefilter("ignore")
for estimator in (AttentionPCA(), RobustPCA(), SignalDirection()):
    for subject, check in estimator_checks_generator(estimator):
        if getattr(check, "func", check).__name__ == "check_array_api_input":
            check(subject)
            print(type(estimator).__name__)
"""


@pytest.mark.slow
def test_the_array_api_check_passes_in_a_process_where_it_runs():
    done = subprocess.run(
        [sys.executable, "-c", ARRAY_API],
        env={**os.environ, "SCIPY_ARRAY_API": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr  # a skipped check raises, too
    assert done.stdout.split() == ["AttentionPCA", "RobustPCA", "SignalDirection"]
