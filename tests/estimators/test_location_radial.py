"""The radial head, and the length of the key: what a linear score cannot say."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit, softmax

from eigenheads.datasets import SingleLocation
from eigenheads.estimators import SingleLocationClassifier, SingleLocationRegressor
from eigenheads.estimators._location._prepare import squared_radii

# Sums of about a hundred float64 products, reordered.
RTOL = 1e-9
N_TRAIN = 600


@pytest.fixture(scope="module")
def distracted():
    """One token decides; one other has a readout of 3 or -3, as in the benchmark."""
    rng = np.random.default_rng(2)
    tokens, y, places = SingleLocation(d=16, n_tokens=5).sample(2 * N_TRAIN, rng)
    rows = np.arange(len(y))
    tokens[rows, (places + 1) % 5, 1] += rng.choice([-3.0, 3.0], len(y))
    return tokens @ np.linalg.qr(rng.standard_normal((16, 16)))[0], y, places


def scores_of(model, bag):
    """The documented score, token by token."""
    return np.array(
        [
            token @ model.coef_key_
            - 0.5
            * model.coef_radius_
            * ((token - model.center_) @ model.precision_ @ (token - model.center_))
            for token in bag
        ]
    )


def test_prediction_is_the_documented_formula_of_the_coefficients(rng, distracted):
    tokens, y, _ = distracted
    bags = [bag[: rng.integers(1, 6)] for bag in tokens[:100]]
    model = SingleLocationRegressor(head="radial", alpha=1e-2, extrapolation=None)
    model.fit(bags, y[:100])
    label = SingleLocationClassifier(head="radial", alpha=1e-2).fit(bags, y[:100] > 0)
    for index, bag in enumerate(bags[:20]):
        weights = softmax(scores_of(model, bag))
        expected = weights @ (bag @ model.coef_value_) + model.intercept_
        assert_allclose(model.predict([bag]), expected, rtol=RTOL)
        assert_allclose(model.attention(bags)[index], weights, rtol=1e-7, atol=1e-12)
        assert model.locate([bag]) == scores_of(model, bag).argmax()
        logit = softmax(scores_of(label, bag)) @ (bag @ label.coef_value_[0])
        chance = expit(logit + label.intercept_)
        assert_allclose(label.predict_proba([bag])[:, 1], chance, rtol=1e-7)


def test_center_and_precision_are_those_of_the_pooled_tokens(distracted):
    tokens, y, _ = distracted
    model = SingleLocationRegressor(head="radial", shrinkage=0.5, alpha=0.1)
    model.fit(tokens, y)
    pooled = tokens.reshape(-1, 16)
    covariance = np.cov(pooled.T, bias=True)
    ridged = (covariance + 0.5 * np.diag(np.diag(covariance))) / 1.5
    assert_allclose(model.center_, pooled.mean(axis=0), rtol=RTOL)
    assert_allclose(model.precision_, np.linalg.inv(ridged), rtol=1e-6, atol=1e-9)


def test_the_radius_tells_distractors_from_the_deciding_token(distracted):
    """A linear key errs on some percent of bags, by about 3 each: R2 near 0.8.

    On seeds 0 to 7 the radial head left 0.15 to 0.45 of that error, and located 0.98
    to 0.992; this is seed 2, the worst.
    """
    tokens, y, places = distracted
    fits = {
        head: SingleLocationRegressor(head=head).fit(tokens[:N_TRAIN], y[:N_TRAIN])
        for head in ("softmax", "radial")
    }
    r2 = {head: fit.score(tokens[N_TRAIN:], y[N_TRAIN:]) for head, fit in fits.items()}
    assert 1 - r2["radial"] < 0.6 * (1 - r2["softmax"])
    found = fits["radial"].locate(tokens[N_TRAIN:])
    assert np.mean(found == places[N_TRAIN:]) > 0.97
    # Deciding tokens have half the variance: the Bayes score has a positive radius.
    assert fits["radial"].coef_radius_ > 0.3


@pytest.mark.parametrize(
    "estimator", [SingleLocationRegressor, SingleLocationClassifier]
)
def test_a_token_that_differs_by_its_spread_alone_is_found(rng, estimator):
    """Mean zero for all tokens: no linear score knows more than chance, 1/4."""
    tokens = rng.standard_normal((600, 4, 12))
    tokens[:, 1] *= 3.0
    y = tokens[:, 1, 0].copy()
    y = y if estimator is SingleLocationRegressor else y > 0
    model = estimator(head="radial").fit(tokens[:400], y[:400])
    assert model.coef_radius_ < 0
    assert np.mean(model.locate(tokens[400:]) == 1) > 0.95
    assert model.score(tokens[400:], y[400:]) > 0.9


@pytest.mark.parametrize("seed", [100, 101, 102])
def test_a_deciding_token_that_spreads_less_is_found_from_the_radius(seed):
    """A fifth of the spread of 39 others: no moment of the tokens tells of it.

    Without the start from the radius these three fits, and 7 of 8 on seeds 100 to 107,
    found it in no more than 3 % of bags; with it, in 99.7 % or more.
    """
    tokens = np.random.default_rng(seed).standard_normal((600, 40, 10))
    tokens[:, 1] *= 0.2
    y = tokens[:, 1, 0]
    model = SingleLocationRegressor(head="radial").fit(tokens[:300], y[:300])
    assert model.coef_radius_ > 0
    assert np.mean(model.locate(tokens[300:]) == 1) > 0.95
    assert model.score(tokens[300:], y[300:]) > 0.9


def test_units_do_not_matter(distracted):
    tokens, y, _ = distracted
    tokens, y = tokens[:300], y[:300]
    changed = tokens * np.logspace(-2, 2, 16) + 5.0
    model = SingleLocationRegressor(head="radial", tol=1e-7).fit(tokens, y)
    other = SingleLocationRegressor(head="radial", tol=1e-7).fit(changed, 7 * y - 2)
    # Both stop at a gradient of 1e-7 in the same whitened coordinates.
    assert_allclose(other.predict(changed), 7 * model.predict(tokens) - 2, atol=1e-2)
    assert_array_equal(other.locate(changed), model.locate(tokens))


def test_float32_is_kept(distracted):
    tokens, y = distracted[0][:300].astype(np.float32), distracted[1][:300]
    model = SingleLocationRegressor(head="radial").fit(tokens, y)
    assert model.predict(tokens).dtype == np.float32
    assert {model.coef_key_.dtype, model.center_.dtype, model.precision_.dtype} == {
        np.dtype(np.float32)
    }
    double = SingleLocationRegressor(head="radial").fit(tokens.astype(float), y)
    # float32 scores of size ten, through the softmax.
    assert_allclose(
        model.predict(tokens), double.predict(tokens.astype(float)), atol=0.1
    )


def test_a_diagonal_is_a_matrix(rng):
    tokens, center = rng.standard_normal((9_000, 3)), rng.standard_normal(3)
    full = squared_radii(tokens, center, np.diag([1.0, 2.0, 3.0]))
    assert_allclose(squared_radii(tokens, center, np.array([1.0, 2.0, 3.0])), full)
    assert_allclose(full, (tokens - center) ** 2 @ [1.0, 2.0, 3.0])


@pytest.mark.parametrize("head", ["softmax", "radial"])
def test_value_is_the_ridge_regression_on_attended_tokens(distracted, head):
    tokens, y, _ = distracted
    settings = {"alpha": 1e-3, "shrinkage": 0.01}
    model = SingleLocationRegressor(head=head, **settings).fit(tokens, y)
    attended = np.einsum("nl,nld->nd", np.array(model.attention(tokens)), tokens)
    covariance = np.cov(tokens.reshape(-1, 16).T, bias=True)
    metric = (covariance + 0.01 * np.diag(np.diag(covariance))) / 1.01
    centred, target = attended - attended.mean(axis=0), y - y.mean()
    gram = centred.T @ centred / len(y)
    expected = np.linalg.solve(gram + 1e-3 * metric, centred.T @ target / len(y))
    assert_allclose(model.coef_value_, expected, rtol=1e-6, atol=1e-8)


def test_length_of_the_key_is_chosen_against_the_logarithm_of_the_loss(distracted):
    """Half as long again, with the value refitted, costs more in the criterion."""
    tokens, y, _ = distracted
    model = SingleLocationRegressor(alpha=3e-5, shrinkage=0.01).fit(tokens, y)

    def criterion(factor):
        weights = softmax(factor * tokens @ model.coef_key_, axis=1)
        attended = np.einsum("nl,nld->nd", weights, tokens)
        table = np.column_stack([attended, np.ones(len(y))])
        residual = y - table @ np.linalg.lstsq(table, y)[0]
        scores = (tokens @ model.coef_key_).ravel()
        length = scores.var() + 0.01 * (
            tokens.reshape(-1, 16).var(axis=0) @ model.coef_key_**2
        )
        return len(y) * np.log(np.mean(residual**2)) + 0.5 * factor**2 * length

    assert criterion(1.0) < criterion(1.5)


def test_without_noise_and_overlap_the_head_stops_leaking(rng):
    """Tokens 5.7 deviations apart, targets without noise.

    What remains is the shrinkage of the value, about (2 alpha)^2 = 4e-9; with the
    length at which the optimiser stops it was 2e-5 to 6e-5 on four seeds.
    """
    tokens, y, _ = SingleLocation(d=64, n_tokens=5).sample(1500, rng)
    tokens = tokens[..., :20]  # key and value are the first two
    model = SingleLocationRegressor().fit(tokens[:1000], y[:1000])
    assert model.score(tokens[1000:], y[1000:]) > 1 - 1e-6
