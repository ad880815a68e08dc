"""SignalDirection finds what few tokens carry, and keeps its false-positive rate."""

import time

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import scale

from eigenheads.datasets import SignalTokens
from eigenheads.estimators import SignalDirection
from eigenheads.estimators._parameters import repeated_rows
from eigenheads.estimators._signal_search import (
    SearchSettings,
    _climb_all,
    conformal_threshold,
    mean_square,
    noise_scaling,
    search_direction,
)


def drawn(share, strength, *, n=4000, d=32, seed=0, signs="random"):
    rare = round(share * n)
    law = SignalTokens(d, rare, n - rare, strength, signs=signs)
    tokens, signs = law.sample(1, np.random.default_rng(seed))
    return tokens[0], signs[0] != 0


@pytest.mark.parametrize("signs", ["random", "fixed"])
def test_finds_rare_tokens_that_pca_hardly_sees(signs):
    ours, theirs, found = [], [], []
    for seed in range(4):
        tokens, rare = drawn(0.002, 1.2, seed=seed, signs=signs)
        model = SignalDirection(calibration="gaussian", random_state=seed).fit(tokens)
        ours.append(abs(model.directions_[0, 0]))
        theirs.append(abs(PCA(1).fit(tokens).components_[0, 0]))
        called = model.predict(tokens)
        found.append(called[rare].mean())
        assert np.all(model.score_samples(tokens)[called == 1] > model.threshold_)
    assert np.mean(ours) > np.mean(theirs) + 0.15
    assert min(ours) > 0.8
    assert np.mean(found) > 0.9


def test_sparse_matrices_are_rows(rng):
    X = rng.standard_normal((300, 6)) * (rng.random((300, 6)) < 0.3)
    dense, sparse = (
        SignalDirection(random_state=0).fit_transform(rows)
        for rows in (X, csr_array(X))
    )
    assert_array_equal(dense, sparse)


def test_finds_common_weak_tokens_like_pca():
    tokens, _ = drawn(0.3, 0.4)
    assert abs(SignalDirection(random_state=0).fit(tokens).directions_[0, 0]) > 0.95


@pytest.mark.parametrize("calibration", ["conformal", "gaussian", "empirical"])
def test_false_positives_on_fresh_noise_are_as_rare_as_stated(calibration):
    tokens, _ = drawn(0.004, 1.2)
    model = SignalDirection(
        2, random_state=0, calibration=calibration, false_positive_rate=0.02
    ).fit(tokens)
    fresh = np.random.default_rng(1).standard_normal((40_000, 32))
    # The scale has a relative error of about 1.2/√4000 = 0.02, which moves the rate by
    # a factor of up to 1.1 a standard deviation; quantiles, by 1/√80. Four of these.
    # A conformal threshold counts the rare tokens, too, so that it may be rarer.
    least = 0.3 if calibration == "conformal" else 0.6
    assert least * 0.02 < model.predict(fresh).mean() < 1.5 * 0.02


def test_the_empirical_threshold_calls_no_more_than_its_share():
    tokens, _ = drawn(0.05, 1.2)
    model = SignalDirection(calibration="empirical", random_state=0).fit(tokens)
    assert model.predict(tokens).mean() <= 0.01


def test_several_directions_by_deflation():
    rng = np.random.default_rng(0)
    tokens = rng.standard_normal((4000, 20))
    tokens[:40, 0] += 6 * rng.choice([-1, 1], 40)
    tokens[40:60, 1] += 7 * rng.choice([-1, 1], 20)
    model = SignalDirection(2, calibration="gaussian", random_state=0).fit(tokens)
    share = np.sum(model.directions_[:, :2] ** 2)
    assert share > 1.8
    assert_allclose(model.directions_ @ model.directions_.T, np.eye(2), atol=1e-8)
    assert model.predict(tokens)[:60].mean() > 0.9


def test_whitening_finds_a_direction_of_small_variance():
    tokens, rare = drawn(0.01, 1.2)
    spread = np.geomspace(0.1, 10, 32)
    how = {"whiten": True, "calibration": "gaussian", "random_state": 0}
    model = SignalDirection(**how).fit(tokens * spread)
    assert model.predict(tokens * spread)[rare].mean() > 0.9
    # Whitened, the fit does not depend on the units of the features.
    other = SignalDirection(**how).fit(tokens)
    scores = model.score_samples(tokens * spread)
    assert np.corrcoef(scores, other.score_samples(tokens))[0, 1] > 0.99
    assert_allclose(np.linalg.norm(model.directions_, axis=1), 1)


