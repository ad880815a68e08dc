"""The single-location estimators find the token, and are the formula they claim."""

import inspect
import re

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit
from scipy.special import softmax as class_softmax
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from eigenheads.datasets import SingleLocation
from eigenheads.estimators import SingleLocationClassifier, SingleLocationRegressor
from eigenheads.functional import location_predictor

BOTH = [SingleLocationRegressor, SingleLocationClassifier]
# Sums of about a hundred float64 products, reordered.
RTOL = 1e-10


def in_random_frame(tokens, rng):
    d = tokens.shape[-1]
    return tokens @ np.linalg.qr(rng.standard_normal((d, d)))[0]


def ragged(tokens, rng):
    """Drop noise tokens from the end; the deciding ones are moved to the front."""
    return [bag[: rng.integers(2, len(bag) + 1)] for bag in tokens]


def deciding_first(sample):
    tokens = sample.tokens.copy()
    rows = np.arange(len(tokens))
    tokens[rows, sample.locations] = sample.tokens[:, 0]
    tokens[rows, 0] = sample.tokens[rows, sample.locations]
    return tokens


def oracle_error(law, sample):
    places = (sample.tokens @ law.key_direction).argmax(axis=1)
    rows = np.arange(len(places))
    predictions = sample.tokens[rows, places] @ law.value_direction
    return np.mean((sample.targets - predictions) ** 2)


@pytest.fixture
def law():
    return SingleLocation(d=60, n_tokens=8)


@pytest.fixture
def sample(law, rng):
    return law.sample(2000, rng)


# The oracle errs on a few in a thousand bags here: its key is 5.5 standard deviations
# away from 7 others. The fit is worse by what 1000 bags do not tell.
@pytest.mark.parametrize("decoy", [1.0, 9.0])
def test_regressor_is_near_the_oracle_with_and_without_a_decoy(rng, law, sample, decoy):
    tokens = sample.tokens.copy()
    tokens[..., 2] *= decoy
    tokens = in_random_frame(tokens, rng)
    model = SingleLocationRegressor().fit(tokens[:1000], sample.targets[:1000])

    error = np.mean((model.predict(tokens[1000:]) - sample.targets[1000:]) ** 2)
    spread = sample.targets[1000:].var()
    assert (error - oracle_error(law, sample)) / spread < 0.02
    assert np.mean(model.locate(tokens[1000:]) == sample.locations[1000:]) > 0.98


def cosine(a, b):
    return abs(a @ b) / np.linalg.norm(a) / np.linalg.norm(b)


def test_coefficients_point_along_the_planted_directions(law, sample):
    model = SingleLocationRegressor().fit(sample.tokens, sample.targets)
    assert cosine(model.coef_key_, law.key_direction) > 0.98
    assert cosine(model.coef_value_, law.value_direction) > 0.98


def test_erf_finds_the_planted_directions_up_to_their_exchange(law, sample):
    """Where erf is nearly linear, key and value enter one bilinear form."""
    model = SingleLocationRegressor(head="erf").fit(sample.tokens, sample.targets)
    planted = (law.key_direction, law.value_direction)
    overlaps = [
        [cosine(fitted, direction) for direction in planted]
        for fitted in (model.coef_key_, model.coef_value_)
    ]
    straight = min(overlaps[0][0], overlaps[1][1])
    exchanged = min(overlaps[0][1], overlaps[1][0])
    assert max(straight, exchanged) > 0.9


