"""Pooled baselines, and their comparison with the single-location estimators."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.utils.estimator_checks import estimator_checks_generator

from eigenheads.datasets import BagLaw, SingleLocation
from eigenheads.estimators import (
    BagComparison,
    BagPooling,
    PooledBagClassifier,
    PooledBagRegressor,
    SingleLocationRegressor,
    compare_bag_estimators,
)
from eigenheads.estimators._bag_pooling import POOLINGS


def contract_checks():
    for estimator in (
        BagPooling("statistics"),
        # With folds inside, weights are not repetitions.
        PooledBagRegressor(estimator=Ridge()),
        PooledBagClassifier("max", estimator=LogisticRegression()),
    ):
        for subject, check in estimator_checks_generator(estimator):
            name = getattr(check, "func", check).__name__
            # Runs only where SciPy was imported with SCIPY_ARRAY_API set.
            if name != "check_array_api_input":
                yield pytest.param(
                    subject, check, id=f"{type(estimator).__name__}-{name}"
                )


@pytest.mark.parametrize(("estimator", "check"), list(contract_checks()))
def test_the_contract_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture
def bags(rng):
    return [rng.standard_normal((n, 3)) for n in (1, 4, 2, 6)]


@pytest.mark.parametrize(
    ("pooling", "of_bag"),
    [
        ("mean", lambda bag: bag.mean(axis=0)),
        ("max", lambda bag: bag.max(axis=0)),
    ],
)
def test_pooling_is_per_bag(bags, pooling, of_bag):
    rows = BagPooling(pooling).fit_transform(bags)
    assert_allclose(rows, [of_bag(bag) for bag in bags], atol=1e-12)


def test_log_sum_exp_lies_between_mean_and_maximum(bags):
    tokens = np.concatenate(bags)
    rows = BagPooling("logsumexp").fit_transform(bags)
    scaled = [(bag - tokens.mean(axis=0)) / tokens.std(axis=0) for bag in bags]
    for row, bag in zip(rows, scaled, strict=True):
        assert_allclose(row, np.log(np.exp(bag).mean(axis=0)))
        assert (row >= bag.mean(axis=0) - 1e-12).all()
        assert (row <= bag.max(axis=0) + 1e-12).all()


def test_statistics_do_not_depend_on_the_order_of_tokens(bags, rng):
    shuffled = [rng.permutation(bag) for bag in bags]
    pooling = BagPooling("statistics").fit(bags)
    assert_allclose(pooling.transform(bags), pooling.transform(shuffled), atol=1e-12)
    assert pooling.transform(bags).shape == (4, 7 * 3 + 1)


def test_the_set_kernel_is_the_mean_over_pairs(rng):
    bags = [rng.standard_normal((n, 2)) for n in (3, 5, 4, 6)]
    pooling = BagPooling("kernel").fit(bags)
    rows = pooling.transform(bags)
    kernel = pooling.kernel_
    scaled = [kernel.scaler_.transform(bag) for bag in bags]

    def mean_kernel(one, other):
        squares = ((one[:, None] - other) ** 2).sum(axis=2)
        return np.exp(-kernel.gamma_ * squares).mean()

    gram = np.array([[mean_kernel(a, b) for b in scaled] for a in scaled])
    norms = np.sqrt(np.diag(gram))
    # All 18 tokens are landmarks, so the approximation is exact.
    assert_allclose(rows @ rows.T, gram / np.outer(norms, norms), atol=1e-6)


def test_the_linear_model_of_the_set_kernel_converges():
    law = BagLaw("ring", d=10, n_tokens=20)
    X, y, _ = law.sample(1000, np.random.default_rng(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = PooledBagClassifier("kernel").fit(X, y)
    assert model.score(X, y) > 0.6


def test_any_estimator_of_rows_can_be_used(rng):
    X = rng.standard_normal((40, 3, 2))
    y = X.mean(axis=1) @ [1.0, -2.0]
    model = PooledBagRegressor(estimator=LinearRegression()).fit(X, y)
    assert_allclose(model.predict(X), y, atol=1e-10)


def test_the_comparison_is_paired_and_names_the_better_model(rng):
    bags, y, _ = SingleLocation(d=6, n_tokens=5).sample(300, rng)
    named = {
        "mean": PooledBagRegressor(),
        "one token": SingleLocationRegressor(alpha=1e-3),
        "the same": SingleLocationRegressor(alpha=1e-3),
    }
    comparison = compare_bag_estimators(bags, y, estimators=named, cv=4)
    rows = {row["estimator"]: row for row in comparison.table()}
    assert rows["one token"]["difference_low"] > 0
    # Equal estimators on equal folds differ by nothing.
    assert_allclose(comparison.scores["one token"], comparison.scores["the same"])
    assert rows["mean"]["difference"] == 0.0
    assert comparison.table()[-1]["estimator"] == "mean"
    assert "one token" in str(comparison)
    with pytest.raises(ValueError, match="`reference` must be one of"):
        compare_bag_estimators(bags, y, estimators=named, reference="other")


def test_classes_and_groups_choose_score_and_folds(rng):
    X = rng.standard_normal((60, 3, 2))
    named = {"mean": PooledBagClassifier(estimator=LogisticRegression())}
    y, groups = np.arange(60) % 3, np.arange(60) // 4
    comparison = compare_bag_estimators(X, y, estimators=named, groups=groups)
    assert comparison.scoring == "accuracy"
    assert len(comparison.scores["mean"]) == 5
    two = compare_bag_estimators(X, y == 1, estimators=named)
    assert (two.scoring, len(two.scores["mean"])) == ("roc_auc", 10)


def test_counts_are_numbers_for_regressors(rng):
    X = rng.standard_normal((60, 3, 2))
    y = rng.integers(4, size=60)
    comparison = compare_bag_estimators(X, y, estimators={"mean": PooledBagRegressor()})
    assert comparison.scoring == "r2"


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_rows_of_a_frame_are_compared_as_bags_of_one_token(rng, package):
    frame = pytest.importorskip(package).DataFrame
    rows, y = rng.standard_normal((40, 2)), rng.standard_normal(40)
    named = {"mean": PooledBagRegressor()}
    table = frame({"a": rows[:, 0], "b": rows[:, 1]})
    found = compare_bag_estimators(table, y, estimators=named, cv=3)
    known = compare_bag_estimators(rows, y, estimators=named, cv=3)
    assert_allclose(found.scores["mean"], known.scores["mean"])


def test_all_peers_are_compared_in_one_call(rng):
    X = rng.standard_normal((40, 3, 2))
    y = X[:, 0, 0] > 0
    table = compare_bag_estimators(X, y, cv=2).table()
    assert {row["estimator"] for row in table} == {
        "single location",
        "single location, quantile",
        "single location, rbf",
        *(f"{pooling} pooling" for pooling in POOLINGS),
    }
    assert all(row["low"] <= row["score"] <= row["high"] for row in table)


def test_numbers_whose_squares_overflow_are_refused(rng):
    X, y = rng.standard_normal((12, 4, 3)), rng.standard_normal(12)
    X[3, 1, 2] = 1e200
    sentence = r"PooledBagRegressor: `X` must be numbers of at most 1e\+50; got 1e\+200"
    with pytest.raises(ValueError, match=sentence):
        PooledBagRegressor().fit(X, y)


@pytest.mark.parametrize("cv", [b"x", np.ones((1, 2, 3, 4)), "nonsense", [(0, 1)]])
def test_folds_that_are_none_are_refused(rng, cv):
    X, y = rng.standard_normal((12, 4, 3)), rng.standard_normal(12)
    with pytest.raises(TypeError, match="`cv` must be an integer, a splitter"):
        compare_bag_estimators(X, y, cv=cv)


@pytest.mark.parametrize("is_classified", [False, True])
@pytest.mark.parametrize("cv", [None, 4])
def test_groups_are_never_divided(rng, is_classified, cv):
    # Copies of a bag with a target that only copies tell: R² and AUC are high if a
    # group is on both sides, and at most those of a constant if it is not.
    groups = np.repeat(np.arange(12), 5)
    X, y = rng.standard_normal((12, 3, 40))[groups], rng.standard_normal(12)[groups]
    model = PooledBagRegressor(estimator=KNeighborsRegressor(1))
    if is_classified:
        y, model = y > 0, PooledBagClassifier(estimator=KNeighborsClassifier(1))
    compared = compare_bag_estimators(
        X, y, estimators={"nearest": model}, groups=groups, cv=cv
    )
    assert compared.scores["nearest"].mean() < 0.9


def test_undefined_scores_are_named_and_last(rng):
    X, y = rng.standard_normal((40, 3, 2)), np.arange(40) == 0
    named = {"mean": PooledBagClassifier(estimator=LogisticRegression())}
    compared = compare_bag_estimators(X, y, estimators=named)
    assert str(compared).splitlines()[1:] == [
        "mean  undefined",
        "roc_auc is undefined on 4 of 4 folds: their bags have one class, or are too "
        "few. Use fewer folds or more bags.",
    ]
    scores = {"none": np.array([np.nan, 1.0]), "good": np.array([0.9, 0.9])}
    table = BagComparison("roc_auc", "good", scores, 1.0).table()
    assert [row["estimator"] for row in table] == ["good", "none"]


def test_numbers_of_folds_beyond_the_bags_are_refused(rng):
    X, y = rng.standard_normal((12, 4, 3)), rng.standard_normal(12)
    with pytest.raises(
        ValueError, match="`cv` must be an integer from 2 to 12; got 13"
    ):
        compare_bag_estimators(X, y, cv=13)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_weight_of_zero_leaves_a_bag_out(rng, pooling):
    X, y = rng.standard_normal((40, 3, 2)), rng.standard_normal(40)
    X[30:] += 100.0
    model = PooledBagRegressor(pooling, estimator=Ridge())
    weights = (np.arange(40) < 30).astype(float)
    without = clone(model).fit(X[:30], y[:30]).predict(X)
    assert_allclose(model.fit(X, y, weights).predict(X), without, rtol=1e-10)
