"""AttentionPCA is PCA, by descent, without decomposing anything large."""

import functools
import tracemalloc

import numpy as np
import pytest
import scipy.linalg
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import scale

from eigenheads.datasets import GaussianPrompts
from eigenheads.estimators import AttentionPCA
from eigenheads.estimators._attention_pca_training import whitened_head
from eigenheads.theory import PCALandscape


def gaussian(n, spectrum, seed=0):
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((len(spectrum),) * 2))[0]
    return rng.standard_normal((n, len(spectrum))) * np.sqrt(spectrum) @ turn.T + 3.0


@functools.cache
def data(name):
    if name == "digits":
        return load_digits().data
    if name in ("wine", "standardised wine"):
        X = load_wine().data
        return scale(X) if "standardised" in name else X
    if name == "cancer":
        return scale(load_breast_cancer().data)
    spectra = {
        "slow decay": 1 / np.arange(1, 101.0),
        "no gap": np.r_[np.ones(6), np.full(30, 0.99)],
    }
    return gaussian(3000, spectra[name])


NAMES = ("digits", "wine", "standardised wine", "cancer", "slow decay", "no gap")


def explained(components, X):
    basis = np.linalg.qr(components.T)[0]
    return np.var(X @ basis, axis=0, ddof=1).sum()


@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("name", NAMES)
def test_explains_as_much_as_pca(name, k):
    X = data(name)
    exact, model = PCA(k).fit(X), AttentionPCA(k, random_state=0).fit(X)
    assert explained(model.components_, X) > 0.999 * exact.explained_variance_.sum()
    total = exact.explained_variance_ratio_.sum()
    assert_allclose(model.explained_variance_ratio_.sum(), total, rtol=1e-3)
    assert_allclose(model.components_ @ model.components_.T, np.eye(k), atol=1e-10)
    assert np.all(np.diff(model.explained_variance_) <= 0)
    largest = np.argmax(np.abs(model.components_), axis=1)
    assert np.all(model.components_[np.arange(k), largest] > 0)


def test_a_small_tolerance_gives_the_components_of_pca():
    X = data("standardised wine")
    exact = PCA(3).fit(X)
    model = AttentionPCA(3, tol=1e-9, max_iter=2000, random_state=0).fit(X)
    # A residual of 1e-9 σ turns a direction by at most 1e-9 over the relative gap, 0.2.
    cosines = np.abs(np.sum(model.components_ * exact.components_, axis=1))
    assert_allclose(cosines, 1, atol=1e-12)
    assert_allclose(model.explained_variance_, exact.explained_variance_, rtol=1e-12)
    assert_allclose(np.abs(model.transform(X)), np.abs(exact.transform(X)), atol=1e-6)
    back = model.inverse_transform(model.transform(X))
    assert_allclose(back, exact.inverse_transform(exact.transform(X)), atol=1e-6)


def forbid_large_decompositions(monkeypatch, k):
    def guarded(function):
        def call(a, *args, **kwargs):
            if max(np.shape(a)[-2:]) > k:
                raise AssertionError(f"decomposed a matrix of shape {np.shape(a)}")
            return function(a, *args, **kwargs)

        return call

    for library in (np.linalg, scipy.linalg):
        for name in ("eigh", "eig", "eigvalsh", "eigvals", "svd", "svdvals"):
            if hasattr(library, name):
                monkeypatch.setattr(library, name, guarded(getattr(library, name)))


@pytest.mark.parametrize("n_tokens", [None, 50])
def test_nothing_larger_than_k_by_k_is_decomposed(monkeypatch, n_tokens):
    X = data("slow decay")
    forbid_large_decompositions(monkeypatch, 5)
    with pytest.raises(AssertionError, match="decomposed"):
        np.linalg.svd(X)
    AttentionPCA(5, n_tokens=n_tokens, tol=0.05, random_state=0).fit(X).partial_fit(X)


