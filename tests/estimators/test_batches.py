"""Fits over batches are those over all bags at once, with one batch in memory."""

import weakref

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_array_equal
from sklearn.preprocessing import StandardScaler

from eigenheads.datasets import SingleLocation
from eigenheads.estimators import (
    AttentionPCA,
    SingleLocationClassifier,
    SingleLocationRegressor,
    TokenTransformer,
    row_blocks,
)
from eigenheads.estimators._location import _data

# Sums in another order differ by rounding, 1e-15 of their size times the number of
# passes; the optimiser's path keeps it small until it stops, at the same iteration.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(5)
    return SingleLocation(d=8, n_tokens=6, noise=0.1).sample(500, rng)[:2]


@pytest.fixture(autouse=True)
def _several_blocks(monkeypatch):
    """Short streams are kept in memory; these count as long."""
    monkeypatch.setattr(_data, "_SMALL_STREAM", 1000)


def test_a_short_stream_is_read_once_for_counts_and_once_into_memory(data, monkeypatch):
    X, y = data
    monkeypatch.setattr(_data, "_SMALL_STREAM", X.size + 1)
    stream = Again(X, y)
    streamed = SingleLocationRegressor(alpha=1e-3).fit(stream)
    assert_same(streamed, SingleLocationRegressor(alpha=1e-3).fit(X, y))
    assert stream.passes <= 3


# A stream has no kernel features beside the features.
LINEAR = {"head": "softmax"}


def batches_of(X, y, weights=None, size=140):
    for start in range(0, len(y), size):
        rows = slice(start, start + size)
        own = () if weights is None else (weights[rows],)
        yield (X[rows], y[rows], *own)


class Again:
    """Can be iterated again and again, like a data loader."""

    def __init__(self, *data):
        self.data = data
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        return batches_of(*self.data)


def assert_same(one, other):
    np.testing.assert_allclose(one.coef_key_, other.coef_key_, **CLOSE)
    np.testing.assert_allclose(one.coef_value_, other.coef_value_, **CLOSE)
    np.testing.assert_allclose(one.intercept_, other.intercept_, **CLOSE)
    np.testing.assert_allclose(one.objective_, other.objective_, rtol=1e-9)
    assert one.start_ == other.start_


@pytest.mark.parametrize(
    "settings",
    [
        LINEAR,
        {"head": "radial"},
        {"head": "erf"},
        {**LINEAR, "fit_intercept": False},
        {**LINEAR, "coherence": 0.0},
        {"l1_ratio": 0.3, "alpha": 1e-3},
    ],
)
def test_a_stream_gives_the_fit_in_memory(data, settings):
    X, y = data
    whole = SingleLocationRegressor(**settings).fit(X, y)
    stream = Again(X, y)
    streamed = SingleLocationRegressor(**settings).fit(stream)
    assert_same(streamed, whole)
    assert stream.passes > 10
    assert streamed.n_features_in_ == 8
    np.testing.assert_allclose(streamed.predict(X), whole.predict(X), atol=1e-6)


def test_callables_iterators_and_ragged_bags_are_batches_too(data):
    X, y = data
    bags = [bag[: 3 + i % 4] for i, bag in enumerate(X)]
    whole = SingleLocationRegressor(**LINEAR).fit(bags, y)
    called = SingleLocationRegressor(**LINEAR).fit(lambda: batches_of(bags, y))
    assert_same(called, whole)
    once = SingleLocationRegressor(**LINEAR).fit(batches_of(bags, y))
    np.testing.assert_array_equal(once.coef_key_, called.coef_key_)
    assert once.n_iter_ == called.n_iter_


def test_weights_are_carried_and_bags_without_weight_left_out(data):
    X, y = data
    weights = np.random.default_rng(0).integers(0, 3, size=len(y)).astype(float)
    whole = SingleLocationRegressor(**LINEAR).fit(X, y, sample_weight=weights)
    assert_same(SingleLocationRegressor(**LINEAR).fit(Again(X, y, weights)), whole)


def test_an_iterator_leaves_no_files(data, tmp_path, monkeypatch):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    X, y = data
    seen = []

    def batches():
        yield from batches_of(X, y)
        seen.extend(tmp_path.rglob("*.safetensors"))

    SingleLocationRegressor().fit(batches())
    assert len(seen) == 4
    assert not list(tmp_path.iterdir())


def test_single_precision_stays(data):
    X, y = data[0].astype(np.float32), data[1]
    model = SingleLocationRegressor().fit(lambda: batches_of(X, y))
    assert model.coef_key_.dtype == model.coef_value_.dtype == np.float32


def test_a_dask_array_is_read_block_by_block(data):
    dask = pytest.importorskip("dask.array")
    X, y = data
    whole = SingleLocationRegressor(**LINEAR).fit(X, y)
    chunked = dask.from_array(X, chunks=(120, 3, 5))
    targets = dask.from_array(y, chunks=300)
    model = SingleLocationRegressor(**LINEAR).fit(chunked, targets)
    assert_same(model, whole)
    np.testing.assert_allclose(model.predict(chunked), model.predict(X), rtol=1e-12)
    assert_array_equal(model.locate(chunked), model.locate(X))
    assert [len(block) for block in row_blocks(chunked)] == [120, 120, 120, 120, 20]
    with pytest.raises(
        ValueError, match="`y` must be one target per bag; got 7 targets"
    ):
        SingleLocationRegressor().fit(chunked, y[:7])
    with pytest.raises(ValueError, match="requires y to be passed"):
        SingleLocationRegressor().fit(chunked)


