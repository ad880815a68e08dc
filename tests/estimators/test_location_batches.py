"""Fits over batches are those over all bags at once, with one batch in memory."""

import weakref

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from eigenheads.datasets import SingleLocation
from eigenheads.estimators import AttentionPCA, SingleLocationRegressor, row_blocks

# Sums in another order differ by rounding, 1e-15 of their size times the number of
# passes; the optimiser's path keeps it small until it stops, at the same iteration.
CLOSE = {"rtol": 1e-6, "atol": 1e-8}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(5)
    return SingleLocation(d=8, n_tokens=6, noise=0.1).sample(500, rng)[:2]


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
        {},
        {"head": "radial"},
        {"head": "erf"},
        {"fit_intercept": False},
        {"coherence": 0.0, "n_random_starts": 1, "random_state": 0},
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
    np.testing.assert_allclose(streamed.predict(X), whole.predict(X), rtol=1e-5)


def test_callables_iterators_and_ragged_bags_are_batches_too(data):
    X, y = data
    bags = [bag[: 3 + i % 4] for i, bag in enumerate(X)]
    whole = SingleLocationRegressor().fit(bags, y)
    called = SingleLocationRegressor().fit(lambda: batches_of(bags, y))
    assert_same(called, whole)
    once = SingleLocationRegressor().fit(batches_of(bags, y))
    np.testing.assert_array_equal(once.coef_key_, called.coef_key_)
    assert once.n_iter_ == called.n_iter_


def test_weights_are_carried_and_bags_without_weight_left_out(data):
    X, y = data
    weights = np.random.default_rng(0).integers(0, 3, size=len(y)).astype(float)
    whole = SingleLocationRegressor().fit(X, y, sample_weight=weights)
    assert_same(SingleLocationRegressor().fit(Again(X, y, weights)), whole)


def test_an_iterator_leaves_no_files(data, tmp_path, monkeypatch):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    X, y = data
    seen = []

    def batches():
        yield from batches_of(X, y)
        seen.extend(tmp_path.rglob("*.npz"))

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
    whole = SingleLocationRegressor().fit(X, y)
    chunked = dask.from_array(X, chunks=(120, 3, 5))
    targets = dask.from_array(y, chunks=300)
    assert_same(SingleLocationRegressor().fit(chunked, targets), whole)
    assert [len(block) for block in row_blocks(chunked)] == [120, 120, 120, 120, 20]
    with pytest.raises(ValueError, match="`y` must be one target a bag; got 7 targets"):
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
