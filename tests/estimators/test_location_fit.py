"""Refining on the tokens that count gives the minimum over all of them."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning

from eigenheads.datasets import SingleLocation
from eigenheads.estimators import (
    SingleLocationClassifier,
    SingleLocationRegressor,
)
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location import _fit, _problem, _selection
from eigenheads.estimators._location._problem import (
    LabelledBags,
    LocationData,
    data_in_memory,
)

N, LENGTH, WIDTH = 400, 30, 12


@pytest.fixture(scope="module")
def data():
    """The deciding token is seven deviations away: key and value come first."""
    law = SingleLocation(d=100, n_tokens=LENGTH, noise=0.1)
    tokens, y, _ = law.sample(N, np.random.default_rng(4))
    return tokens[..., :WIDTH].copy(), y


def data_of(tokens, y, *, radii=None):
    n, length, width = tokens.shape
    bags = Bags(tokens.reshape(-1, width), length * np.arange(n + 1), radii)
    return data_in_memory(LabelledBags(bags, y, y[:, None], np.linspace(1, 2, n)))


def all_tokens(monkeypatch):
    monkeypatch.setattr(LocationData, "attentive", lambda *_, **__: None)


def test_kept_tokens_are_those_within_the_margin(rng, data):
    tokens, y = data
    key = 2 * rng.standard_normal(WIDTH)
    (rest,) = data_of(tokens, y).attentive(key, 5.0, head="softmax").read()
    scores = tokens @ key
    kept = scores >= scores.max(axis=1, keepdims=True) - 5.0
    assert kept.mean() < 0.5
    assert_array_equal(rest.bags.lengths, kept.sum(axis=1))
    assert_array_equal(rest.bags.tokens, tokens[kept])
    assert_array_equal(rest.weights, np.linspace(1, 2, N))


def test_radii_go_with_their_tokens(rng, data):
    tokens, y = data
    radii = rng.standard_normal(N * LENGTH)
    whole = data_of(tokens, y, radii=radii)
    key = np.append(np.zeros(WIDTH), 3.0)
    (rest,) = whole.attentive(key, 1.0, head="radial").read()
    tops = radii.reshape(N, LENGTH).max(axis=1, keepdims=True)
    assert_array_equal(
        rest.bags.radii, radii[(radii.reshape(N, -1) >= tops - 1 / 3).ravel()]
    )
    some = next(iter(whole.read())).take(np.array([3, 1]))
    assert_array_equal(some.bags.radii[:LENGTH], radii[3 * LENGTH : 4 * LENGTH])


def test_nothing_is_gathered_where_most_tokens_count(data, monkeypatch):
    whole, key = data_of(*data), np.ones(WIDTH)
    assert whole.attentive(0 * key, 5.0, head="softmax") is None
    assert whole.attentive(key, 0.1, head="erf") is None
    assert whole.attentive(key, 0.1, head="softmax") is not None
    # A stream of which many tokens count stays a stream.
    monkeypatch.setattr(_problem, "_MOST_NUMBERS", N * WIDTH - 1)
    assert whole.attentive(key, 0.1, head="softmax") is not None
    stream = replace(whole, is_stream=True)
    assert stream.attentive(key, 0.1, head="softmax") is None


@pytest.mark.parametrize("most", [2**22, 0])
def test_a_stream_gathers_what_the_fit_in_memory_does(data, monkeypatch, most):
    monkeypatch.setattr(_problem, "_MOST_NUMBERS", most)
    tokens, y = data
    passes = []

    def batches():
        passes.append(None)
        return ((tokens[i : i + 90], y[i : i + 90]) for i in range(0, N, 90))

    model = SingleLocationRegressor(alpha=3e-5).fit(batches)
    if not most:
        all_tokens(monkeypatch)
    whole = SingleLocationRegressor(alpha=3e-5).fit(tokens, y)
    # Sums in another order, through the iterations.
    assert_allclose(model.coef_key_, whole.coef_key_, rtol=1e-6, atol=1e-8)
    assert (len(passes) < 20) == (most > 0)


@pytest.mark.parametrize("head", ["softmax", "radial"])
@pytest.mark.parametrize(
    "estimator", [SingleLocationRegressor, SingleLocationClassifier]
)
def test_the_fit_is_that_over_all_tokens(data, monkeypatch, estimator, head):
    tokens, y = data
    y = y if estimator is SingleLocationRegressor else y > 0
    settings = {"head": head, "tol": 1e-5, "alpha": 1e-6}
    gathered, attentive = [], LocationData.attentive

    def spied(*given, **settings):
        gathered.append(attentive(*given, **settings))
        return gathered[-1]

    monkeypatch.setattr(LocationData, "attentive", spied)
    quick = estimator(**settings).fit(tokens, y)
    assert len(gathered) >= 2
    assert None not in gathered
    all_tokens(monkeypatch)
    whole = estimator(**settings).fit(tokens, y)
    # Both stop at a relative decrease of 1e-10; the attended mean is from a first
    # stage that stops at ten times the tolerance.
    assert_allclose(quick.objective_, whole.objective_, rtol=1e-4)
    assert_allclose(quick.coef_value_, whole.coef_value_, rtol=5e-4, atol=2e-3)


def test_a_wrong_choice_of_tokens_is_noticed(data, monkeypatch):
    """With one token a bag there is no key to fit: the gradient over all says so."""
    settings = {"alpha": 1e-3, "coherence": 0.0, "max_iter": 100}
    all_tokens(monkeypatch)
    whole = SingleLocationRegressor(**settings).fit(*data)
    monkeypatch.undo()
    monkeypatch.setattr(_fit, "_MARGIN", np.log(1e-4))
    chosen = SingleLocationRegressor(**settings).fit(*data)
    assert_allclose(chosen.objective_, whole.objective_, rtol=1e-3)


@pytest.mark.parametrize("max_iter", [1, 3])
def test_iterations_over_some_tokens_are_counted(data, max_iter):
    """Two stages, each of at most so many."""
    model = SingleLocationRegressor(alpha=3e-5, max_iter=max_iter)
    with pytest.warns(ConvergenceWarning):
        model.fit(*data)
    assert model.n_iter_ <= 2 * max_iter


def test_no_tolerance_leaves_a_bag_without_tokens(data, monkeypatch):
    """Whatever `tol` is, the largest score of a bag counts."""
    tokens, y = data
    margins = []
    attentive = LocationData.attentive

    def watched(self, key, margin, *, head):
        margins.append(margin)
        return attentive(self, key, margin, head=head)

    monkeypatch.setattr(LocationData, "attentive", watched)
    SingleLocationRegressor(tol=100.0).fit(tokens, y)
    assert margins
    assert min(margins) >= 0


@pytest.mark.parametrize("head", ["softmax", "erf"])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_more_features_than_tokens_are_fitted_in_their_span(
    rng, monkeypatch, head, fit_intercept
):
    X, y = (
        rng.standard_normal((12, 3, 50)) * np.linspace(1, 9, 50) + 2.0,
        rng.random(12),
    )
    settings = {"head": head, "fit_intercept": fit_intercept, "alpha": 0.01}
    settings |= {"tol": 1e-9, "extrapolation": None, "coherence": 0.0}
    settings["max_iter"] = 3000  # erf has flat directions
    weights = np.arange(1.0, 13.0)
    reduced = SingleLocationRegressor(**settings).fit(X, y, weights)
    monkeypatch.setattr(_fit, "token_span", None)
    monkeypatch.setattr(
        "eigenheads.estimators._location._base.PREPARATION", _fit.PREPARATION[2:]
    )
    whole = SingleLocationRegressor(**settings).fit(X, y, weights)
    # Two paths of the optimiser to one minimum.
    assert_allclose(reduced.objective_, whole.objective_, rtol=1e-5)
    assert_allclose(reduced.predict(X), whole.predict(X), atol=1e-3)
    if head == "softmax":  # erf is odd: key and value may change their signs
        assert_allclose(reduced.coef_value_, whole.coef_value_, atol=1e-4)


def test_thousands_of_features_are_fitted(rng):
    """200 tokens in 6 000 features: no matrix of 6 000 by 6 000 is made."""
    X, y = rng.standard_normal((50, 4, 6000)), rng.standard_normal(50)
    X[:, 1, :500] += 2.0
    X[:, 1, 500:1000] += 2 * y[:, None]
    model = SingleLocationRegressor(alpha=1e-3).fit(X, y)
    assert model.coef_key_.shape == (6000,)
    assert np.mean(model.locate(X) == 1) > 0.9


@pytest.mark.parametrize("head", ["softmax", "radial"])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_values_of_few_bags_are_those_of_the_normal_equations(
    rng, monkeypatch, head, fit_intercept
):
    """More features than bags: one row per bag instead of one per feature."""
    X, y = rng.standard_normal((12, 5, 20)) + 1.0, rng.standard_normal((12, 2))
    settings = {"head": head, "fit_intercept": fit_intercept, "alpha": 0.01}
    weights = np.arange(1.0, 13.0)
    few = SingleLocationRegressor(**settings).fit(X, y, weights)

    def by_grams(state, key):
        for factor, gram in _fit._grams_of_lengths(state, key).items():
            yield factor, *_fit._ridge(gram, state.settings.alpha, 2)

    monkeypatch.setattr(_fit, "_values_of_lengths", by_grams)
    whole = SingleLocationRegressor(**settings).fit(X, y, weights)
    assert_allclose(few.coef_value_, whole.coef_value_, rtol=1e-6, atol=1e-9)
    assert_allclose(few.intercept_, whole.intercept_, rtol=1e-6, atol=1e-9)
    assert_allclose(few.objective_, whole.objective_, rtol=1e-9)


@pytest.mark.parametrize("head", ["softmax", "radial", "erf"])
def test_whitened_tokens_have_the_same_loss(rng, head):
    """The choice of the penalty whitens the tokens once."""
    X, y = rng.standard_normal((12, 4, 6)) * np.arange(1, 7) + 2.0, rng.random(12)
    model = SingleLocationRegressor(head=head)
    encoding = model._encoding(y)
    batch = model._labelled(X, y, None, encoding)
    state = model._prepared(data_in_memory(batch), encoding.kind)
    (sample,) = state.data.read()
    heads, whitened = _selection._in_whitened_tokens(state, sample)
    moved = replace(heads, data=data_in_memory(whitened))
    width = len(state.coordinates.mean)
    flat = rng.standard_normal(2 * width + 1)
    if head == "radial":
        flat[2 * width - 1] = 0.0  # the value does not read the radius
    value, gradient = state.objective()(flat)
    value_there, gradient_there = moved.objective()(flat)
    assert_allclose(value_there, value, rtol=1e-10)
    assert_allclose(gradient_there, gradient, rtol=1e-8, atol=1e-10)
