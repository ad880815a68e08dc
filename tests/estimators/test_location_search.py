"""The search compares feature maps and heads on equal folds."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.model_selection import GroupKFold, ShuffleSplit

from eigenheads.datasets import BagLaw, SingleLocation
from eigenheads.estimators import (
    SingleLocationClassifierCV,
    SingleLocationRegressor,
    SingleLocationRegressorCV,
)


def test_the_search_finds_the_map_that_the_law_needs(rng):
    law = BagLaw("xor", d=4, n_tokens=4)
    X, y, _ = law.sample(500, rng)
    search = SingleLocationClassifierCV(
        feature_maps=(None, "quadratic"), heads=("softmax",), cv=3
    )
    search.fit(X[:200], y[:200])
    assert search.best_params_ == {"feature_map": "quadratic", "head": "softmax"}
    assert search.score(X[200:], y[200:]) > 0.9
    assert_allclose(np.exp(search.predict_log_proba(X)), search.predict_proba(X))
    assert search.best_score_ > 0.5
    assert {row["feature_map"] for row in search.cv_results_} == {None, "quadratic"}


def test_a_search_over_one_setting_is_the_estimator(rng):
    X, y, _ = SingleLocation(d=5, n_tokens=4, noise=0.3).sample(60, rng)
    search = SingleLocationRegressorCV(feature_maps=(None,), heads=("softmax",), cv=4)
    search.fit(X, y)
    best = search.best_estimator_
    if best.pooling_ == "attention" and best.output_scale_ == 1.0:
        alone = SingleLocationRegressor(alpha=best.alpha_).fit(X, y)
        assert_allclose(search.predict(X), alone.predict(X), atol=0.05)
    assert_allclose(search.predict(X), best.predict(X))
    assert (search.locate(X) == best.locate(X)).all()
    assert len(search.attention(X)) == len(X)
    assert_allclose(search.contributions(X)[0], best.contributions(X)[0])


def test_groups_stay_on_one_side(rng):
    """Noise that is shared within groups looks predictable without them."""
    X, y = rng.standard_normal((12, 3, 4)), rng.standard_normal(12)
    X = np.repeat(X, 8, axis=0) + 0.01 * rng.standard_normal((96, 3, 4))
    y, groups = np.repeat(y, 8), np.repeat(np.arange(12), 8)
    settings = {"feature_maps": (None,), "heads": ("softmax",)}
    careless = SingleLocationRegressorCV(**settings).fit(
        *(a[rng.permutation(96)] for a in (X,)), y
    )
    order = rng.permutation(96)
    careless.fit(X[order], y[order])
    careful = SingleLocationRegressorCV(cv=GroupKFold(4), **settings)
    careful.fit(X, y, groups=groups)
    assert careless.best_score_ > 0.8
    assert careful.best_score_ < 0.6


def test_folds_must_be_a_partition(rng):
    X, y = rng.standard_normal((20, 3, 2)), rng.standard_normal(20)
    with pytest.raises(ValueError, match="`cv` must be a partition"):
        SingleLocationRegressorCV(cv=ShuffleSplit(3)).fit(X, y)
    with pytest.raises(ValueError, match="bags in memory"):
        SingleLocationRegressorCV().fit(lambda: iter([(X, y)]))
