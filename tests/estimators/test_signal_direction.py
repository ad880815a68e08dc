"""SignalDirection finds what few tokens carry, and keeps its false-positive rate."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning

from eigenheads.datasets import SignalTokens
from eigenheads.estimators import SignalDirection, _signal_search
from eigenheads.estimators._signal_search import (
    SearchSettings,
    _climb_all,
    mean_square,
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
        model = SignalDirection(random_state=seed).fit(tokens)
        ours.append(abs(model.directions_[0, 0]))
        theirs.append(abs(PCA(1).fit(tokens).components_[0, 0]))
        called = model.predict(tokens)
        found.append(called[rare].mean())
        assert np.all(model.score_samples(tokens)[called == 1] > model.threshold_)
    assert np.mean(ours) > np.mean(theirs) + 0.15
    assert min(ours) > 0.8
    assert np.mean(found) > 0.9


def test_finds_common_weak_tokens_like_pca():
    tokens, _ = drawn(0.3, 0.4)
    assert abs(SignalDirection(random_state=0).fit(tokens).directions_[0, 0]) > 0.95


@pytest.mark.parametrize("calibration", ["gaussian", "empirical"])
def test_false_positives_on_fresh_noise_are_as_rare_as_stated(calibration):
    tokens, _ = drawn(0.004, 1.2)
    model = SignalDirection(
        2, random_state=0, calibration=calibration, false_positive_rate=0.02
    ).fit(tokens)
    fresh = np.random.default_rng(1).standard_normal((40_000, 32))
    # The scale has a relative error of about 1.2/√4000 = 0.02, which moves the rate by
    # a factor of up to 1.1 a standard deviation; quantiles, by 1/√80. Four of these.
    assert 0.6 * 0.02 < model.predict(fresh).mean() < 1.5 * 0.02


def test_the_empirical_threshold_calls_no_more_than_its_share():
    tokens, _ = drawn(0.05, 1.2)
    model = SignalDirection(calibration="empirical", random_state=0).fit(tokens)
    assert model.predict(tokens).mean() <= 0.01


def test_several_directions_by_deflation():
    rng = np.random.default_rng(0)
    tokens = rng.standard_normal((4000, 20))
    tokens[:40, 0] += 6 * rng.choice([-1, 1], 40)
    tokens[40:60, 1] += 7 * rng.choice([-1, 1], 20)
    model = SignalDirection(2, random_state=0).fit(tokens)
    share = np.sum(model.directions_[:, :2] ** 2)
    assert share > 1.8
    assert_allclose(model.directions_ @ model.directions_.T, np.eye(2), atol=1e-8)
    assert model.predict(tokens)[:60].mean() > 0.9


def test_whitening_finds_a_direction_of_small_variance():
    tokens, rare = drawn(0.01, 1.2)
    spread = np.geomspace(0.1, 10, 32)
    model = SignalDirection(whiten=True, random_state=0).fit(tokens * spread)
    assert model.predict(tokens * spread)[rare].mean() > 0.9
    # Whitened, the fit does not depend on the units of the features.
    other = SignalDirection(whiten=True, random_state=0).fit(tokens)
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
def test_few_wide_tokens_give_the_same_in_their_span(rng, monkeypatch, whiten):
    X = rng.standard_normal((40, 90))
    X[:3, 0] += 25.0
    model = SignalDirection(whiten=whiten, random_state=0).fit(X)
    monkeypatch.setattr(
        _signal_search, "_within_span", lambda prompts, *q: (prompts, q, lambda x: x)
    )
    full = SignalDirection(whiten=whiten, random_state=0).fit(X)
    np.testing.assert_allclose(model.directions_, full.directions_, atol=1e-8)
    assert model.inverse_temperatures_ == full.inverse_temperatures_