def test_bags_give_lists_and_rows_give_arrays():
    tokens, _ = drawn(0.01, 1.2, n=600, d=8)
    rows = SignalDirection(random_state=0).fit(tokens)
    bags = [tokens[:100], tokens[100:250], tokens[250:]]
    model = SignalDirection(random_state=0).fit(bags)
    assert_allclose(model.directions_, rows.directions_)
    for name in ("transform", "score_samples", "predict"):
        pieces = getattr(model, name)(bags)
        assert [len(piece) for piece in pieces] == [100, 150, 350]
        assert_allclose(np.concatenate(pieces), getattr(rows, name)(tokens))
    cube = SignalDirection(random_state=0).fit(tokens.reshape(6, 100, 8))
    assert_allclose(cube.directions_, rows.directions_)
    assert len(cube.predict(tokens.reshape(6, 100, 8))) == 6
    single = model.predict([tokens[:1], tokens[1:2]])
    assert [len(piece) for piece in single] == [1, 1]


def test_the_search_climbs():
    tokens, _ = drawn(0.01, 1.0, n=1000, d=10)
    values = []
    for max_iter in (1, 3, 50):
        random = np.random.RandomState(0)
        how = SearchSettings(n_starts=4, max_iter=max_iter, tol=1e-9, prompt_length=100)
        values.append(search_direction(tokens, [0.5], how, random).objective)
    assert values == sorted(values)
    prompts = tokens.reshape(10, 100, 10)
    unit = np.eye(10)
    assert mean_square(prompts, unit[0], 0.5) > mean_square(prompts, unit[1], 0.5)


def test_no_update_descends_and_a_resting_query_is_a_maximum():
    # With signs all alike the objective differs between q and -q, so that a step the
    # wrong way shows.
    tokens, _ = drawn(0.02, 1.0, n=1000, d=6, signs="fixed")
    prompts = tokens.reshape(10, 100, 6)
    start = np.array([[0.5, 0.5, -0.5, 0.5, 0.0, 0.0]])
    climbs = [
        _climb_all(prompts, start, 0.5, SearchSettings(1, max_iter, 1e-14, 100))
        for max_iter in (1, 2, 3, 4, 500)
    ]
    values = [mean_square(prompts, start[0], 0.5)] + [c.objective for c in climbs]
    assert np.all(np.diff(values) > 0)
    query, size = climbs[-1].query, 1e-4
    tangents = np.linalg.qr(np.column_stack([query, np.eye(6)]))[0].T[1:]
    for tangent in np.vstack([tangents, -tangents]):
        moved = query + size * tangent
        moved /= np.linalg.norm(moved)
        # Rests at 1 - cos <= 1e-14: 1e-7 from the maximum, a thousandth of the step.
        assert mean_square(prompts, moved, 0.5) < values[-1]


def test_the_same_seed_gives_the_same_fit_and_signs_are_fixed():
    tokens, _ = drawn(0.01, 1.0, n=1000, d=10)
    one, two = (SignalDirection(2, random_state=3).fit(tokens) for _ in range(2))
    assert_allclose(one.components_, two.components_)
    largest = np.argmax(np.abs(one.directions_), axis=1)
    assert np.all(one.directions_[[0, 1], largest] > 0)


def test_degenerate_tokens_are_read():
    model = SignalDirection(random_state=0).fit(np.ones((20, 3)))
    assert not model.predict(np.ones((5, 3))).any()
    flat = np.zeros((200, 4))
    flat[:, 0] = np.random.default_rng(0).standard_normal(200)
    assert np.isfinite(SignalDirection(2, random_state=0).fit(flat).components_).all()
    thin = SignalDirection(2, whiten=True, random_state=0).fit(flat)
    assert np.isfinite(thin.score_samples(flat)).all()


def test_a_query_that_still_moves_is_told(capsys):
    tokens, _ = drawn(0.01, 0.5, n=1000, d=10)
    with pytest.warns(ConvergenceWarning, match="no convergence in 2 updates"):
        SignalDirection(max_iter=2, verbose=1, random_state=0).fit(tokens)
    assert "direction 0: inverse temperature" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_components": 5}, "`n_components` must be an integer from 1 to 4; got 5"),
        ({"whiten": "yes"}, "`whiten` must be True or False"),
        ({"calibration": "gauss"}, "Did you mean 'gaussian'"),
        (
            {"false_positive_rate": 1.0},
            "`false_positive_rate` must be a number below 1",
        ),
        ({"inverse_temperature": 0.0}, "`inverse_temperature`"),
        ({"n_tokens": 1}, "`n_tokens`"),
        ({"n_starts": 0}, "`n_starts`"),
    ],
)
def test_bad_parameters_are_named(parameters, message):
    with pytest.raises(ValueError, match=message):
        SignalDirection(**parameters).fit(np.random.default_rng(0).random((50, 4)))