@pytest.mark.parametrize("head", ["softmax", "erf"])
def test_prediction_is_the_attention_formula_of_the_coefficients(rng, sample, head):
    bags = ragged(deciding_first(sample)[:300], rng)
    model = SingleLocationRegressor(head=head, alpha=1e-3, extrapolation=None)
    model.fit(bags, sample.targets[:300])
    expected = [
        location_predictor(
            bag,
            model.coef_key_,
            model.coef_value_,
            inverse_temperature=1.0,
            head=head,
        )
        for bag in bags
    ]
    assert_allclose(model.predict(bags), np.array(expected) + model.intercept_, RTOL)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_probabilities_are_the_attention_formula_of_the_coefficients(
    rng, sample, n_classes
):
    bags = ragged(deciding_first(sample)[:300], rng)
    edges = np.quantile(sample.targets, np.arange(1, n_classes) / n_classes)
    labels = np.array(["a", "b", "c"])[np.digitize(sample.targets[:300], edges)]
    model = SingleLocationClassifier(alpha=1e-2).fit(bags, labels)
    logits = model.intercept_ + np.array(
        [
            [
                location_predictor(
                    bag,
                    model.coef_key_,
                    value,
                    inverse_temperature=1.0,
                    head="softmax",
                )
                for value in model.coef_value_
            ]
            for bag in bags
        ]
    )
    expected = class_softmax(logits, axis=1)
    if n_classes == 2:
        expected = np.hstack([expit(-logits), expit(logits)])
    assert_allclose(model.predict_proba(bags), expected, rtol=RTOL)
    most = model.classes_[expected.argmax(axis=1)]
    assert_array_equal(model.predict(bags), most)


def test_three_classes_are_told_apart_by_one_token(rng, law, sample):
    """Thirds of a Gaussian readout: the oracle is right, chance is 1/3."""
    edges = np.quantile(sample.targets, [1 / 3, 2 / 3])
    labels = np.digitize(sample.targets, edges)
    model = SingleLocationClassifier().fit(sample.tokens[:1000], labels[:1000])
    assert model.coef_value_.shape == (3, law.d)
    assert model.intercept_.shape == (3,)
    assert model.score(sample.tokens[1000:], labels[1000:]) > 0.8
    found = model.locate(sample.tokens[1000:])
    assert np.mean(found == sample.locations[1000:]) > 0.9


@pytest.mark.parametrize("estimator", BOTH)
@pytest.mark.parametrize("head", ["softmax", "erf"])
def test_weights_and_places_agree(rng, sample, estimator, head):
    bags = ragged(sample.tokens[:200], rng)
    model = estimator(head=head).fit(bags, sample.targets[:200] > 0)
    weights = model.attention(bags)
    places = model.locate(bags)
    assert [len(w) for w in weights] == [len(bag) for bag in bags]
    for w, place in zip(weights, places, strict=True):
        assert abs(w[place]) == np.abs(w).max()
        if head == "softmax":
            assert_allclose(w.sum(), 1.0, rtol=RTOL)


def test_bags_of_one_token_are_ridge_regression(rng):
    """Softmax of one score is 1, so key and coherence drop out.

    The penalty is the variance of the readouts and three times the standardised
    squared norm, over four: ridge with a known metric.
    """
    X = rng.standard_normal((300, 4)) @ rng.standard_normal((4, 4)) + 3.0
    y = X @ rng.standard_normal(4) + rng.standard_normal(300)
    model = SingleLocationRegressor(alpha=0.1, tol=1e-8).fit(X, y)
    centred = X - X.mean(axis=0)
    covariance = centred.T @ centred / 300
    metric = (covariance + 3.0 * np.diag(np.diag(covariance))) / 4.0
    expected = np.linalg.solve(
        covariance + 0.1 * metric, centred.T @ (y - y.mean()) / 300
    )
    # The optimiser stops at a gradient of 1e-8 in whitened coordinates.
    assert_allclose(model.coef_value_, expected, rtol=1e-5)
    assert_allclose(model.coef_key_, 0.0, atol=1e-6)
    plain = Ridge(1e-9).fit(X, y)
    exact = SingleLocationRegressor(alpha=0.0, tol=1e-8).fit(X, y)
    assert_allclose(exact.predict(X), plain.predict(X), rtol=1e-4, atol=1e-4)


def test_bags_of_one_token_are_logistic_regression(rng):
    X = rng.standard_normal((300, 3))
    y = X[:, 0] + 0.5 * rng.standard_normal(300) > 0.3
    model = SingleLocationClassifier(alpha=0.0, tol=1e-8).fit(X, y)
    plain = LogisticRegression(C=np.inf, tol=1e-8, max_iter=1000).fit(X, y)
    assert_allclose(model.coef_value_, plain.coef_, rtol=1e-3)
    assert_allclose(model.intercept_, plain.intercept_, rtol=1e-3, atol=1e-3)