def test_memory_is_that_of_a_batch():
    X = gaussian(20_000, np.linspace(2, 1, 60))
    model = AttentionPCA(4, batch_size=512, tol=0.05, random_state=0)
    tracemalloc.start()
    model.fit(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # A batch is 512 · 60 doubles = 0.25 MB; X is 9.6 MB.
    assert peak < 1.5e6


def test_the_step_is_along_the_gradient_of_theorys_risk():
    covariance = np.cov(gaussian(500, [5.0, 3.0, 2.0, 1.0, 0.5]).T)
    basis = np.linalg.qr(np.random.default_rng(1).standard_normal((5, 2)))[0]
    head = whitened_head(basis, covariance @ basis, 1e-15)
    M, W = head.encoder, head.decoder
    assert_allclose(M.T @ covariance @ M, np.eye(2), atol=1e-12)
    theory = PCALandscape(GaussianPrompts(covariance), inverse_temperature=1.0, rank=2)
    gradient = theory.gradient(M)
    assert_allclose(gradient, -2 * (covariance @ W - W * head.lengths), atol=1e-10)
    # For this span no other M is better.
    risk = theory.risk(M)
    rng = np.random.default_rng(2)
    for _ in range(20):
        other = M @ (np.eye(2) + 0.1 * rng.standard_normal((2, 2)))
        assert theory.risk(other) >= risk


def test_units_do_not_matter():
    X = data("digits")
    model = AttentionPCA(3, random_state=0).fit(X)
    scaled = AttentionPCA(3, random_state=0).fit(1e-6 * X)
    assert_allclose(scaled.components_, model.components_, atol=1e-8)


def test_a_stream_explains_about_as_much_as_incremental_pca():
    X = data("slow decay")
    ours, theirs = AttentionPCA(4, random_state=0), IncrementalPCA(4)
    for batch in np.array_split(X, 15):
        ours.partial_fit(batch)
        theirs.partial_fit(batch)
    assert_allclose(ours.mean_, X.mean(axis=0), rtol=1e-12)
    assert_allclose(ours.total_variance_, np.var(X, axis=0, ddof=1).sum(), rtol=1e-12)
    assert (ours.n_samples_seen_, ours.n_iter_) == (3000, 15)
    best = PCA(4).fit(X).explained_variance_.sum()
    assert (
        explained(ours.components_, X) > explained(theirs.components_, X) - 0.01 * best
    )
    assert explained(ours.components_, X) > 0.98 * best


def test_one_batch_of_a_stream_is_a_fit():
    X = data("standardised wine")
    stream = AttentionPCA(2, tol=1e-6, random_state=0).partial_fit(X)
    whole = AttentionPCA(2, tol=1e-6, random_state=0).fit(X)
    assert_allclose(stream.components_, whole.components_, atol=1e-3)


def test_a_stream_of_single_rows_is_read():
    model = AttentionPCA(2, random_state=0)
    for row in data("digits")[:30]:
        model.partial_fit(row[None])
    assert model.n_samples_seen_ == 30
    assert np.isfinite(model.components_).all()


def test_finite_prompts_find_the_subspace():
    X = gaussian(6000, [8.0, 6.0, 1.0, 1.0, 0.5, 0.5])
    best = PCA(2).fit(X).explained_variance_.sum()
    for head in ("softmax", "linear"):
        model = AttentionPCA(
            2, head=head, n_tokens=100, max_iter=15, tol=3e-3, random_state=0
        ).fit(X)
        assert explained(model.components_, X) > 0.99 * best
        model = AttentionPCA(2, head=head, n_tokens=100, random_state=0)
        for batch in np.array_split(X, 6):
            model.partial_fit(batch)
        assert explained(model.components_, X) > 0.98 * best


def test_too_few_iterations_are_told():
    with pytest.warns(ConvergenceWarning, match="stopped after 1 iterations"):
        AttentionPCA(2, max_iter=1, random_state=0).fit(data("digits"))


def test_fewer_dimensions_than_components_are_no_obstacle():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 2)) @ rng.standard_normal((2, 6))
    for dtype in (np.float64, np.float32):
        model = AttentionPCA(4, random_state=0).fit(X.astype(dtype))
        assert_allclose(model.explained_variance_ratio_.sum(), 1, rtol=1e-5)
        gram = model.components_ @ model.components_.T
        assert_allclose(gram, np.eye(4), atol=1e-5)
    constant = AttentionPCA(1, random_state=0).fit(np.ones((10, 3)))
    assert constant.explained_variance_ratio_[0] == 0