@pytest.mark.parametrize("whiten", [False, True])
def test_few_wide_tokens_have_coordinates_along_principal_components(rng, whiten):
    X = rng.standard_normal((40, 90))
    X[:3, 0] += 25.0
    scaling = noise_scaling(X, whiten=whiten)
    z = scaling.apply(X)
    assert z.shape == (40, 16)
    exact = PCA(16).fit_transform(X)
    centred = X - X.mean(axis=0)
    # Projection weights give the coordinates, and patterns the tokens.
    assert_allclose(centred @ scaling.components(np.eye(16)).T, z, atol=1e-8)
    assert_allclose(np.linalg.norm(z @ scaling.out.T), np.linalg.norm(exact))
    if whiten:
        assert_allclose(z.T @ z / 40, np.eye(16), atol=1e-8)
    else:
        ratio = (z @ z.T) / (exact @ exact.T)
        assert_allclose(ratio, np.full_like(ratio, ratio[0, 0]), rtol=1e-6)
    assert noise_scaling(X, whiten=whiten, least=20).apply(X).shape == (40, 20)
    model = SignalDirection(1, whiten=whiten, random_state=0).fit(X)
    assert whiten or abs(model.directions_[0, 0]) > 0.9


def test_a_direction_among_more_features_than_tokens(rng):
    """The direction is as good as that of PCA, far better than any single token."""
    X = rng.standard_normal((400, 1500)).astype(np.float32)
    X[:8, 0] += 30.0
    model = SignalDirection(1, calibration="gaussian", random_state=0).fit(X)
    plain = abs(PCA(1, svd_solver="full").fit(X).components_[0, 0])
    token = 30 / np.hypot(30, 1500**0.5)
    assert abs(model.directions_[0, 0]) > max(0.97 * plain, token + 0.15)


def test_the_number_of_directions_is_found():
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((3000, 12))
    assert len(SignalDirection(random_state=0, n_starts=4).fit(noise).components_) < 3
    two = noise.copy()
    two[:30, 0] += 8
    two[30:60, 1] -= 9
    model = SignalDirection(random_state=0, n_starts=4).fit(two)
    assert np.sum(model.directions_[:2, :2] ** 2) > 1.8
    assert model.transform(two).shape[1] == len(model.directions_) >= 2


@pytest.mark.parametrize("load", [load_breast_cancer, load_wine])
def test_the_conformal_rate_holds_on_real_data(load):
    """Fits to random halves; the other halves are false positives."""
    X, y = load(return_X_y=True)
    X = scale(X[y == 1] if load is load_breast_cancer else X)
    rate, called = 0.1, []
    for seed in range(12):
        random = np.random.RandomState(seed)
        order = random.permutation(len(X))
        half = len(X) // 2
        model = SignalDirection(
            2, false_positive_rate=rate, n_starts=2, random_state=seed
        )
        model.fit(X[order[:half]])
        called.append(model.predict(X[order[half:]]).mean())
    # Marginal over splits; three standard errors of the mean are allowed.
    assert np.mean(called) < rate + 3 * np.std(called) / np.sqrt(len(called))


def test_calibration_with_nuisance_tokens_has_more_power(rng):
    tokens, rare = drawn(0.05, 1.2)
    model = SignalDirection(1, random_state=0).fit(tokens)
    assert model.predict(tokens)[rare].mean() < 0.5
    noise = rng.standard_normal((2000, tokens.shape[1]))
    model.calibrate(noise)
    assert model.predict(tokens)[rare].mean() > 0.9
    assert model.predict(rng.standard_normal((8000, tokens.shape[1]))).mean() < 0.017
    few = SignalDirection(1, random_state=0).fit(tokens[:60])
    assert few.threshold_ == np.inf


def test_whitening_is_not_led_by_outliers(rng):
    spread = np.array([1.0, 2.0, 5.0])
    tokens = rng.standard_normal((2000, 3)) * spread
    tokens[:60] += 100.0
    scaling = noise_scaling(tokens, whiten=True)
    z = scaling.apply(tokens[60:])
    assert np.abs(np.cov(z.T) - np.eye(3)).max() < 0.3
    assert np.abs(scaling.mean).max() < 1.0