def test_fit_does_not_depend_on_luck(sample):
    """No random number enters."""
    fits = []
    for seed in (0, 1):
        np.random.seed(seed)  # noqa: NPY002
        fits.append(SingleLocationRegressor().fit(sample.tokens, sample.targets))
    assert_array_equal(fits[0].coef_key_, fits[1].coef_key_)


def test_strong_coherence_holds_the_key_to_the_mean_attended_token(sample):
    """In the limit the whitened key is parallel to the attended mean."""
    tokens = sample.tokens[:500]
    model = SingleLocationRegressor(coherence=1e4, shrinkage=0.01, alpha=0.01)
    model.fit(tokens, sample.targets[:500])
    pooled = tokens.reshape(-1, tokens.shape[-1])
    attended = np.einsum("nl,nld->d", np.array(model.attention(tokens)), tokens) / 500
    covariance = np.cov(pooled.T, bias=True)
    metric = covariance + 0.01 * np.diag(np.diag(covariance))
    expected = np.linalg.solve(metric, attended - pooled.mean(axis=0))
    # The direction is fixed before the last stage moves the weights a little.
    assert cosine(model.coef_key_, expected) > 0.99


def test_correlated_features_do_not_bend_the_key(rng):
    """The mean attended token is the covariance times the key, not the key."""
    law = SingleLocation(d=30, n_tokens=8)
    sample = law.sample(2000, rng)
    scales = np.append([1.0, 1.0], np.logspace(-1, 1, law.d - 2))
    tokens, y = in_random_frame(sample.tokens * scales, rng), sample.targets
    model = SingleLocationRegressor(alpha=3e-5).fit(tokens[:1000], y[:1000])
    error = np.mean((model.predict(tokens[1000:]) - y[1000:]) ** 2)
    assert error < oracle_error(law, sample) + 0.02 * np.var(y)


def test_never_worse_than_the_mean_of_the_bag(rng):
    """Noise without a deciding token: the flat key is among the starts."""
    tokens, y = rng.standard_normal((400, 5, 3)), rng.standard_normal(400)
    y += tokens.mean(axis=1) @ [3.0, 0.0, 0.0]
    model = SingleLocationRegressor(alpha=1e-6, coherence=0.0).fit(tokens, y)
    mean = Ridge(1e-9).fit(tokens.mean(axis=1), y)
    assert model.score(tokens, y) >= mean.score(tokens.mean(axis=1), y) - 1e-3


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_units_do_not_matter(sample, scale):
    tokens, y = sample.tokens[:200], sample.targets[:200]
    units = np.logspace(-1, 1, tokens.shape[-1]) * scale
    model = SingleLocationRegressor(tol=1e-7).fit(tokens, y)
    other = SingleLocationRegressor(tol=1e-7).fit(tokens * units + scale, 7 * y - 2)
    # Both stop at a gradient of 1e-7 in the same whitened coordinates.
    assert_allclose(
        other.predict(tokens * units + scale), 7 * model.predict(tokens) - 2, atol=1e-2
    )
    assert_array_equal(other.locate(tokens * units + scale), model.locate(tokens))


@pytest.mark.parametrize("estimator", BOTH)
def test_float32_is_kept(sample, estimator):
    tokens = sample.tokens[:600].astype(np.float32)
    targets = sample.targets[:600] > 0
    model = estimator().fit(tokens, targets)
    double = estimator().fit(tokens.astype(np.float64), targets)
    assert model.coef_key_.dtype == model.coef_value_.dtype == np.float32
    assert model.attention(tokens)[0].dtype == np.float32
    outputs = getattr(model, "decision_function", model.predict)
    assert outputs(tokens).dtype == np.float32
    # float32 scores of size ten, through the softmax.
    wide = getattr(double, "decision_function", double.predict)
    assert_allclose(outputs(tokens), wide(tokens.astype(np.float64)), atol=2e-2)