@pytest.mark.parametrize(
    ("stream", "sentence"),
    [
        (lambda: iter([]), "`X` must be at least one batch; got none"),
        (lambda: iter([1, 2]), "`X` must be batches .*a int as batch 0"),
        (lambda: iter([(np.ones((2, 2, 2)),)]), "a tuple as batch 0"),
        (lambda: iter([(np.full((2, 2, 2), np.nan), [0, 1])]), "got NaN in bag 0"),
    ],
)
def test_junk_gets_a_sentence(stream, sentence):
    with pytest.raises(ValueError, match=f"SingleLocationRegressor: .*{sentence}"):
        SingleLocationRegressor().fit(stream)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_classifier_gives_the_fit_in_memory(data, n_classes):
    """Sorted by class, so that no batch but one sees two of them."""
    order = np.argsort(data[1])
    X = data[0][order]
    labels = np.repeat(["low", "mid", "topmost"][-n_classes:], 500 // n_classes)
    X, weights = X[: len(labels)], np.linspace(1, 2, len(labels))
    weights[::7] = 0
    settings = {"alpha": 0.05, "fit_intercept": n_classes == 2}
    whole = SingleLocationClassifier(**settings).fit(X, labels, weights)
    stream = Again(X, labels, weights)
    streamed = SingleLocationClassifier(**settings).fit(stream)
    assert_array_equal(streamed.classes_, whole.classes_)
    assert_same(streamed, whole)
    assert stream.passes > 10
    assert_array_equal(streamed.predict(X), whole.predict(X))


def test_a_classifier_wants_two_classes_in_all_batches_together(data):
    X, y = data
    with pytest.raises(ValueError, match="two classes with positive weight; got one"):
        SingleLocationClassifier().fit(lambda: batches_of(X, np.zeros(len(y), int)))


def test_attention_pca_learns_from_the_blocks_of_a_dask_array():
    """Error of a stream against all rows: of order √(d/n) over the gap, here 0.02."""
    dask = pytest.importorskip("dask.array")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6000, 8)) * np.array([4.0, 3, 1, 1, 1, 1, 1, 1])
    model = AttentionPCA(2, random_state=0)
    for block in row_blocks(dask.from_array(X, chunks=(1000, 4))):
        model.partial_fit(block)
    whole = AttentionPCA(2, random_state=0).fit(X)
    overlap = np.linalg.svd(model.components_ @ whole.components_.T, compute_uv=False)
    assert overlap.min() > np.sqrt(1 - 0.05**2)


def test_attention_pca_reads_streams_itself_one_batch_at_a_time():
    X = np.random.default_rng(0).standard_normal((3000, 4)) * [3, 2, 1, 1]
    made = []

    def batches():
        for part in np.split(X, 10):
            # The one that was read last may live; those before it may not.
            assert sum(reference() is not None for reference in made) <= 1
            batch = part.copy()
            made.append(weakref.ref(batch))
            yield batch

    loop = AttentionPCA(2, random_state=0)
    for part in np.split(X, 10):
        loop.partial_fit(part)
    for stream in (batches, batches()):
        model = AttentionPCA(2, random_state=0).partial_fit(stream)
        assert_array_equal(model.components_, loop.components_)
        assert model.n_samples_seen_ == 3000
        assert model.n_iter_ == 10
    dask = pytest.importorskip("dask.array")
    chunked = dask.from_array(X, chunks=(300, 2))
    model = AttentionPCA(2, random_state=0).partial_fit(chunked)
    assert_array_equal(model.components_, loop.components_)
    assert model.n_iter_ == 10


SPREAD = np.array([4.0, 3.0, 2.0, *np.linspace(1.0, 0.5, 9)])


@pytest.fixture(scope="module")
def rows():
    return 5 + np.random.default_rng(3).standard_normal((4000, 12)) * SPREAD


def parts_of(rows, made=None):
    """Yield unequal batches; at most one that was yielded before may live."""
    for part in np.split(rows, [1500, 1501, 3200]):
        batch = part.copy()
        if made is not None:
            assert sum(reference() is not None for reference in made) <= 1
            made.append(weakref.ref(batch))
        yield batch


