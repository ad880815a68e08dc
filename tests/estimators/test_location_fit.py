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
from eigenheads.estimators._location import _data, _fit, _prepare
from eigenheads.estimators._location._data import (
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


def data_of(tokens, y):
    n, length, width = tokens.shape
    bags = Bags(tokens.reshape(-1, width), length * np.arange(n + 1))
    return data_in_memory(LabelledBags(bags, y, y[:, None], np.linspace(1, 2, n)))


def all_tokens(monkeypatch):
    monkeypatch.setattr(LocationData, "attentive", lambda *_, **__: None)


def test_kept_tokens_are_those_within_the_margin(rng, data):
    tokens, y = data
    key = 2 * rng.standard_normal(WIDTH)
    (rest,) = data_of(tokens, y).attentive(key[None], 5.0, head="softmax").read()
    scores = tokens @ key
    kept = scores >= scores.max(axis=1, keepdims=True) - 5.0
    assert kept.mean() < 0.5
    assert_array_equal(rest.bags.lengths, kept.sum(axis=1))
    assert_array_equal(rest.bags.tokens, tokens[kept])
    assert_array_equal(rest.weights, np.linspace(1, 2, N))


def test_nothing_is_gathered_where_most_tokens_count(data, monkeypatch):
    whole, key = data_of(*data), np.ones((1, WIDTH))
    assert whole.attentive(0 * key, 5.0, head="softmax") is None
    assert whole.attentive(key, 0.1, head="erf") is None
    assert whole.attentive(key, 0.1, head="softmax") is not None
    # A stream of which many tokens count stays a stream.
    monkeypatch.setattr(_data, "_MOST_NUMBERS", N * WIDTH - 1)
    assert whole.attentive(key, 0.1, head="softmax") is not None
    stream = replace(whole, is_stream=True)
    assert stream.attentive(key, 0.1, head="softmax") is None


@pytest.mark.parametrize("most", [2**22, 0])
def test_a_stream_gathers_what_the_fit_in_memory_does(data, monkeypatch, most):
    monkeypatch.setattr(_data, "_MOST_NUMBERS", most)
    monkeypatch.setattr(_data, "_SMALL_STREAM", 0)
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
    assert_allclose(model.coef_key_, whole.coef_key_, rtol=1e-6, atol=1e-6)
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
    settings = {"alpha": 1e-3, "coherence": 0.0, "max_iter": 500}
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
    monkeypatch.setattr(_prepare, "_is_reducible", lambda state: False)
    whole = SingleLocationRegressor(**settings).fit(X, y, weights)
    # Two paths of the optimiser to one minimum.
    assert_allclose(reduced.objective_, whole.objective_, rtol=3e-5)
    assert_allclose(reduced.predict(X), whole.predict(X), atol=3e-3)
    if head == "softmax":  # erf is odd: key and value may change their signs
        assert_allclose(reduced.coef_value_, whole.coef_value_, atol=1e-4)


def test_thousands_of_features_are_fitted(rng):
    """200 tokens in 6 000 features: no matrix of 6 000 by 6 000 is made."""
    X, y = rng.standard_normal((50, 4, 6000)), rng.standard_normal(50)
    X[:, 1, :500] += 2.0
    X[:, 1, 500:1000] += 2 * y[:, None]
    model = SingleLocationRegressor(alpha=0.05).fit(X, y)
    assert model.coef_key_.shape == (6000,)
    assert np.mean(model.locate(X) == 1) > 0.9