@pytest.mark.parametrize("estimator", BOTH)
def test_l1_selects_the_features_that_matter(law, sample, estimator):
    y = sample.targets if estimator is SingleLocationRegressor else sample.targets > 0
    alpha = 0.01 if estimator is SingleLocationRegressor else 0.02
    model = estimator(alpha=alpha, l1_ratio=1.0).fit(sample.tokens, y)
    value = np.atleast_2d(model.coef_value_)[0]
    assert np.flatnonzero(model.coef_key_).tolist() == [0]
    assert np.flatnonzero(value).tolist() == [1]


def test_weights_count_repetitions(rng, sample):
    bags = ragged(sample.tokens[:200], rng)
    y, counts = sample.targets[:200], rng.integers(0, 3, size=200)
    weighted = SingleLocationRegressor(tol=1e-7).fit(bags, y, sample_weight=counts)
    repeated = SingleLocationRegressor(tol=1e-7).fit(
        [bag for bag, count in zip(bags, counts, strict=True) for _ in range(count)],
        np.repeat(y, counts),
    )
    # Two paths to one minimum; the second stage starts where the first stopped, at a
    # relative decrease of 1e-9, and so do its attended tokens.
    assert_allclose(weighted.objective_, repeated.objective_, rtol=1e-3)
    assert_allclose(weighted.predict(bags), repeated.predict(bags), atol=1e-2)


def test_cross_validation_and_grid_search_take_lists_of_bags(rng, sample):
    bags = ragged(deciding_first(sample)[:300], rng)
    y = sample.targets[:300]
    scores = cross_validate(SingleLocationRegressor(), bags, y, cv=3)["test_score"]
    assert scores.min() > 0.5
    search = GridSearchCV(SingleLocationClassifier(), {"alpha": [1e-2, 10.0]}, cv=3)
    search.fit(bags, y > 0)
    assert search.best_params_ == {"alpha": 1e-2}


def test_works_in_pipelines_of_rows_and_of_bags(rng, sample):
    rows, y = sample.tokens[:100, 0], sample.targets[:100]
    rowwise = make_pipeline(StandardScaler(), SingleLocationRegressor())
    assert rowwise.fit(rows, y).predict(rows).shape == (100,)
    halved = FunctionTransformer(lambda bags: [bag / 2 for bag in bags])
    bagwise = make_pipeline(halved, SingleLocationRegressor())
    bags = ragged(sample.tokens[:100], rng)
    alone = SingleLocationRegressor().fit(bags, y)
    assert_allclose(bagwise.fit(bags, y).predict(bags), alone.predict(bags), atol=1e-3)


def test_large_bags(rng):
    """A hundred thousand tokens in one bag, among small ones."""
    bags = [rng.standard_normal((5, 3)) for _ in range(60)]
    bags.append(rng.standard_normal((100_000, 3)))
    for bag in bags:
        bag[-1] += [9.0, 0.0, 0.0]
    y = np.array([bag[-1, 1] for bag in bags])
    model = SingleLocationRegressor().fit(bags, y)
    assert model.locate(bags)[-1] == 99_999
    assert model.score(bags, y) > 0.98


