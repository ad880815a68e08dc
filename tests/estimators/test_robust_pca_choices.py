"""Choices of sparsity and rank, noise, outlying rows, memory and files."""

import pickle
import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV

from eigenheads.estimators import RobustPCA


def relative(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


def planted(rng, n=150, d=60, rank=3, noise=0.0, share=0.05):
    """Low rank, and the same with dense noise and gross errors."""
    clean = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, d))
    wrong = rng.random((n, d)) < share
    X = clean + noise * rng.standard_normal((n, d))
    return clean, np.where(wrong, X + 20 * rng.choice([-1.0, 1.0], (n, d)), X)


def occluded_digits(rng, n):
    """Digits, and the same with a block of 3 x 3 set to 16 in 30 % of them."""
    images = load_digits().images[:n].copy()
    clean = images.reshape(n, -1).copy()
    for index in np.flatnonzero(rng.random(n) < 0.3):
        row, column = rng.integers(0, 6, 2)
        images[index, row : row + 3, column : column + 3] = 16
    return clean, images.reshape(n, -1)


def test_the_chosen_sparsity_is_nearly_the_best_one(rng):
    clean, X = occluded_digits(rng, 800)
    errors = [
        relative(RobustPCA(sparsity=s).fit(X).low_rank_, clean)
        for s in (1.0, 1.4, 2.0, 2.8)
    ]
    model = RobustPCA().fit(X)
    found = relative(model.low_rank_, clean)
    assert found < 1.1 * min(errors) < errors[0]
    assert found < relative(X, clean)  # untouched
    for k in (10, 20, 30, 40):
        plain = PCA(k).fit(X)
        assert found < relative(plain.inverse_transform(plain.transform(X)), clean)
    values, errors = model.candidates_.T
    best = values[errors.argmin()]
    assert best / 2**0.5 < model.relative_sparsity_ < best * 2**0.5


def test_the_choice_removes_connected_errors():
    # A square moves over a scene that is lit in two ways. Next to the square is more
    # square, so that its entries are easy to predict, and must yet not be kept.
    rng = np.random.default_rng(0)
    light = np.stack([np.ones(60), np.sin(np.arange(60) / 9)])
    scene = 100 + light.T @ (20 * rng.standard_normal((2, 400)))
    X = scene.reshape(60, 20, 20) + rng.standard_normal((60, 20, 20))
    for time, frame in enumerate(X):
        frame[5:10, time % 16 : time % 16 + 5] = 200
    X = X.reshape(60, -1)
    found = relative(RobustPCA().fit(X).low_rank_, scene)
    plain = PCA(2).fit(X)
    assert found < 0.4 * relative(plain.inverse_transform(plain.transform(X)), scene)
    assert found < 0.2 * relative(X, scene)


def test_the_choice_keeps_exact_recovery(rng):
    clean, X = planted(rng)
    model = RobustPCA().fit(X)
    assert model.relative_sparsity_ == 1.0
    assert relative(model.low_rank_, clean) < 1e-6
    given = RobustPCA(sparsity=1.0).fit(X)
    assert_array_equal(model.low_rank_, given.low_rank_)
    assert given.candidates_.shape == (0, 2)


def test_number_of_components_by_share_of_the_variance(rng):
    _, X = planted(rng, noise=0.5)
    full = RobustPCA(sparsity=1.0).fit(X)
    assert full.rank_ > 10
    shares = np.cumsum(full.explained_variance_ratio_)
    k = RobustPCA(0.9, sparsity=1.0).fit(X).n_components_
    assert shares[k - 2] < 0.9 <= shares[k - 1]
    for wrong in (0.0, 1.5, "all"):
        with pytest.raises(ValueError, match="`n_components` must be an integer from"):
            RobustPCA(wrong).fit(X)


def test_grid_search_finds_the_rank(rng):
    _, X = planted(rng, n=120, d=40)
    search = GridSearchCV(
        RobustPCA(sparsity=1.0, tol=1e-4), {"n_components": [1, 3]}, cv=2
    )
    assert search.fit(X).best_params_ == {"n_components": 3}
    assert search.best_score_ < 0
    assert RobustPCA(sparsity=1.0).fit(X).score(np.full((2, 40), np.nan)) == 0.0