@pytest.mark.parametrize("calibration", ["gaussian", "empirical"])
@pytest.mark.parametrize("whiten", [False, True])
def test_integer_weights_are_repeated_tokens(rng, calibration, whiten):
    tokens, _ = drawn(0.05, 1.2, n=400, d=6)
    weights = rng.integers(0, 4, len(tokens))
    model = SignalDirection(
        2, calibration=calibration, whiten=whiten, n_starts=2, random_state=0
    )
    weighed = clone(model).fit(tokens, sample_weight=weights)
    repeated = clone(model).fit(np.repeat(tokens, weights, axis=0))
    for name in ("directions_", "components_", "mean_", "centers_", "scales_"):
        assert_array_equal(getattr(weighed, name), getattr(repeated, name))
    assert weighed.threshold_ == repeated.threshold_
    # For bags there is one weight per bag.
    bags = [tokens[:100], tokens[100:180], tokens[180:]]
    by_bag = clone(model).fit(bags, sample_weight=[2, 0, 1])
    rows = clone(model).fit(tokens, sample_weight=np.repeat([2, 0, 1], [100, 80, 220]))
    assert_array_equal(by_bag.components_, rows.components_)


def test_weights_of_any_scale_count_on_average(rng):
    weights = rng.random(3000)
    copies = np.bincount(repeated_rows(7 * weights, np.random.RandomState(0)))
    assert np.abs(copies - 7 * weights[: len(copies)]).max() < 1
    small = repeated_rows(weights / weights.sum(), np.random.RandomState(0))
    assert abs(len(small) - 3000) <= 1
    assert len(repeated_rows(1e9 * weights, np.random.RandomState(0))) <= 8 * 3000 + 1
    assert_array_equal(repeated_rows(np.full(5, 0.3), None), np.arange(5))
    # Tokens of tiny weight do not attract a direction, which they do otherwise.
    tokens = rng.standard_normal((2000, 8))
    tokens[:100, 0] += 9
    light = np.where(np.arange(2000) < 100, 1e-6, 1.0)
    model = SignalDirection(1, n_starts=2, random_state=0)
    assert abs(model.fit(tokens).directions_[0, 0]) > 0.95
    assert abs(model.fit(tokens, sample_weight=light).directions_[0, 0]) < 0.8
    with pytest.raises(ValueError, match="at least 2 tokens; got n_samples=1"):
        model.fit(tokens, sample_weight=np.arange(2000) == 3)


def test_the_conformal_rate_holds_for_the_weighted_law(rng):
    """Tokens are fitted from one law, and the weights are those of another."""
    rate, called, without = 0.1, [], []
    for seed in range(30):
        tokens = rng.standard_normal((400, 3)) * rng.choice([1, 3], (400, 1))
        # Density of N(0, 9) relative to the mixture of N(0, 1) and N(0, 9).
        lengths = np.sum(tokens**2, axis=1)
        ratio = 27 * np.exp(-lengths / 2 + lengths / 18)
        weights = 2 / (1 + ratio)
        fresh = 3 * rng.standard_normal((2000, 3))
        model = SignalDirection(
            1, false_positive_rate=rate, n_starts=2, random_state=seed
        )
        called.append(model.fit(tokens, sample_weight=weights).predict(fresh).mean())
        without.append(model.fit(tokens).predict(fresh).mean())
    error = np.std(called) / np.sqrt(len(called))
    assert np.mean(called) < rate + 2 * error
    assert np.mean(called) > 0.05
    assert np.mean(without) > rate + 4 * error


def test_equal_weights_leave_the_conformal_threshold(rng):
    scores = rng.random(57)
    rank = int(np.ceil(58 * 0.9))
    wanted = np.sort(scores)[rank - 1]
    assert conformal_threshold(scores, 0.1) == wanted
    assert conformal_threshold(scores, 0.1, np.full(57, 0.02)) == wanted
    assert conformal_threshold(scores, 0.01) == np.inf


@pytest.mark.slow
def test_five_thousand_features_take_seconds(rng):
    bags = rng.standard_normal((60, 20, 5000)).astype(np.float32)
    bags[::10, 0, 0] += 60.0
    began = time.process_time()
    model = SignalDirection(random_state=0).fit(bags)
    assert time.process_time() - began < 30
    assert abs(model.directions_[0, 0]) > 0.8
