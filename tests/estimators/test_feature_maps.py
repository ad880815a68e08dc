"""Feature maps: what the head reads with them, and that nothing else changes."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from eigenheads.datasets import BagLaw, SingleLocation
from eigenheads.estimators import (
    RBFFeatures,
    SingleLocationClassifier,
    SingleLocationRegressor,
)
from eigenheads.estimators._feature_maps import fit_feature_map


def test_a_transformer_is_the_fit_in_its_features(rng):
    X, y, _ = SingleLocation(d=4, n_tokens=5).sample(150, rng)
    inside = SingleLocationRegressor(alpha=1e-3, feature_map=PolynomialFeatures(2))
    inside.fit(X, y)
    rows = PolynomialFeatures(2).fit_transform(X.reshape(-1, 4))[:, 1:]
    outside = SingleLocationRegressor(alpha=1e-3).fit(rows.reshape(150, 5, -1), y)
    # The constant column is left out.
    assert inside.coef_key_.shape == (14,)
    assert_allclose(inside.coef_value_, outside.coef_value_, rtol=1e-8)
    assert_allclose(
        inside.predict(X), outside.predict(rows.reshape(150, 5, -1)), rtol=1e-8
    )
    assert inside.n_features_in_ == 4


@pytest.mark.parametrize("feature_map", ["rbf", "quadratic", "quantile", "bins"])
def test_streams_predict_as_the_fit_in_memory(rng, feature_map):
    X, y, _ = SingleLocation(d=3, n_tokens=4).sample(90, rng)
    # Both are at the minimum; a stream is minimised by other code than few bags.
    settings = {"alpha": 1e-2, "feature_map": feature_map, "tol": 1e-7}
    whole = SingleLocationRegressor(**settings).fit(X, y)
    streamed = SingleLocationRegressor(**settings).fit(
        lambda: ((X[i : i + 40], y[i : i + 40]) for i in range(0, 90, 40))
    )
    assert_allclose(streamed.predict(X), whole.predict(X), atol=1e-4)
    assert len(whole.attention(X)) == len(X)
    assert whole.locate(X).shape == (90,)


def test_monotone_changes_of_a_feature_do_not_matter_to_quantiles(rng):
    X, y, _ = SingleLocation(d=3, n_tokens=4).sample(120, rng)
    settings = {"alpha": 1e-2, "feature_map": "quantile"}
    plain = SingleLocationRegressor(**settings).fit(X, y).predict(X)
    skewed = SingleLocationRegressor(**settings).fit(np.exp(X), y)
    # Between quantiles the map is linear in the feature, so equal only up to that.
    assert np.abs(skewed.predict(np.exp(X)) - plain).max() < 0.05 * np.ptp(y)


@pytest.mark.parametrize("feature_map", ["rbf", "quadratic", "quantile", "bins"])
def test_the_unit_of_the_features_does_not_matter(rng, feature_map):
    X, y, _ = SingleLocation(d=3, n_tokens=4).sample(120, rng)
    settings = {"alpha": 1e-2, "feature_map": feature_map}
    plain = SingleLocationRegressor(**settings).fit(X, y).predict(X)
    # Powers of two are exact; the square root of a variance rounds.
    small = SingleLocationRegressor(**settings).fit(X * 2.0**-40, y)
    assert_allclose(small.predict(X * 2.0**-40), plain, rtol=1e-9, atol=1e-9)


# Margins of five standard errors of the accuracy on 2 000 bags (0.008).
@pytest.mark.parametrize(("name", "d"), [("ring", 4), ("xor", 4)])
def test_the_quadratic_map_reaches_the_oracle(name, d, rng):
    law = BagLaw(name, d=d, n_tokens=8)
    X, y, _ = law.sample(2600, rng)
    best = np.mean((law.oracle(X[600:]) > 0.5) == y[600:])
    linear = SingleLocationClassifier(alpha=0.03).fit(X[:600], y[:600])
    model = SingleLocationClassifier(alpha=0.03, feature_map="quadratic")
    model.fit(X[:600], y[:600])
    assert model.score(X[600:], y[600:]) > best - 0.04
    assert linear.score(X[600:], y[600:]) < best - 0.1


def test_rbf_features_are_the_kernel_of_landmarks(rng):
    rows = rng.standard_normal((200, 3)) * [1.0, 10.0, 0.1]
    features = RBFFeatures(200).fit(rows)
    mapped = features.transform(rows)
    scaled = StandardScaler().fit_transform(rows)
    assert_allclose(mapped[:, :3], scaled, rtol=1e-12)
    # All rows are landmarks: inner products are the kernel.
    squares = ((scaled[:, None] - scaled) ** 2).sum(axis=2)
    expected = np.exp(-features.gamma_ * squares)
    # Directions in which landmarks hardly differ are left out.
    assert_allclose(mapped[:, 3:] @ mapped[:, 3:].T, expected, atol=1e-3)
    assert 0.5 < features.gamma_ * np.median(squares) < 2


def test_rbf_features_of_doubles_predict_in_doubles(rng):
    X, y, _ = SingleLocation(d=3, n_tokens=4).sample(90, rng)
    seconds = 1.7e9 + y
    model = SingleLocationRegressor(alpha=1e-2, feature_map="rbf").fit(X, seconds)
    predicted = model.predict(X)
    assert len(np.unique(predicted)) == 90
    # Rounding of 1.7e9 in float64 is 2e-7.
    assert_allclose(model.predict(X[:1]), predicted[:1], atol=1e-6, rtol=0)


def test_constant_columns_are_left_out(rng):
    tokens = np.column_stack([rng.standard_normal(50), np.ones(50)])
    for name in ("quadratic", "bins", "quantile"):
        mapped = fit_feature_map(name, tokens)(tokens)
        assert np.ptp(mapped, axis=0).min() > 0


def test_wrong_maps_are_named(rng):
    X, y = rng.standard_normal((20, 3, 2)), rng.standard_normal(20)
    with pytest.raises(ValueError, match="`feature_map` must be one of"):
        SingleLocationRegressor(feature_map="fourier").fit(X, y)
    with pytest.raises(ValueError, match="`feature_map` must be None"):
        SingleLocationRegressor(feature_map=3).fit(X, y)
    with pytest.raises(ValueError, match="quadratic map"):
        wide = rng.standard_normal((20, 3, 101))
        SingleLocationRegressor(feature_map="quadratic").fit(wide, y)