@pytest.mark.parametrize("level", [0.1, 1.0])
def test_the_noise_level_and_the_rank_are_found(rng, level):
    clean, X = planted(rng, n=200, d=100, noise=level)
    model = RobustPCA(sparsity=1.0, noise="auto").fit(X)
    assert 0.9 * level < model.noise_ < 1.2 * level
    assert model.rank_ == 3
    assert RobustPCA(sparsity=1.0).fit(X).rank_ > 10
    # The split leaves the noise in neither part.
    left = X - model.low_rank_ - model.sparse_
    assert 0.5 * level < left.std() < 1.5 * level
    given = RobustPCA(sparsity=1.0, noise=model.noise_).fit(X)
    assert_allclose(given.low_rank_, model.low_rank_, atol=1e-3 * np.abs(clean).max())
    codes = model.transform(X)
    assert relative(codes, (model.low_rank_ - model.mean_) @ model.components_.T) < 0.02


def sine(components, basis):
    found, span = np.linalg.qr(components.T)[0], np.linalg.qr(basis.T)[0]
    return np.linalg.norm(found - span @ (span.T @ found), 2)


@pytest.mark.parametrize("kind", ["cluster", "line", "scattered"])
def test_outlying_rows_neither_attract_components_nor_pass(rng, kind):
    n, d, k = 200, 20, 3
    basis = rng.standard_normal((k, d))
    X = rng.standard_normal((n, k)) @ basis + 0.1 * rng.standard_normal((n, d))
    bad = np.arange(n) < 0.2 * n
    direction = rng.standard_normal(d)
    if kind == "cluster":
        X[bad] = 10 * direction + rng.standard_normal((bad.sum(), d))
    elif kind == "line":
        X[bad] = np.outer(rng.uniform(5, 15, bad.sum()), direction)
    else:
        X[bad] = 5 * rng.standard_normal((bad.sum(), d))
    model = RobustPCA(k, errors="rows").fit(X)
    assert sine(model.components_, basis) < 0.03
    assert sine(PCA(k).fit(X).components_, basis) > 0.5
    assert not model.support_[bad].any()
    assert model.support_[~bad].mean() > 0.75
    scores = model.score_samples(X)
    assert scores[bad].max() < scores[~bad].min() <= 0
    assert model.low_rank_.shape == model.sparse_.shape == X.shape
    assert_allclose(-np.linalg.norm(model.sparse_of(X), axis=1), scores)


def test_errors_of_new_rows_are_found_by_cell(rng):
    clean, X = planted(rng, n=250)
    model = RobustPCA(sparsity=1.0).fit(X[:150])
    X[200, :5] = np.nan
    sparse = model.sparse_of(X[150:])
    wrong = (clean != X)[150:] & ~np.isnan(X[150:])
    assert_array_equal(np.abs(sparse) > 0.1, wrong)
    assert_allclose(sparse[wrong], (X - clean)[150:][wrong], atol=1e-3)
    scores = model.score_samples(clean[150:])
    assert scores.min() > -1e-3
    assert model.score_samples(X[150:]).min() < -19


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_memory_and_files_are_small(rng, dtype):
    clean, X = planted(rng, n=2000, d=400, rank=4)
    X = X.astype(dtype)
    model = RobustPCA(sparsity=1.0)
    tracemalloc.start()
    model.fit(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Two arrays of the size of the data beside it; blocks and factors are small.
    assert peak < 2.7 * X.nbytes
    assert relative(model.low_rank_, clean) < 1e-5
    assert len(pickle.dumps(model)) < 0.3 * X.nbytes
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.sparse_, model.sparse_)
    assert_array_equal(again.transform(X[:5]), model.transform(X[:5]))


def test_data_that_are_low_rank_only_roughly_settle(rng):
    images = load_digits().data[:400]
    settled = RobustPCA(sparsity=1.0).fit(images)
    exact = RobustPCA(sparsity=1.0, tol=1e-5, max_iter=5000).fit(images)
    assert settled.n_iter_ < 60 < exact.n_iter_
    assert settled.objective_[-1] < 1.003 * exact.objective_[-1]
    assert relative(settled.low_rank_, exact.low_rank_) < 0.02
    # Warnings are errors here: rows stop when they are more accurate than the fit.
    codes = settled.transform(images)
    assert relative(codes, settled.fit_transform(images)) < 0.02


def test_sparse_matrices_are_those_of_the_dense_array(rng):
    _, X = planted(rng, n=60, d=30)
    X[np.abs(X) < 1] = 0
    dense, sparse = (RobustPCA(sparsity=1.0).fit(rows) for rows in (X, csr_array(X)))
    assert_array_equal(dense.components_, sparse.components_)
    assert_array_equal(dense.transform(X[:5]), sparse.transform(csr_array(X[:5])))