def test_a_fit_of_attention_pca_over_batches_is_as_exact_as_in_memory(rows):
    """Davis and Kahan: residuals up to tol·σ turn the span by ‖tol·σ‖ over the gap."""
    tol = 1e-4
    truth = np.linalg.eigh(np.cov(rows.T, bias=True))
    variances, vectors = truth[0][::-1][:4], truth[1][:, ::-1][:, :3].T
    angle = tol * np.linalg.norm(variances[:3]) / (variances[2] - variances[3])
    made = []
    for stream in (lambda: parts_of(rows, made), parts_of(rows), [*parts_of(rows)]):
        given = iter(stream) if isinstance(stream, list) else stream
        model = AttentionPCA(3, tol=tol, batch_size=256, random_state=0).fit(given)
        np.testing.assert_allclose(model.mean_, rows.mean(axis=0), rtol=1e-12)
        off = np.linalg.norm(
            vectors - (vectors @ model.components_.T) @ model.components_, axis=1
        )
        assert (off <= angle).all()
        # A Rayleigh quotient errs by the squared angle, and by no more than tol.
        biased = model.explained_variance_ * (1 - 1 / len(rows))
        np.testing.assert_allclose(biased, variances[:3], rtol=tol)
        assert model.n_samples_seen_ == len(rows)
    assert len(made) > 4 * 10  # passes


def test_attention_pca_reads_a_dask_array_chunk_by_chunk(rows):
    dask = pytest.importorskip("dask.array")
    held = []

    def load(block):
        held.append(len(block))
        return block

    chunked = dask.from_array(rows, chunks=(900, 12)).map_blocks(
        load, dtype=rows.dtype, meta=rows[:0]
    )
    model = AttentionPCA(3, random_state=0).fit(chunked)
    whole = AttentionPCA(3, random_state=0).fit(rows)
    assert max(held) == 900
    assert len(held) > 5 * 5  # passes
    ours, theirs = model.explained_variance_, whole.explained_variance_
    np.testing.assert_allclose(ours, theirs, rtol=1e-3)
    scores = model.transform(chunked)
    np.testing.assert_allclose(scores, model.transform(rows), rtol=1e-12)


@pytest.mark.parametrize("kind", ["csr_matrix", "csr_array"])
def test_attention_pca_reads_sparse_chunks_of_a_dask_array(rows, kind):
    dask = pytest.importorskip("dask.array")
    make = getattr(scipy.sparse, kind)
    holed = np.where(rows < 7, 0.0, rows)
    chunked = dask.from_array(holed, chunks=(900, 12)).map_blocks(
        make, dtype=rows.dtype, meta=make((0, 0))
    )
    assert all(scipy.sparse.issparse(block) for block in row_blocks(chunked))
    whole = AttentionPCA(3, tol=1e-4, random_state=0).fit(holed)
    model = AttentionPCA(3, tol=1e-4, batch_size=100, random_state=0).fit(chunked)
    np.testing.assert_allclose(
        model.explained_variance_, whole.explained_variance_, rtol=1e-3
    )
    scores = model.transform(chunked)
    np.testing.assert_allclose(scores, model.transform(holed), atol=1e-9)
    stream = AttentionPCA(3, random_state=0).partial_fit(chunked)
    assert stream.n_iter_ == 5
    assert stream.n_samples_seen_ == len(rows)


def test_attention_pca_trains_on_finite_prompts_of_batches(rows):
    settings = {"n_tokens": 400, "batch_size": 800, "tol": 0.02, "random_state": 0}
    model = AttentionPCA(2, **settings).fit(lambda: parts_of(rows))
    best = np.sort(np.linalg.eigvalsh(np.cov(rows.T)))[::-1][:2].sum()
    kept = np.cov(model.transform(rows).T).trace()
    # Directions off by 0.1 lose 1 % of the variance; the next component has 4 of 25.
    assert kept > 0.99 * best
    assert model.n_samples_seen_ == len(rows)


def test_batches_of_single_precision_and_single_rows(rows):
    small = rows[:150].astype(np.float32)
    model = AttentionPCA(2, random_state=0, batch_size=32)
    model.fit(lambda: (row[None] for row in small))
    assert model.components_.dtype == np.float32
    whole = AttentionPCA(2, random_state=0, batch_size=32).fit(small)
    ours, theirs = model.explained_variance_, whole.explained_variance_
    np.testing.assert_allclose(ours, theirs, rtol=1e-3)


@pytest.mark.parametrize(
    ("stream", "sentence"),
    [
        (lambda: iter([]), "`X` must be at least 2 rows; got 0 in all batches"),
        (lambda: iter([np.ones((1, 3))]), "`X` must be at least 2 rows; got 1 in all"),
        (lambda: iter([np.ones((2, 3)), np.ones((2, 4))]), "X has 4 features"),
        (lambda: iter([np.ones((2, 1))]), "`n_components` must be an integer from 1"),
        (lambda: iter([np.full((2, 2), np.nan)]), "Input X contains NaN"),
    ],
)
def test_junk_in_batches_of_rows_gets_a_sentence(stream, sentence):
    for given in (stream, stream()):
        with pytest.raises(ValueError, match=sentence):
            AttentionPCA(2).fit(given)


@pytest.mark.parametrize(
    "fit",
    [
        AttentionPCA(2).fit,
        AttentionPCA(2).partial_fit,
        SingleLocationRegressor().fit,
        TokenTransformer(StandardScaler()).fit,
    ],
)
def test_a_function_that_returns_no_batches_is_named(fit):
    sentence = "`X` must be batches, .*; got a function that returned 3"
    with pytest.raises(TypeError, match=sentence):
        fit(lambda: 3)
