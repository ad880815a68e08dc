"""The default penalty: chosen from the data, never far below simple predictions."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.linear_model import RidgeCV

from eigenheads.datasets import SingleLocation
from eigenheads.estimators import SingleLocationClassifier, SingleLocationRegressor
from eigenheads.estimators._bag_targets import LOGISTIC
from eigenheads.estimators._location._stack import _garrote

N_TEST = 500


def of_noise(rng, n, d, n_tokens=6):
    return rng.standard_normal((n, n_tokens, d)), rng.standard_normal(n)


def gap_to_the_mean(X, y, n):
    """R² of the default minus that of the training mean."""
    model = SingleLocationRegressor().fit(X[:n], y[:n])
    spread = np.mean((y[n:] - y[:n].mean()) ** 2)
    error = np.mean((y[n:] - model.predict(X[n:])) ** 2)
    return 1 - error / spread


# Without any law the scale is zero but in one of about fourteen draws, and then small.
# These seeds are fixed.
@pytest.mark.parametrize("d", [10, 30, 100])
def test_noise_is_predicted_by_the_mean(d):
    gaps = [
        gap_to_the_mean(*of_noise(np.random.default_rng(seed), 60 + N_TEST, d), 60)
        for seed in range(10)
    ]
    assert np.mean(gaps) > -0.02
    assert min(gaps) > -0.05


def test_a_law_of_the_mean_token_is_left_to_mean_pooling(rng):
    X = rng.standard_normal((100 + N_TEST, 6, 10))
    means = np.sqrt(6) * X.mean(axis=1)
    y = means @ rng.standard_normal(10) + rng.standard_normal(len(X))
    model = SingleLocationRegressor().fit(X[:100], y[:100])
    ridge = RidgeCV(np.logspace(-3, 3, 13)).fit(means[:100], y[:100])
    assert model.pooling_ == "mean"
    assert_array_equal(model.coef_key_, 0.0)
    assert model.score(X[100:], y[100:]) > ridge.score(means[100:], y[100:]) - 0.03
    assert_allclose(model.attention(X[:1])[0], 1 / 6)


@pytest.mark.parametrize("is_turned", [False, True])
def test_directions_without_targets_find_the_token_in_many_features(rng, is_turned):
    """The targets of 180 bags can be fitted from any start in 300 features.

    A key that is one feature is not the principal direction of standardised tokens.
    """
    X, y, places = SingleLocation(d=300, noise=0.1).sample(180 + N_TEST, rng)
    if is_turned:
        X = X @ np.linalg.qr(rng.standard_normal((300, 300)))[0]
    model = SingleLocationRegressor().fit(X[:180], y[:180])
    assert np.mean(model.locate(X[180:]) == places[180:]) > 0.95
    assert model.score(X[180:], y[180:]) > 0.35


def test_a_clear_law_gets_a_small_penalty_and_its_token(rng):
    law = SingleLocation(d=40, n_tokens=6, noise=0.1)
    X, y, places = law.sample(400 + N_TEST, rng)
    model = SingleLocationRegressor().fit(X[:400], y[:400])
    assert model.pooling_ == "attention"
    assert model.alpha_ < 0.05
    assert np.mean(model.locate(X[400:]) == places[400:]) > 0.95
    scores = {
        (c["view"], c["pooling"], c["alpha"]): c["score"] for c in model.selection_
    }
    # Heads and mean pooling, on the features and on kernel features.
    assert {key[:2] for key in scores} == {
        (view, pooling) for view in (0, 1) for pooling in ("attention", "mean")
    }
    assert all(c["weight"] >= 0 for c in model.selection_)
    assert max(scores.values()) > 0.8


def test_features_far_from_those_of_training_are_moved_to_their_range(rng):
    """A pixel that is dark in nearly all training images must not decide alone."""
    X, y, _ = SingleLocation(d=6, n_tokens=4).sample(60, rng)
    model = SingleLocationRegressor(alpha=1e-3, extrapolation=0.5).fit(X, y)
    rows = X.reshape(-1, 6)
    low, high = rows.min(axis=0), rows.max(axis=0)
    np.testing.assert_array_equal(model.feature_range_, [low, high])
    far = X[:5].copy()
    far[0, :, 2], far[1, :, 3] = 1e3, -1e3
    near = far.copy()
    near[0, :, 2] = 1.5 * high[2] - 0.5 * low[2]
    near[1, :, 3] = 1.5 * low[3] - 0.5 * high[3]
    np.testing.assert_allclose(model.predict(far), model.predict(near))
    np.testing.assert_allclose(model.attention(far), model.attention(near))
    free = model.set_params(extrapolation=None).predict(far)
    assert np.abs(free[:2] - model.predict(near)[:2]).min() > 1


@pytest.mark.parametrize("head", ["softmax", "radial"])
def test_bags_of_weight_zero_and_batches_have_the_range_of_their_bags(rng, head):
    X, y, _ = SingleLocation(d=6, n_tokens=4).sample(60, rng)
    weights = (np.arange(60) < 50).astype(float)
    model = SingleLocationRegressor(head=head, alpha=1e-3)
    kept = clone(model).fit(X[:50], y[:50]).feature_range_
    found = clone(model).fit(X, y, sample_weight=weights).feature_range_
    np.testing.assert_array_equal(found, kept)
    batches = [(X[:20], y[:20]), (X[20:50], y[20:50])]
    np.testing.assert_array_equal(
        clone(model).fit(lambda: iter(batches)).feature_range_, kept
    )


def test_the_choice_does_not_depend_on_the_order_of_bags(rng):
    X, y, _ = SingleLocation(d=10, n_tokens=5, noise=1.0).sample(80, rng)
    order = rng.permutation(80)
    model = SingleLocationRegressor().fit(X, y)
    other = SingleLocationRegressor().fit(X[order], y[order])
    assert_allclose(model.predict(X), other.predict(X), atol=1e-9)


@pytest.mark.parametrize(("n", "d"), [(30, 20), (12, 800)])
def test_copies_of_a_bag_are_never_on_both_sides(rng, n, d):
    """Otherwise ten copies of noise would be learned by heart and look predictable."""
    X, y = of_noise(rng, n, d)  # also with more features than tokens
    model = SingleLocationRegressor().fit(np.repeat(X, 10, axis=0), np.repeat(y, 10))
    # With copies on both sides all but noise of the optimiser would be removed.
    assert max(c["score"] for c in model.selection_) < 0.7


def test_few_bags_are_not_cross_validated(rng):
    model = SingleLocationRegressor().fit(*of_noise(rng, 9, 3))
    assert len(model.selection_) == 1
    assert model.output_scale_ == 1.0


def test_weak_laws_of_the_mean_token_are_not_lost():
    """A law with an R² of .26 gains what ridge regression does, but for .03."""
    found, known = [], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((60 + N_TEST, 6, 8))
        means = np.sqrt(6) * X.mean(axis=1)
        y = 0.6 * means @ np.ones(8) / np.sqrt(8) + rng.standard_normal(len(X))
        found.append(gap_to_the_mean(X, y, 60))
        ridge = RidgeCV(np.logspace(-1, 3, 9)).fit(means[:60], y[:60])
        known.append(ridge.score(means[60:], y[60:]))
    assert np.mean(found) > np.mean(known) - 0.03
    assert min(found) > -0.05


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_classifier_of_noise_returns_the_frequencies(n_classes):
    rng = np.random.default_rng(3)
    X, _ = of_noise(rng, 90, 5)
    y = np.arange(90) % n_classes
    model = SingleLocationClassifier().fit(X, y)
    assert model.output_scale_ == 0.0
    assert model.pooling_ == "none"
    assert_allclose(model.predict_proba(X), 1 / n_classes, atol=1e-3)


def test_a_given_penalty_is_kept(rng):
    X, y = of_noise(rng, 30, 4)
    model = SingleLocationRegressor(alpha=0.3).fit(X, y)
    assert model.alpha_ == 0.3
    assert model.output_scale_ == 1.0
    assert not hasattr(model, "selection_")


def test_predictions_stay_near_the_range_of_targets(rng):
    X, y, _ = SingleLocation(d=8, n_tokens=4).sample(200, rng)
    far = 100 * X
    low, high = y.min(), y.max()
    for extrapolation in (0.0, 0.1, 2.0):
        model = SingleLocationRegressor(alpha=1e-3, extrapolation=extrapolation)
        predicted = model.fit(X, y).predict(far)
        room = extrapolation * (high - low)
        assert predicted.min() >= low - room - 1e-12
        assert predicted.max() <= high + room + 1e-12
    free = SingleLocationRegressor(alpha=1e-3, extrapolation=None).fit(X, y)
    assert np.abs(free.predict(far)).max() > 10 * np.abs(y).max()
    assert model.target_range_ == (low, high)


def test_a_stream_makes_the_choice_of_the_fit_in_memory(rng):
    X, y, _ = SingleLocation(d=6, n_tokens=4, noise=0.3).sample(120, rng)
    whole = SingleLocationRegressor().fit(X, y)
    streamed = SingleLocationRegressor().fit(
        lambda: ((X[i : i + 50], y[i : i + 50]) for i in range(0, 120, 50))
    )
    assert streamed.alpha_ == whole.alpha_
    assert_allclose(streamed.predict(X), whole.predict(X), atol=1e-3)


def test_the_fit_to_all_bags_begins_at_solutions_of_folds():
    """Sixty bags of eight tokens: in the mean over draws, far above the mean target."""
    law, scores = SingleLocation(d=20, n_tokens=8), []
    for seed in range(6):
        bags, y = law.sample(660, np.random.default_rng([110, seed]))[:2]
        model = SingleLocationRegressor().fit(bags[:60], y[:60])
        assert model.start_ == "given"
        scores.append(model.score(bags[60:], y[60:]))
    assert np.mean(scores) > 0.25


def of_law(seed, n):
    rng = np.random.default_rng(seed)
    bags, y, _ = SingleLocation(8, 5).sample(n, rng)
    # Numbers that single precision holds exactly.
    return bags.astype(np.float32).astype(float), np.where(y > 0, "b", "a"), rng


@pytest.mark.parametrize("n", [40, 100])
def test_the_same_data_give_the_same_answer(n):
    """Exchanged classes, precision, orders and units change digits, not decisions."""
    bags, y, rng = of_law(3, n + 50)
    model = SingleLocationClassifier().fit(bags[:n], y[:n])
    expected = model.predict_proba(bags[n:])
    exchanged = np.where(y == "a", "c", "b")
    other = SingleLocationClassifier().fit(bags[:n], exchanged[:n])
    assert_allclose(other.predict_proba(bags[n:])[:, ::-1], expected, atol=1e-9)
    single = bags.astype(np.float32)
    other = SingleLocationClassifier().fit(single[:n], y[:n])
    assert_allclose(other.predict_proba(single[n:]), expected, atol=1e-5)
    rows, places, units = (
        rng.permutation(n),
        rng.permutation(5),
        10 ** rng.normal(size=8),
    )
    turned, columns = bags[:, places] * units, rng.permutation(8)
    turned = turned[:, :, columns]
    other = SingleLocationClassifier().fit(turned[:n][rows], y[:n][rows])
    assert_allclose(other.predict_proba(turned[n:]), expected, atol=1e-6)
    alone = np.concatenate(
        [model.predict_proba(bags[i : i + 1]) for i in range(n, n + 5)]
    )
    assert_allclose(alone, expected[:5], atol=1e-9)


def test_contributions_of_all_members_add_up_to_the_output():
    bags, y, _ = of_law(4, 120)
    for model in (
        SingleLocationClassifier().fit(bags, y),
        SingleLocationClassifier().fit(bags, bags.mean(axis=1)[:, 0] > 0),
        SingleLocationClassifier().fit(bags, np.digitize(bags[:, :, 0].max(1), [1, 2])),
    ):
        sums = np.array([part.sum(axis=0) for part in model.contributions(bags)])
        outputs = model.decision_function(bags)
        assert_allclose(sums + model.baseline_, outputs.reshape(sums.shape), atol=1e-8)


def test_presence_is_read_by_the_log_sum_exp_head(rng):
    """Bags with a token in a small ball: no linear readout sees it."""
    X = rng.standard_normal((900, 6, 3))
    y = (((X - 1.0) ** 2).sum(axis=2) < 0.7).any(axis=1)
    model = SingleLocationClassifier().fit(X[:400], y[:400])
    weights = {
        head: sum(c["share"] for c in model.selection_ if c["head"] == head)
        for head in ("softmax", "logsumexp")
    }
    assert weights["logsumexp"] > 0.3
    assert np.mean(model.predict(X[400:]) == y[400:]) > 0.8


def test_the_garrote_weighs_what_predicts_and_shares_between_equals(rng):
    y = rng.integers(0, 2, 400).astype(float)
    signal, noise = 2 * (2 * y - 1) + rng.standard_normal(400), rng.standard_normal(400)
    tables = np.stack([signal, signal, noise, -signal])[:, :, None]
    weights, _ = _garrote(
        tables,
        np.zeros((400, 1)),
        y,
        np.ones(400),
        np.full(4, 10.0),
        LOGISTIC,
        has_intercept=True,
    )
    assert weights[0] > 0.2
    assert_allclose(weights[0], weights[1], rtol=1e-3)
    assert_array_equal(weights[2:], 0.0)
