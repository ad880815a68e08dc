"""Robust PCA: exact recovery, codes by two derivations, invariances, sentences."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from eigenheads.estimators import RobustPCA


def relative(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


def draw(rng, n=120, d=80, rank=3, share=0.05, size=20.0, n_new=0, noise=0.0):
    """Low-rank data about a mean, and the same with errors of +-size deviations."""
    factors = rng.standard_normal((n + n_new, rank))
    clean = factors @ rng.standard_normal((rank, d)) + 5 * rng.standard_normal(d)
    clean = clean + noise * rng.standard_normal(clean.shape)
    errors = size * np.sqrt(rank) * rng.choice([-1.0, 1.0], clean.shape)
    corrupted = np.where(rng.random(clean.shape) < share, clean + errors, clean)
    return clean, corrupted


def test_recovers_the_low_rank_part_exactly(rng):
    clean, X = draw(rng)
    model = RobustPCA(tol=1e-8).fit(X)
    # The residual is relative to the low-rank part, so the error is a few times tol.
    assert relative(model.low_rank_, clean) < 1e-7
    assert model.rank_ == model.n_components_ == 3
    # An entry may keep a trace of the size of the tolerance.
    assert_array_equal(np.abs(model.sparse_) > 1e-4, clean != X)
    assert np.mean(model.sparse_ == 0) > 0.9
    assert_allclose(model.low_rank_ + model.sparse_, X, atol=1e-6)
    assert_allclose(model.mean_, clean.mean(axis=0), atol=1e-5)
    plain = PCA(3).fit(X)
    assert relative(plain.inverse_transform(plain.transform(X)), clean) > 0.1


def test_attributes_are_those_of_the_pca_of_the_low_rank_part(rng):
    model = RobustPCA().fit(draw(rng)[1])
    plain = PCA(3).fit(model.low_rank_)
    assert_allclose(model.singular_values_, plain.singular_values_, rtol=1e-9)
    assert_allclose(model.explained_variance_, plain.explained_variance_, rtol=1e-9)
    assert_allclose(model.explained_variance_ratio_.sum(), 1.0)
    assert_allclose(
        np.abs(model.components_ @ plain.components_.T), np.eye(3), atol=1e-6
    )
    largest = np.abs(model.components_).argmax(axis=1)
    assert (model.components_[np.arange(3), largest] > 0).all()


def test_codes_of_new_rows_stand_ten_percent_of_errors(rng):
    clean, X = draw(rng, n_new=100, share=0.1)
    model = RobustPCA().fit(X[:120])
    wanted = (clean[120:] - model.mean_) @ model.components_.T
    assert relative(model.transform(X[120:]), wanted) < 1e-4  # promised: 0.05
    plain = PCA(3).fit(X[:120])
    off = relative(plain.transform(X[120:]), plain.transform(clean[120:]))
    assert off > 0.5
    cleaned = model.inverse_transform(model.transform(X[120:]))
    assert relative(cleaned, clean[120:]) < 1e-4


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_transform_of_training_rows_is_what_the_fit_found(rng, missing):
    # Dense noise, so that nothing is recovered exactly: the identity needs no luck.
    _, X = draw(rng, n=80, d=40, noise=0.3)
    X[rng.random(X.shape) < missing] = np.nan
    model = RobustPCA(tol=1e-7, max_iter=5000)
    codes = model.fit_transform(X)
    assert model.rank_ > 3
    # The sparse part is dense here, and the two solvers stop at 1e-7 of their own.
    assert relative(model.transform(X), codes) < 1e-5


def code_by_the_dual(model, row):
    r"""Maximise g.r - |B^T g|^2 / 2 over |g| <= lambda; the code is S^{1/2} B^T g."""
    seen = ~np.isnan(row)
    root = np.sqrt(model.singular_values_)
    factor = (model.components_.T * root)[seen]
    rest = (row - model.mean_)[seen]

    def negative(g):
        half = factor.T @ g
        return half @ half / 2 - g @ rest, factor @ half - rest

    bounds = [(-model.sparsity_, model.sparsity_)] * len(rest)
    found = minimize(
        negative,
        np.zeros(len(rest)),
        jac=True,
        bounds=bounds,
        method="L-BFGS-B",
        options={"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-10},
    )
    return root * (factor.T @ found.x)


def test_the_code_is_the_one_of_the_dual_problem(rng):
    _, X = draw(rng, n=60, d=30, noise=0.3, n_new=3)
    model = RobustPCA(tol=1e-9, max_iter=5000).fit(X[:60])
    rows = X[60:]
    rows[1, :10] = np.nan
    for row, code in zip(rows, model.transform(rows), strict=True):
        assert relative(code_by_the_dual(model, row), code) < 1e-3


def test_missing_values_are_filled_in(rng):
    clean, X = draw(rng)
    hidden = rng.random(X.shape) < 0.2
    X[hidden] = np.nan
    model = RobustPCA().fit(X)
    assert relative(model.low_rank_, clean) < 1e-4
    assert not model.sparse_[hidden].any()
    # Theorem 1.2 of Candès et al.: as if the matrix were as small as what is seen.
    price = 1 / np.sqrt((~hidden).mean() * 120)
    assert_allclose(model.sparsity_, price, rtol=1e-12)
    codes = model.transform(np.vstack([X[:2], np.full((1, X.shape[1]), np.nan)]))
    assert_array_equal(codes[2], np.zeros(3))  # nothing known: the mean
    assert relative(model.inverse_transform(codes)[:2], clean[:2]) < 1e-4


def test_number_of_components_does_not_change_the_pursuit(rng):
    _, X = draw(rng)
    full, two = RobustPCA().fit(X), RobustPCA(n_components=2).fit(X)
    assert_array_equal(full.low_rank_, two.low_rank_)
    assert (two.rank_, two.n_components_) == (3, 2)
    assert_array_equal(full.transform(X)[:, :2], two.transform(X))
    assert RobustPCA(n_components=50).fit(X).n_components_ == 3


def test_follows_shift_scale_and_order(rng):
    _, X = draw(rng)
    model = RobustPCA(tol=1e-8).fit(X)
    shift = 1e3 * rng.standard_normal(X.shape[1])
    moved = RobustPCA(tol=1e-8).fit(7 * X + shift)
    assert_allclose(moved.low_rank_, 7 * model.low_rank_ + shift, atol=1e-4)
    assert_allclose(moved.transform(7 * X + shift), 7 * model.transform(X), atol=1e-4)
    rows, columns = rng.permutation(X.shape[0]), rng.permutation(X.shape[1])
    mixed = RobustPCA(tol=1e-8).fit(X[rows][:, columns])
    assert_allclose(mixed.low_rank_, model.low_rank_[rows][:, columns], atol=1e-5)
    assert_allclose(mixed.components_, model.components_[:, columns], atol=1e-6)


@pytest.mark.parametrize("scale", [1e-140, 1e140])
def test_extreme_units_do_not_overflow(rng, scale):
    clean, X = draw(rng, n=60, d=40)
    model = RobustPCA().fit(scale * X)
    assert_allclose(model.low_rank_ / scale, clean, atol=1e-3)


def test_float32_stays_and_agrees(rng):
    _, X = draw(rng)
    single, double = RobustPCA().fit(X.astype(np.float32)), RobustPCA().fit(X)
    for name in ("components_", "mean_", "low_rank_", "sparse_", "singular_values_"):
        assert getattr(single, name).dtype == np.float32
    codes = single.transform(X.astype(np.float32))
    assert codes.dtype == single.inverse_transform(codes).dtype == np.float32
    assert_allclose(single.low_rank_, double.low_rank_, atol=1e-3)


def test_names_of_the_output(rng):
    pandas = pytest.importorskip("pandas")
    _, X = draw(rng)
    model = RobustPCA().set_output(transform="pandas")
    frame = model.fit_transform(pandas.DataFrame(X))
    assert list(frame.columns) == ["robustpca0", "robustpca1", "robustpca2"]


def test_cleans_digits_better_than_pca(rng):
    images = load_digits().data[:600]
    wrong = rng.random(images.shape) < 0.1
    X = np.where(wrong, rng.uniform(0, 16, images.shape), images)
    train, test = slice(0, 300), slice(300, 600)
    model = RobustPCA(sparsity=1.5, tol=1e-4).fit(X[train])
    ours = relative(model.inverse_transform(model.transform(X[test])), images[test])
    errors = []
    for k in (10, 15, 20, 25, 30, 40):  # PCA may choose with the answer in hand
        plain = PCA(k).fit(X[train])
        cleaned = plain.inverse_transform(plain.transform(X[test]))
        errors.append(relative(cleaned, images[test]))
    assert ours < 0.9 * min(errors)


def test_says_what_is_wrong(rng):
    X = draw(rng, n=20, d=10)[1]
    with pytest.raises(ValueError, match="`n_components` must be an integer from 1 to"):
        RobustPCA(n_components=11).fit(X)
    with pytest.raises(ValueError, match="`sparsity` must be a finite number > 0"):
        RobustPCA(sparsity=0.0).fit(X)
    with pytest.raises(ValueError, match="`tol` must be a finite number > 0"):
        RobustPCA(tol=-1.0).fit(X)
    with pytest.raises(ValueError, match="`max_iter` must be an integer >= 1"):
        RobustPCA(max_iter=0).fit(X)
    with pytest.raises(
        ValueError, match=r"no value at all in column 3\. Drop such col"
    ):
        RobustPCA().fit(np.where(np.arange(10) == 3, np.nan, X))
    with pytest.raises(ValueError, match="infinity"):
        RobustPCA().fit(np.where(np.arange(10) == 3, np.inf, X))
    with pytest.raises(NotFittedError):
        RobustPCA().transform(X)
    model = RobustPCA(tol=1e-3).fit(X)
    with pytest.raises(ValueError, match=r"shape \(n_samples, \d\); got \(2, 10\)"):
        model.inverse_transform(np.ones((2, 10)))


def test_warns_when_it_did_not_converge_and_when_nothing_is_left(rng):
    X = draw(rng)[1]
    with pytest.warns(
        ConvergenceWarning, match="the residual is .* after 1 iterat"
    ) as told:
        model = RobustPCA(max_iter=1).fit(X)
    assert told[0].filename == __file__
    with pytest.warns(
        ConvergenceWarning, match="2 of 2 rows did not converge after 10 it"
    ) as told:
        model.transform(X[:2])
    assert told[0].filename == __file__
    with pytest.warns(UserWarning, match=r"no components; no value varies\.$"):
        RobustPCA().fit(np.ones((4, 3)))
    with pytest.warns(UserWarning, match="no components.* Raise `sparsity`"):
        model = RobustPCA(sparsity=0.01, tol=0.05).fit(X)
    assert model.transform(X).shape == (len(X), 0)
    assert_allclose(model.low_rank_, np.broadcast_to(model.mean_, X.shape))


def test_prints_progress_on_request(rng, capsys):
    X = draw(rng)[1]
    noisy = X + rng.standard_normal(X.shape)
    RobustPCA(verbose=1).fit(noisy)
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0] == f"RobustPCA: choosing with {len(X)} rows and {X.shape[1]} columns"
    )
    assert lines[1] == "RobustPCA: sparsity 1: looking for errors"
    assert any("sparsity 1: error with planted errors " in line for line in lines)
    steps = [line for line in lines if "iteration" in line]
    assert steps[0].startswith("RobustPCA: iteration 1, residual ")
    assert lines[2] == steps[0]  # of the first pursuit of the choice, not of the last
