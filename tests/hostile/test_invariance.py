"""The same data give the same answer, however they are written down.

Each estimator is fitted to a table or to bags, and again to the same data in another
form: other columns first, other rows first, other names of classes, another type, one
at a time, after pickling. What it answers must be the same up to a stated share.
"""

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from eigenheads.datasets import SingleLocation
from eigenheads.estimators import (
    AttentionPCA,
    PooledBagClassifier,
    PooledBagRegressor,
    RobustPCA,
    SignalDirection,
    SingleLocationClassifier,
    SingleLocationRegressor,
    TokenScreen,
)
from eigenheads.models import threads

LAW = SingleLocation(6, 5, noise=0.3)
N_BAGS, N_NEW = 90, 40


def exact_in_float32(array):
    return array.astype(np.float32).astype(np.float64)


def bags(seed, n_bags=N_BAGS):
    """Return bags and targets, and new bags: numbers that float32 holds exactly."""
    X, y, _ = LAW.sample(n_bags + N_NEW, np.random.default_rng(seed))
    X, y = exact_in_float32(X), exact_in_float32(y)
    return X[:n_bags], y[:n_bags], X[n_bags:]


def table(seed):
    """Return rows with three large components and a tenth of them moved."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((150, 3)) * [5, 4, 3] @ rng.standard_normal((3, 8))
    rows += 0.1 * rng.standard_normal(rows.shape)
    rows[:15] += 8 * np.eye(8)[2]
    return exact_in_float32(rows)


def probabilities(model, X):
    """Return the probability of a positive target, whatever the classes are called."""
    positive = [str(name) in ("True", "1", "a positive one") for name in model.classes_]
    return model.predict_proba(X)[:, np.flatnonzero(positive)[0]]


MODELS = [
    (SingleLocationClassifier(), 1e-3),
    (SingleLocationClassifier(alpha=0.01), 1e-3),
    (PooledBagClassifier(), 1e-3),
    (PooledBagClassifier("kernel"), 1e-3),
    (SingleLocationRegressor(), 1e-3),
    (SingleLocationRegressor(alpha=0.01), 1e-3),
    (PooledBagRegressor(), 1e-3),
    (PooledBagRegressor("kernel"), 1e-3),
]
CLASSIFIERS = [pair for pair in MODELS if hasattr(pair[0], "predict_proba")]


def name_of(value):
    return str(value) if hasattr(value, "get_params") else ""


def answer(model, X, y, new):
    """Return what a fit says about new bags, in units of what it could say."""
    model = clone(model)
    if hasattr(model, "predict_proba"):
        return probabilities(model.fit(X, y > 0), new)
    return model.fit(X, y).predict(new) / np.std(y)


def mixed(seed, n):
    return np.random.default_rng(seed).permutation(n)


COLUMNS, TOKENS = mixed(1, 6), mixed(3, 5)


def reordered(X, y, new):
    order = mixed(2, len(X))
    return X[order], y[order], new


FORMS = {
    "columns": lambda X, y, new: (X[..., COLUMNS], y, new[..., COLUMNS]),
    "order of bags": reordered,
    "order of tokens": lambda X, y, new: (X[:, TOKENS], y, new[:, TOKENS]),
    "float32": lambda X, y, new: (X.astype("f4"), y.astype("f4"), new.astype("f4")),
    "units": lambda X, y, new: (1024 * X, y, 1024 * new),
    "lists": lambda X, y, new: (list(X), list(y), list(new)),
    "read-only": lambda X, y, new: tuple(map(read_only, (X, y, new))),
}


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("model", "share"), MODELS, ids=name_of)
def test_bags_in_another_form(model, share, form):
    X, y, new = bags(0)
    expected = answer(model, X, y, new)
    X, y, new = FORMS[form](X, y, new)
    got = answer(model, X, np.asarray(y), new)
    np.testing.assert_allclose(got, expected, rtol=0, atol=share)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("n_bags", [40, 100, 300])
@pytest.mark.parametrize(
    "model", [SingleLocationClassifier(), SingleLocationRegressor()], ids=name_of
)
def test_twenty_sets_in_all_forms(model, n_bags):
    largest = {}
    for seed in range(20):
        X, y, new = bags(seed, n_bags)
        expected = answer(model, X, y, new)
        for form, change in FORMS.items():
            changed, targets, others = change(X, y, new)
            got = answer(model, changed, np.asarray(targets), others)
            largest[form] = max(largest.get(form, 0.0), np.abs(got - expected).max())
        if hasattr(model, "predict_proba"):
            got = probabilities(clone(model).fit(X, np.where(y > 0, 1, 2)), new)
            change = np.abs(got - expected).max()
            largest["classes"] = max(largest.get("classes", 0.0), change)
    assert max(largest.values()) <= 1e-3, largest


@pytest.mark.parametrize(("model", "share"), CLASSIFIERS, ids=name_of)
def test_names_and_order_of_classes(model, share):
    X, y, new = bags(1)
    expected = answer(model, X, y, new)
    for negative, positive in (("none", "a positive one"), (2, 1)):
        names = np.where(y > 0, positive, negative)
        got = probabilities(clone(model).fit(X, names), new)
        np.testing.assert_allclose(got, expected, rtol=0, atol=share)


@pytest.mark.parametrize(("model", "share"), MODELS, ids=name_of)
def test_one_bag_at_a_time_after_pickling_and_in_threads(model, share):
    X, y, new = bags(2)
    target = y > 0 if hasattr(model, "predict_proba") else y
    with threads(1):
        fitted = clone(model).fit(X, target)
    with threads(2):
        again = clone(fitted).fit(X, target)
    copied = pickle.loads(pickle.dumps(fitted))
    say = "predict_proba" if hasattr(model, "predict_proba") else "predict"
    expected = getattr(fitted, say)(new)
    assert np.array_equal(getattr(copied, say)(new), expected)
    np.testing.assert_allclose(getattr(again, say)(new), expected, rtol=1e-9)
    single = np.concatenate([getattr(fitted, say)(bag[None]) for bag in new])
    np.testing.assert_allclose(single, expected, rtol=0, atol=share * np.std(y))


DECOMPOSITIONS = [
    (AttentionPCA(2, random_state=0), 1e-3),
    (RobustPCA(2), 1e-3),
    (TokenScreen(2), 1e-6),
]


def description(model, rows, new):
    """Return what a fit says about new rows: distances and scores have no sign."""
    model = clone(model)
    if isinstance(model, TokenScreen):
        return model.fit(rows[:, None]).score_samples(new[:, None])[:, 0]
    codes = model.fit(rows).transform(new)
    return np.linalg.norm(codes, axis=1) / np.std(rows)


@pytest.mark.parametrize("form", ["columns", "order", "float32", "units"])
@pytest.mark.parametrize(("model", "share"), DECOMPOSITIONS, ids=name_of)
def test_tables_in_another_form(model, share, form):
    if isinstance(model, TokenScreen) and form == "order":
        return  # a random half of the rows is held out for the threshold
    rows, new = table(0), table(1)[:20]
    expected = description(model, rows, new)
    columns, order = mixed(4, 8), mixed(5, len(rows))
    rows, new = {
        "columns": (rows[:, columns], new[:, columns]),
        "order": (rows[order], new),
        "float32": (rows.astype("f4"), new.astype("f4")),
        "units": (1024 * rows, 1024 * new),
    }[form]
    got = description(model, rows, new)
    np.testing.assert_allclose(got, expected, rtol=share, atol=share)


def test_signal_direction_in_another_form():
    # Rows are held out at random, so that their order counts here and nowhere else.
    rows, columns = table(2), mixed(6, 8)

    def direction(data):
        model = SignalDirection(n_components=1, random_state=0).fit(data)
        return np.abs(model.directions_[0])

    expected = direction(rows)
    assert np.allclose(direction(rows[:, columns]), expected[columns], atol=1e-3)
    assert np.allclose(direction(rows.astype("f4")), expected, atol=1e-3)
    assert np.allclose(direction(1024 * rows), expected, atol=1e-3)
