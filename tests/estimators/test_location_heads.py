"""Several heads, sums and counts, standard multiple-instance learning, targets."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from eigenheads.datasets import BagLaw, SingleLocation
from eigenheads.estimators import SingleLocationClassifier, SingleLocationRegressor
from eigenheads.estimators._bag_targets import LOGISTIC, SQUARED
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location._head import head_loss, head_outputs


@pytest.fixture(scope="module")
def located():
    return SingleLocation(d=6, n_tokens=5, noise=0.2).sample(
        200, np.random.default_rng(3)
    )


@pytest.mark.parametrize("head", ["softmax", "erf", "sigmoid", "logsumexp"])
@pytest.mark.parametrize("kind", [SQUARED, LOGISTIC], ids=["squared", "logistic"])
def test_the_loss_of_two_heads_and_its_gradient(rng, head, kind):
    n_outputs = 1 if head == "logsumexp" else 2
    bags = Bags(rng.standard_normal((17, 3)), np.array([0, 4, 5, 11, 17]))
    targets = rng.integers(2, size=(4, n_outputs)).astype(float)
    weights = rng.uniform(0.5, 2, 4)

    def loss(rows, intercepts):
        shares = weights / weights.sum()
        return head_loss(bags, targets, shares, rows, intercepts, head=head, kind=kind)

    rows = rng.standard_normal((2 * (1 + n_outputs), 3))
    intercepts = rng.standard_normal(n_outputs)
    value, by_rows, by_intercepts = loss(rows, intercepts)
    outputs = head_outputs(bags, rows, n_outputs, head=head) + intercepts
    plain = np.average(kind.per_bag(outputs, targets), weights=weights)
    assert_allclose(value, plain, rtol=1e-12)
    # Central differences with step 1e-6: rounding 1e-10, with margin.
    for index in np.ndindex(rows.shape):
        step = np.zeros(rows.shape)
        step[index] = 1e-6
        up, down = (loss(rows + s * step, intercepts)[0] for s in (1, -1))
        assert_allclose(by_rows[index], (up - down) / 2e-6, atol=1e-7)
    up, down = (loss(rows, intercepts + s * 1e-6)[0] for s in (1, -1))
    assert_allclose(by_intercepts.sum(), (up - down) / 2e-6, atol=1e-7)


@pytest.mark.parametrize("head", ["softmax", "radial", "erf", "sigmoid"])
@pytest.mark.parametrize("n_heads", [1, 2])
def test_contributions_add_up_to_the_prediction(located, head, n_heads):
    X, y, _ = located
    model = SingleLocationRegressor(
        head=head, n_heads=n_heads, alpha=1e-2, extrapolation=None
    )
    model.fit(X, y)
    sums = np.array([part.sum(axis=0) for part in model.contributions(X)])
    assert_allclose(sums + model.baseline_, model.predict(X), atol=1e-10)
    shape = (5,) if n_heads == 1 else (5, 2)
    assert model.attention(X)[0].shape == shape
    assert model.locate(X).shape == ((200,) if n_heads == 1 else (200, 2))


def test_contributions_have_a_column_per_class(located):
    X, y, _ = located
    labels = np.digitize(y, [-0.5, 0.5])
    model = SingleLocationClassifier(alpha=1e-2).fit(X, labels)
    parts = model.contributions(X)
    assert parts[0].shape == (5, 3)
    sums = np.array([part.sum(axis=0) for part in parts])
    assert_allclose(sums + model.baseline_, model.decision_function(X), atol=1e-10)


def test_log_sum_exp_is_its_formula_and_contributions_add_up(rng):
    X, y, _ = BagLaw("witness", d=4, n_tokens=6).sample(150, rng)
    model = SingleLocationClassifier(head="logsumexp", alpha=1e-2).fit(X, y)
    assert_array_equal(model.coef_key_, model.coef_value_[0])
    logits = np.log(np.exp(X @ model.coef_key_).mean(axis=1)) + model.intercept_[0]
    assert_allclose(model.decision_function(X), logits, atol=1e-10)
    sums = np.array([part.sum() for part in model.contributions(X)])
    assert_allclose(sums + model.baseline_[0], logits, atol=1e-10)
    with pytest.raises(ValueError, match="two classes"):
        SingleLocationClassifier(head="logsumexp").fit(X, np.arange(150) % 3)
    with pytest.raises(ValueError, match="`head` must be one of"):
        SingleLocationRegressor(head="logsumexp").fit(X, y)


def test_sums_need_the_sigmoid_and_both_needs_two_heads():
    rng = np.random.default_rng(0)
    law = BagLaw("sum", d=6, n_tokens=8)
    X, y, _ = law.sample(1000, rng)
    scores = {
        head: SingleLocationRegressor(head=head, alpha=1e-3)
        .fit(X[:300], y[:300])
        .score(X[300:], y[300:])
        for head in ("softmax", "sigmoid")
    }
    best = 1 - np.mean((law.oracle(X[300:]) - y[300:]) ** 2) / y[300:].var()
    assert scores["sigmoid"] > best - 0.05
    assert scores["softmax"] < best - 0.1
    X, y, _ = BagLaw("both", d=6, n_tokens=6).sample(1000, rng)
    one, two = (
        SingleLocationClassifier(n_heads=n_heads, alpha=0.03)
        .fit(X[:300], y[:300])
        .score(X[300:], y[300:])
        for n_heads in (1, 2)
    )
    assert two > one + 0.05


def test_a_count_is_read_by_the_offset(rng):
    X = rng.standard_normal((300, 6, 3))
    marked = rng.random((300, 6)) < 0.3
    X[marked, 0] += 8.0
    y = marked.sum(axis=1).astype(float)
    model = SingleLocationRegressor(head="sigmoid", alpha=1e-4).fit(X[:200], y[:200])
    assert model.score(X[200:], y[200:]) > 0.95


def test_several_outputs_share_the_key(located):
    X, y, _ = located
    both = SingleLocationRegressor(alpha=1e-3).fit(X, np.column_stack([y, 5 - 3 * y]))
    assert both.coef_value_.shape == (2, 6)
    assert_allclose(both.predict(X)[:, 1], 5 - 3 * both.predict(X)[:, 0], atol=1e-6)
    assert both.target_range_[0].shape == (2,)
    chosen = SingleLocationRegressor().fit(X, np.column_stack([y, -y]))
    assert chosen.score(X, np.column_stack([y, -y])) > 0.4


def test_several_labels_have_their_own_probabilities(located):
    X, y, _ = located
    labels = np.column_stack([y > 0, y > 1, y < -0.5]).astype(int)
    model = SingleLocationClassifier(alpha=1e-2).fit(X, labels)
    assert_array_equal(model.predict(X), (model.predict_proba(X) > 0.5).astype(int))
    assert_allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X))
    assert np.mean(model.predict(X) == labels) > 0.8
    with pytest.raises(ValueError, match="zeros and ones"):
        SingleLocationClassifier().fit(X, labels + 1)
    with pytest.raises(ValueError, match="`class_weight` must be None, if bags"):
        SingleLocationClassifier(class_weight="balanced").fit(X, labels)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_logarithms_of_probabilities_stay_finite(located, n_classes):
    X, y, _ = located
    labels = np.digitize(y, [0.0, 0.7][: n_classes - 1])
    model = SingleLocationClassifier(alpha=1e-2).fit(X, labels)
    assert_allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X))
    far = model.predict_log_proba(1e6 * X)
    assert (model.predict_proba(1e6 * X) == 0).any()
    assert np.isfinite(far).all()


def test_class_weights_are_weights_of_bags(located):
    X, y, _ = located
    rare = y > 1
    weights = np.where(rare, 1 / rare.mean(), 1 / (1 - rare.mean())) / 2
    settings = {"alpha": 1e-2, "tol": 1e-6}
    by_class = SingleLocationClassifier(**settings, class_weight="balanced")
    by_bag = SingleLocationClassifier(**settings).fit(X, rare, weights)
    by_class.fit(X, rare)
    # Other starts, one minimum.
    assert_allclose(by_class.coef_value_, by_bag.coef_value_, atol=5e-3)
    given = {True: weights[rare][0], False: weights[~rare][0]}
    named = SingleLocationClassifier(**settings, class_weight=given).fit(X, rare)
    assert_allclose(named.coef_value_, by_bag.coef_value_, atol=5e-3)
    streamed = SingleLocationClassifier(**settings, class_weight="balanced").fit(
        lambda: ((X[i : i + 80], rare[i : i + 80]) for i in range(0, 200, 80))
    )
    assert_allclose(streamed.predict_proba(X), by_bag.predict_proba(X), atol=1e-3)
    with pytest.raises(ValueError, match="`class_weight` must be None"):
        SingleLocationClassifier(class_weight="equal").fit(X, rare)
