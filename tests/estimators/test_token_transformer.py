"""TokenTransformer applies a transformer to tokens and keeps the bags."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, StandardScaler

from eigenheads.estimators import SingleLocationRegressor, TokenTransformer


@pytest.fixture
def bags(rng):
    return [3 + 2 * rng.standard_normal((n, 4)) for n in rng.integers(1, 6, size=30)]


def test_tokens_are_transformed_and_bags_kept(bags):
    scaled = TokenTransformer(StandardScaler()).fit(bags).transform(bags)
    rows = StandardScaler().fit_transform(np.concatenate(bags))
    assert [len(bag) for bag in scaled] == [len(bag) for bag in bags]
    assert_allclose(np.concatenate(scaled), rows)


def test_other_widths_sparse_results_and_rows(bags, rng):
    assert TokenTransformer(PCA(2)).fit_transform(bags)[0].shape[1] == 2
    bins = KBinsDiscretizer(3, encode="onehot", quantile_method="averaged_inverted_cdf")
    assert isinstance(TokenTransformer(bins).fit_transform(bags)[0], np.ndarray)
    rows = rng.standard_normal((20, 3))
    scaled = TokenTransformer(StandardScaler()).fit_transform(rows)
    assert_allclose(scaled, StandardScaler().fit_transform(rows))
    cube = rng.standard_normal((5, 2, 3))
    assert len(TokenTransformer(StandardScaler()).fit_transform(cube)) == 5


def test_missing_values_can_be_imputed(bags):
    bags[0][0, 1] = np.nan
    filled = TokenTransformer(SimpleImputer()).fit_transform(bags)
    assert_allclose(filled[0][0, 1], np.nanmean(np.concatenate(bags)[:, 1]))
    with pytest.raises(ValueError, match=r"Impute it with `TokenTransformer\(Simple"):
        SingleLocationRegressor().fit(bags, np.arange(30.0))


def test_pipelines_and_grid_search_reach_the_inner_transformer(bags):
    y = np.array([bag[0, 0] for bag in bags])
    pipeline = make_pipeline(
        TokenTransformer(PCA()), SingleLocationRegressor(alpha=0.1)
    )
    name = "tokentransformer__transformer__n_components"
    search = GridSearchCV(pipeline, {name: [1, 3]}, cv=3).fit(bags, y)
    assert search.best_params_[name] in (1, 3)
    assert search.predict(bags).shape == (30,)


def test_unfitted_is_said(bags):
    with pytest.raises(NotFittedError, match="TokenTransformer"):
        TokenTransformer(StandardScaler()).transform(bags)


@pytest.mark.parametrize("transformer", [StandardScaler(), PCA(2)])
def test_batches_pass_through_a_pipeline(bags, transformer):
    y = np.array([bag[0, 0] for bag in bags])

    def batches():
        return ((bags[i : i + 12], y[i : i + 12]) for i in range(0, 30, 12))

    pipeline = make_pipeline(
        TokenTransformer(transformer), SingleLocationRegressor(alpha=0.1)
    )
    streamed = pipeline.fit(batches).predict(bags)
    assert_allclose(streamed, pipeline.fit(bags, y).predict(bags), atol=1e-3)


def test_bags_can_be_frames(bags):
    pd = pytest.importorskip("pandas")
    named = [pd.DataFrame(bag, columns=list("abcd")) for bag in bags]
    transformer = TokenTransformer(StandardScaler()).set_output(transform="pandas")
    framed = transformer.fit(named).transform(named)
    assert list(framed[0].columns) == list("abcd")
    assert list(transformer.get_feature_names_out()) == list("abcd")
    plain = TokenTransformer(StandardScaler()).fit(named).transform(named)
    assert_allclose(framed[3].to_numpy(), plain[3])


def test_the_output_is_that_of_the_pipeline_its_clones_and_the_configuration(bags):
    pd = pytest.importorskip("pandas")
    named = [pd.DataFrame(bag, columns=list("abcd")) for bag in bags]
    pipeline = make_pipeline(
        TokenTransformer(StandardScaler()), SingleLocationRegressor(alpha=0.1)
    ).set_output(transform="pandas")
    fitted = clone(pipeline).fit(named, np.arange(30.0))
    # The estimator sees the names of the columns.
    assert fitted[-1].feature_names_in_.tolist() == list("abcd")
    name = "tokentransformer__transformer__with_mean"
    search = GridSearchCV(pipeline, {name: [True]}, cv=3).fit(named, np.arange(30.0))
    assert search.best_estimator_[-1].feature_names_in_.tolist() == list("abcd")
    transformer = TokenTransformer(StandardScaler()).fit(named)
    assert isinstance(transformer.transform(named)[0], np.ndarray)
    with config_context(transform_output="pandas"):
        assert list(transformer.transform(named)[0].columns) == list("abcd")


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_columns_can_be_named(bags, package):
    frame = pytest.importorskip(package).DataFrame
    if package == "polars":
        named = [frame(bag, schema=list("abcd")) for bag in bags]
    else:
        named = [frame(bag, columns=list("abcd")) for bag in bags]
    scaler = ColumnTransformer(
        [("scale", StandardScaler(), ["d", "b"])], remainder="drop"
    )
    transformer = TokenTransformer(scaler)
    rows = np.concatenate(bags)[:, [3, 1]]
    expected = StandardScaler().fit_transform(rows)
    assert_allclose(np.concatenate(transformer.fit_transform(named)), expected)
    y = np.arange(30.0)
    streamed = transformer.fit(lambda: iter([(named[:20], y[:20]), (named[20:], y)]))
    assert_allclose(np.concatenate(streamed.transform(named)), expected)