def test_progress_is_printed(capsys):
    AttentionPCA(2, verbose=1, random_state=0).fit(data("wine"))
    assert "explained variance ratio 0.99" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"n_components": 14},
            "`n_components` must be an integer from 1 to 13; got 14",
        ),
        ({"head": "softmix"}, "Did you mean 'softmax'"),
        ({"n_tokens": 1}, "`n_tokens` must be an integer >= 2"),
        ({"tol": 0.0}, "`tol` must be a finite number > 0"),
        ({"batch_size": 0}, "`batch_size`"),
        ({"max_iter": 0}, "`max_iter`"),
    ],
)
def test_bad_parameters_are_named(parameters, message):
    with pytest.raises(ValueError, match=message):
        AttentionPCA(**parameters).fit(data("wine"))


def test_a_stream_keeps_its_number_of_components():
    model = AttentionPCA(2, random_state=0).partial_fit(data("wine"))
    with pytest.raises(ValueError, match="as in earlier calls"):
        model.set_params(n_components=3).partial_fit(data("wine"))
    with pytest.raises(ValueError, match=r"of shape \(n_samples, 2\)"):
        model.inverse_transform(np.zeros((3, 4)))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's own, of the overflow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("read", ["fit", "partial_fit"])
def test_numbers_whose_squares_overflow_are_refused(read):
    X = (data("wine") * 1e20).astype(np.float32)
    with pytest.raises(
        ValueError, match=r"squares are finite; got .* float32\. Rescale"
    ):
        getattr(AttentionPCA(2, random_state=0), read)(X)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_sparse_rows_are_those_of_the_dense_array(dtype):
    X = load_digits().data[:500].astype(dtype)
    dense = AttentionPCA(4, tol=1e-4, random_state=0).fit(X)
    sparse = AttentionPCA(4, tol=1e-4, random_state=0).fit(csr_array(X))
    assert_allclose(np.abs(sparse.components_), np.abs(dense.components_), atol=1e-2)
    ratio = dense.explained_variance_ratio_
    assert_allclose(sparse.explained_variance_ratio_, ratio, rtol=1e-4)
    codes = dense.transform(csr_array(X))
    assert codes.dtype == dtype
    assert_allclose(codes, dense.transform(X), atol=1e-3)


def test_weights_count_rows(rng):
    X = rng.standard_normal((60, 5)) * [4, 3, 2, 1, 1] + 2.0
    weights = rng.integers(0, 4, 60)
    weighed = AttentionPCA(2, tol=1e-7, random_state=0).fit(X, sample_weight=weights)
    exact = PCA(2).fit(np.repeat(X, weights, axis=0))
    assert_allclose(np.abs(weighed.components_), np.abs(exact.components_), atol=1e-5)
    assert_allclose(weighed.explained_variance_, exact.explained_variance_, rtol=1e-9)
    assert_allclose(weighed.mean_, exact.mean_)
    sparse = AttentionPCA(2, tol=1e-7, random_state=0)
    sparse.fit(csr_array(X), sample_weight=weights)
    assert_allclose(sparse.components_, weighed.components_, atol=1e-6)
    # A share of the variance does not depend on the unit of the weights.
    shares = [
        AttentionPCA(0.9, tol=1e-5, random_state=0).fit(X, sample_weight=unit * weights)
        for unit in (1.0, 1 / weights.sum())
    ]
    assert len(shares[0].components_) == len(shares[1].components_) > 2
    with pytest.raises(ValueError, match="None for finite prompts"):
        AttentionPCA(2, n_tokens=20).fit(X, sample_weight=weights)
    with pytest.raises(ValueError, match="None for batches"):
        AttentionPCA(2).fit(lambda: iter([X]), sample_weight=weights)


def test_weights_count_rows_of_a_stream(rng):
    X = rng.standard_normal((90, 5)) * [4, 3, 2, 1, 1] + 2.0
    weights = rng.integers(0, 4, 90)
    weighed, repeated = (AttentionPCA(2, tol=1e-7, random_state=0) for _ in range(2))
    for rows in np.array_split(np.arange(90), 3):
        weighed.partial_fit(X[rows], sample_weight=weights[rows])
        repeated.partial_fit(np.repeat(X[rows], weights[rows], axis=0))
    assert_allclose(weighed.components_, repeated.components_, atol=1e-5)
    assert_allclose(weighed.explained_variance_, repeated.explained_variance_)
    assert_allclose(weighed.mean_, repeated.mean_)
    assert weighed.n_samples_seen_ == weights.sum()
    with pytest.raises(ValueError, match="None for batches"):
        weighed.partial_fit(lambda: iter([X]), sample_weight=weights)
    with pytest.raises(ValueError, match="None for finite prompts"):
        AttentionPCA(2, n_tokens=20).partial_fit(X, sample_weight=weights)