def test_verbose_prints_the_starts(sample, capsys):
    tokens, y = sample.tokens[:100], sample.targets[:100]
    SingleLocationRegressor(verbose=1, alpha=1e-3).fit(tokens, y)
    shown = capsys.readouterr().out
    for start in ("moments", "spectral", "principal", "value"):
        assert f"SingleLocationRegressor: start {start}: objective" in shown
    assert "refined" in shown
    assert "SingleLocationRegressor: length of the key: " in shown
    SingleLocationRegressor(verbose=1).fit(tokens, y)
    assert "mean pooling, alpha" in capsys.readouterr().out
    SingleLocationRegressor().fit(tokens, y)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"head": "sofmax"},
            "`head` must be one of 'auto', 'softmax', 'radial', 'erf', 'sigmoid'",
        ),
        ({"alpha": -1.0}, "`alpha` must be a finite number >= 0; got -1.0."),
        ({"alpha": "best"}, "`alpha` must be a finite number >= 0; got 'best'."),
        ({"l1_ratio": 2.0}, "`l1_ratio` must be a finite number from 0 to 1; got 2.0."),
        ({"coherence": -1}, "`coherence` must be a finite number from 0 to 1e+09; got"),
        ({"shrinkage": 0}, "`shrinkage` must be a finite number > 0; got 0."),
        ({"max_iter": 0}, "`max_iter` must be an integer >= 1; got 0."),
        ({"tol": 0}, "`tol` must be a finite number > 0; got 0."),
    ],
)
@pytest.mark.parametrize("estimator", BOTH)
def test_bad_parameters_are_named(estimator, parameters, message):
    with pytest.raises(ValueError, match=re.escape(f"{estimator.__name__}: {message}")):
        estimator(**parameters).fit(np.eye(4), [0, 1, 0, 1])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0], "`sample_weight` must be one weight per bag, of shape (4,); got"),
        (
            [1.0, -1.0, 1.0, 1.0],
            "`sample_weight` must be weights >= 0, not all of them zero; got numbers "
            "from -1 to 1.",
        ),
        ([0.0, 0.0, 0.0, 0.0], "got numbers from 0 to 0."),
    ],
)
def test_bad_weights_are_named(weights, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        SingleLocationRegressor().fit(np.eye(4), np.arange(4.0), sample_weight=weights)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([1.0], "`y` must be one target per bag; got 1 targets for 2 bags."),
        (np.ones(6), "got 6 targets for 2 bags. There is one per token: use `group_"),
        (["a", "b"], "`y` must be numbers; got an array of shape (2,) and dtype <U1."),
    ],
)
def test_bad_targets_are_named(y, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        SingleLocationRegressor().fit(np.ones((2, 3, 4)), y)


@pytest.mark.parametrize("head", ["softmax", "radial", "erf"])
@pytest.mark.parametrize("settings", [{}, {"alpha": 0.0, "fit_intercept": False}])
def test_one_bag_and_bags_that_are_all_alike_have_a_fit(head, settings):
    """No feature varies: the answer is the mean, without a warning."""
    for tokens in (np.ones((1, 4, 3)), np.zeros((5, 2, 3))):
        y = np.arange(1.0, 1 + len(tokens))
        model = SingleLocationRegressor(head=head, **settings).fit(tokens, y)
        if not settings:
            assert_allclose(model.predict(tokens), y.mean())


def test_one_class_is_refused():
    message = (
        "SingleLocationClassifier: `y` must be labels of at least two classes with "
        "positive weight; got one class, [1]."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        SingleLocationClassifier().fit(np.eye(3), [1, 1, 1])


def test_too_few_iterations_warn(sample):
    with pytest.warns(ConvergenceWarning, match="Raise `max_iter`, `tol` or `alpha`."):
        SingleLocationRegressor(max_iter=2).fit(sample.tokens, sample.targets)


@pytest.mark.parametrize("estimator", BOTH)
@pytest.mark.parametrize("method", ["predict", "locate", "attention"])
def test_unfitted_is_said(estimator, method):
    with pytest.raises(NotFittedError, match=estimator.__name__):
        getattr(estimator(), method)(np.eye(2))


@pytest.mark.parametrize("estimator", BOTH)
def test_documented_defaults_are_the_defaults(estimator):
    documented = dict(
        re.findall(r"^    (\w+) : .*default=(.+)$", estimator.__doc__, re.MULTILINE)
    )
    actual = {
        name: parameter.default
        for name, parameter in inspect.signature(estimator).parameters.items()
    }
    assert {name: repr(value).replace("'", '"') for name, value in actual.items()} == (
        documented
    )
    assert clone(estimator()).get_params() == actual


@pytest.mark.parametrize("head", ["softmax", "radial", "sigmoid", "erf"])
def test_no_token_is_located_without_a_key(rng, head):
    X = rng.standard_normal((60, 3, 2))
    model = SingleLocationRegressor(head=head).fit(X, rng.standard_normal(60))
    assert model.pooling_ == "none"
    assert (model.locate(X) == -1).all()
    assert np.ptp(model.attention(X)) == 0


def test_no_token_is_located_by_mean_pooling_or_a_missing_head(rng):
    X = rng.standard_normal((200, 4, 3))
    y = X.mean(axis=1)[:, 0] + 0.1 * rng.standard_normal(200)
    model = SingleLocationRegressor().fit(X, y)
    assert model.pooling_ == "mean"
    assert (model.locate(X) == -1).all()
