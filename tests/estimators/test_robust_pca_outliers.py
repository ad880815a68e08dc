"""RobustPCA as a detector of outlying rows and cells; PCA with missing values."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import binom, false_discovery_control
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.metrics import average_precision_score
from sklearn.preprocessing import StandardScaler

from eigenheads.estimators import RobustPCA


def relative(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


def standardised(load):
    X = load().data
    return StandardScaler().fit_transform(X[:, X.std(axis=0) > 0])


def halves(X, rng):
    order = rng.permutation(len(X))
    return X[order[: len(X) // 2]], X[order[len(X) // 2 :]]


def with_shifted_cells(X, rng, share=0.03, size=3.0):
    wrong = rng.random(X.shape) < share
    return np.where(wrong, X + size * rng.choice([-1.0, 1.0], X.shape), X), wrong


@pytest.mark.parametrize("load", [load_breast_cancer, load_wine])
def test_false_alarms_on_real_rows_keep_the_stated_rate(rng, load):
    X, rate, n_splits = standardised(load), 0.1, 20
    called = 0
    for _ in range(n_splits):
        train, new = halves(X, rng)
        model = RobustPCA(sparsity=1.0, tol=1e-3, false_positive_rate=rate).fit(train)
        called += (model.predict(new[:1]) == -1).sum()  # one row: splits are draws
        assert model.support_.sum() == len(train) - len(model._null_scores)
    # Conformal: the probability is at most the rate for each of the rows.
    assert binom.sf(called - 1, n_splits, rate) > 1e-4


def test_p_values_of_ordinary_rows_are_not_too_small_on_average(rng):
    X, shares = standardised(load_breast_cancer), []
    for _ in range(8):
        train, new = halves(X, rng)
        model = RobustPCA(sparsity=1.0, tol=1e-3, false_positive_rate=0.1).fit(train)
        p_values = model.p_values(new)
        assert p_values.min() >= 1 / (1 + len(model._null_scores))
        assert_array_equal(p_values <= 0.1, model.predict(new) == -1)
        shares.append([(p_values <= level).mean() for level in (0.1, 0.3, 0.6)])
    # Means of 8 splits of 285 rows against 56 held-out ones: deviation about 0.015.
    assert (np.mean(shares, axis=0) < np.array([0.1, 0.3, 0.6]) + 0.06).all()


def test_false_discoveries_are_controlled_and_outliers_are_found(rng):
    X, false, found = standardised(load_digits), [], []
    for _ in range(8):
        train, new = halves(X, rng)
        bad = rng.random(len(new)) < 0.2
        new[np.ix_(bad, [20, 30, 40])] += 12
        model = RobustPCA(sparsity=1.0, tol=1e-3, false_positive_rate=0.0025)
        called = false_discovery_control(model.fit(train).p_values(new)) <= 0.1
        false.append((called & ~bad).sum() / max(called.sum(), 1))
        found.append((called & bad).sum() / bad.sum())
    # At most .1 times the share of ordinary rows, .08, in expectation.
    assert np.mean(false) < 0.1
    assert np.mean(found) > 0.9


def test_cells_of_new_rows_are_ranked_better_than_by_their_columns(rng):
    train, new = halves(standardised(load_breast_cancer), rng)
    train, _ = with_shifted_cells(train, rng)
    new, wrong = with_shifted_cells(new, rng)
    sparse = RobustPCA().fit(train).sparse_of(new)
    tails = new - np.median(train, axis=0)
    ours, columns = (
        average_precision_score(wrong.ravel(), np.abs(s).ravel())
        for s in (sparse, tails)
    )
    assert ours > 0.7 > columns + 0.1


def test_the_share_of_outliers_is_the_contamination(rng):
    X = standardised(load_wine)
    for share in (0.05, 0.3):
        model = RobustPCA(contamination=share).fit(X)
        assert (model.predict(X) == -1).sum() == np.floor(share * (len(X) - 1)) + 1
        scores = model.score_samples(X)
        assert_allclose(model.decision_function(X), scores - model.offset_)
        assert_array_equal(model.predict(X) == -1, scores < model.offset_)
    default = (RobustPCA().fit_predict(X) == -1).mean()
    assert 0.07 < default < 0.13


def test_held_out_rows_have_the_codes_of_new_ones(rng):
    X = rng.standard_normal((100, 2)) @ rng.standard_normal((2, 30))
    X[rng.random(X.shape) < 0.03] += 10
    model = RobustPCA(sparsity=1.0, false_positive_rate=0.05)
    codes = model.fit_transform(X)
    held = ~model.support_
    assert held.sum() == 20
    assert_array_equal(codes[held], model.transform(X[held]))
    assert_array_equal(model.sparse_[held], model.sparse_of(X[held]))
    other = RobustPCA(sparsity=1.0).fit(X[model.support_])
    assert_array_equal(other.components_, model.components_)


def test_says_what_is_wrong(rng):
    X = rng.standard_normal((20, 5))
    for settings, sentence in (
        ({"contamination": 0.7}, "`contamination` must be at most 0.5, or None"),
        ({"contamination": 0}, "`contamination` must be a finite number > 0; got 0"),
        ({"false_positive_rate": 1}, "`false_positive_rate` must be a number below 1"),
        ({"false_positive_rate": 0.01}, "must be at least 0.0909 for 20 rows; got 0.0"),
        ({"sparsity": np.inf, "errors": "rows"}, "`sparsity` must be finite for err"),
    ):
        with pytest.raises(ValueError, match=sentence):
            RobustPCA(**settings).fit(X)
    with pytest.raises(ValueError, match="`false_positive_rate` must be a number bel"):
        RobustPCA(sparsity=3.0).fit(X).p_values(X)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_an_infinite_price_fills_holes_of_low_rank_data_exactly(rng, dtype):
    clean = rng.standard_normal((120, 3)) @ rng.standard_normal((3, 40)) + 5.0
    clean = clean.astype(dtype)
    hidden = rng.random(clean.shape) < 0.3
    holed = np.where(hidden, np.nan, clean)
    model = RobustPCA(sparsity=np.inf).fit(holed[:100])
    tol = 1e-5 if dtype is np.float64 else 1e-3
    assert model.rank_ == 3
    assert relative(model.low_rank_, clean[:100]) < tol
    assert not model.sparse_.any()
    filled = model.inverse_transform(model.transform(holed))
    assert filled.dtype == dtype
    assert relative(filled, clean) < tol
    # A finite price calls nothing wrong either, where nothing is.
    assert np.abs(model.score_samples(holed)).max() < 1e3 * tol
    if dtype is np.float64:
        assert (model.predict(holed) == 1).all()
    assert model.predict(np.where(hidden, np.nan, clean) + 5 * hidden[::-1])[0] == -1
    nothing = np.full((1, 40), np.nan, dtype=dtype)
    assert_array_equal(model.transform(nothing), np.zeros((1, 3)))


def test_without_errors_and_holes_it_is_pca(rng):
    X = standardised(load_wine)
    model = RobustPCA(sparsity=np.inf).fit(X)
    assert_allclose(model.low_rank_, X, atol=1e-5)
    values, vectors = np.linalg.eigh(np.cov(X.T))
    assert_allclose(model.explained_variance_, values[::-1], rtol=1e-5)
    cosines = np.abs(np.sum(model.components_ * vectors[:, ::-1].T, axis=1))
    assert_allclose(cosines, 1.0, atol=1e-5)


def test_noisy_data_with_holes_are_filled_better_than_by_means(rng):
    clean = rng.standard_normal((150, 3)) @ rng.standard_normal((3, 40))
    hidden = rng.random(clean.shape) < 0.3
    noisy = clean + 0.3 * rng.standard_normal(clean.shape)
    model = RobustPCA(sparsity=np.inf, noise="auto").fit(
        np.where(hidden, np.nan, noisy)
    )
    assert 0.25 < model.noise_ < 0.4
    assert relative(model.low_rank_[hidden], clean[hidden]) < 0.3
    codes = model.transform(np.where(hidden, np.nan, noisy))
    assert relative(model.inverse_transform(codes)[hidden], clean[hidden]) < 0.3