@pytest.mark.parametrize("is_read_again", [True, False])
def test_batches_may_be_sparse(is_read_again):
    X = load_digits().data[:500]
    dense, batches = np.array_split(X, 4), np.array_split(np.arange(500), 4)
    sparse = [csr_array(X)[rows] for rows in batches]
    source = (lambda: iter(sparse)) if is_read_again else iter(sparse)
    found = AttentionPCA(3, random_state=0).fit(source)
    wanted = AttentionPCA(3, random_state=0).fit(lambda: iter(dense))
    assert_array_equal(found.components_, wanted.components_)
    assert found.n_components_ == 3


@pytest.mark.parametrize("share", [0.3, 0.8, 0.999])
def test_a_share_of_the_variance(share):
    X = load_digits().data[:600]
    model, exact = AttentionPCA(share, random_state=0).fit(X), PCA(share).fit(X)
    assert abs(model.n_components_ - exact.n_components_) <= 1
    assert len(model.components_) == model.n_components_
    assert model.explained_variance_ratio_.sum() >= share
    with pytest.raises(ValueError, match="an integer for `partial_fit`"):
        AttentionPCA(share).partial_fit(X)


@pytest.mark.parametrize(("part", "number"), [("indices", 9), ("indptr", 10**6)])
def test_a_damaged_sparse_matrix_is_refused(rng, part, number):
    # Its products would read outside the arrays.
    rows = csr_array(rng.standard_normal((20, 5)))
    getattr(rows, part)[3] = number
    with pytest.raises(ValueError, match="`X` must be a valid sparse matrix; got a"):
        AttentionPCA(2).fit(rows)


def test_drops_in_for_incremental_pca():
    X = data("standardised wine")
    settings = {"tol": 1e-9, "max_iter": 2000, "random_state": 0}
    for whiten in (False, True):
        ours = AttentionPCA(3, whiten=whiten, **settings).fit(X)
        theirs = PCA(3, whiten=whiten).fit(X)
        for name in ("singular_values_", "explained_variance_", "noise_variance_"):
            assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-9)
        # Whitening changes coordinates, not the covariance.
        assert_allclose(
            ours.get_covariance(), PCA(3).fit(X).get_covariance(), atol=1e-6
        )
        codes = ours.transform(X)
        assert_allclose(np.abs(codes), np.abs(theirs.transform(X)), atol=1e-6)
        back = theirs.inverse_transform(theirs.transform(X))
        assert_allclose(ours.inverse_transform(codes), back, atol=1e-6)
    # Of one batch, a stream is exact as well.
    stream = AttentionPCA(3, **settings).partial_fit(X)
    batch = IncrementalPCA(3, batch_size=len(X)).fit(X)
    public = {name for name in vars(batch) if name.endswith("_")}
    assert public - set(vars(stream)) == {"batch_size_", "var_"}
    assert_allclose(stream.noise_variance_, batch.noise_variance_, rtol=1e-2)
    assert AttentionPCA(13, random_state=0).fit(X).noise_variance_ == 0.0
    with pytest.raises(ValueError, match="`whiten` must be True or False; got 'yes'"):
        AttentionPCA(2, whiten="yes").fit(X)


def test_sparse_batches_are_those_of_the_dense_array():
    X = np.where(np.abs(data("slow decay")) < 2.5, 0.0, data("slow decay"))
    dense, sparse = AttentionPCA(2, random_state=0), AttentionPCA(2, random_state=0)
    for part in np.array_split(X, 5):
        dense.partial_fit(part)
        sparse.partial_fit(csr_array(part))
    assert_allclose(sparse.components_, dense.components_, atol=1e-8)
    assert_allclose(sparse.noise_variance_, dense.noise_variance_)
