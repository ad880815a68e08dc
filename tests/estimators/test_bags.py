"""Every layout of the same bags is read alike; every bad one names the bag."""

import re

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from scipy.sparse import csr_array
from sklearn.preprocessing import StandardScaler

from eigenheads.estimators import (
    BagPooling,
    PooledBagClassifier,
    PooledBagRegressor,
    SingleLocationClassifier,
    SingleLocationRegressor,
    SingleLocationRegressorCV,
    TokenTransformer,
    group_bags,
)
from eigenheads.estimators._bags import Bags, read_bags

ragged = [np.arange(6.0).reshape(3, 2), -np.ones((1, 2)), np.zeros((2, 2))]


def read(X):
    return read_bags(SingleLocationRegressor(), X, reset=True)


def test_ragged_list_is_concatenated():
    bags = read(ragged)
    assert_array_equal(bags.tokens, np.concatenate(ragged))
    assert_array_equal(bags.offsets, [0, 3, 4, 6])


@pytest.mark.parametrize(
    "layout",
    [
        tuple,
        lambda bags: [bag.tolist() for bag in bags],
        lambda bags: [pd.DataFrame(bag) for bag in bags],
        lambda bags: np.array([*bags, None], dtype=object)[:-1],
    ],
    ids=["tuple", "nested lists", "frames", "object array"],
)
def test_layouts_of_ragged_bags_agree(layout):
    bags = read(layout(ragged))
    assert_array_equal(bags.tokens, read(ragged).tokens)
    assert_array_equal(bags.offsets, read(ragged).offsets)


def test_three_axes_are_the_list_of_their_slices(rng):
    cube = rng.standard_normal((4, 3, 2))
    assert_array_equal(read(cube).tokens, read(list(cube)).tokens)
    assert_array_equal(read(cube).offsets, read(list(cube)).offsets)


def test_rows_are_bags_of_one_token(rng):
    rows = rng.standard_normal((4, 2))
    assert_array_equal(read(rows).tokens, rows)
    assert_array_equal(read(rows).lengths, 1)
    assert_array_equal(read(rows.tolist()).tokens, rows)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floats_keep_their_precision(dtype):
    assert read([bag.astype(dtype) for bag in ragged]).tokens.dtype == dtype


def test_take_and_split_undo_concatenation():
    bags = read(ragged)
    taken = bags.take(np.array([2, 0]))
    assert_array_equal(taken.tokens, np.concatenate([ragged[2], ragged[0]]))
    assert_array_equal(taken.offsets, [0, 2, 5])
    for piece, bag in zip(bags.split(bags.tokens), ragged, strict=True):
        assert_array_equal(piece, bag)


def test_finite_tokens_whose_sum_overflows_are_read():
    huge = np.full((2, 2), 1e308)
    assert isinstance(read([huge]), Bags)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (
            [ragged[0], np.empty((0, 2))],
            "SingleLocationRegressor: `X` must be bags of at least one token; got an "
            "empty bag at index 1. Leave the bag and its target out.",
        ),
        ([], "SingleLocationRegressor: `X` must be at least one bag; got none."),
        ([ragged[0], []], "got an empty bag at index 1."),
        (np.empty((3, 0, 2)), "got an empty bag at index 0."),
        (
            [ragged[0], np.ones((2, 3))],
            "`X` must be bags of equal width; got 3 columns in bag 1, 2 in bag 0.",
        ),
        (
            [ragged[0], np.ones(2)],
            "`X` must be bags with two axes; got shape (2,) for bag 1. A bag is an "
            "array of shape (n_tokens, n_features).",
        ),
        (
            [ragged[0], [["a", "b"]]],
            "`X` must be bags of numbers; got [['a', 'b']] as bag 1.",
        ),
        (
            [ragged[0], np.array([[0.0, 1.0], [2.0, np.nan]])],
            "`X` must be finite numbers; got NaN in bag 1, token 1, column 1. Impute "
            "it with `TokenTransformer(SimpleImputer())`, or leave the token out.",
        ),
        (np.array([[0.0], [-np.inf]]), "got -inf in bag 1, token 0, column 0."),
        ([[], []], "got an empty bag at index 0."),
        (np.empty((0, 3, 2)), "`X` must be at least one bag; got none."),
        (np.empty((2, 3, 0)), "tokens of at least one feature; got shape (2, 3, 0)."),
        (
            np.ones((2, 1, 1, 2)),
            "an array of at most three axes; got shape (2, 1, 1, 2)",
        ),
        ([np.ones(3), np.ones(4)], "got 4 numbers as bag 1, 3 as bag 0. A bag is"),
        ([None, None], "`X` must be bags of numbers; got None as bag 0."),
        ([ragged[0], None], "`X` must be bags of numbers; got None as bag 1."),
        ([ragged[0], 1j * ragged[1]], "and dtype complex128 as bag 1."),
        (1j * np.ones((2, 2, 2)), "`X` must be bags of numbers; got an array of shape"),
        (np.full((2, 2, 2), "a"), "`X` must be bags of numbers; got an array of shape"),
        ({"a": ragged[0]}, "`X` must be a list of bags, or an array; got a dict."),
    ],
)
def test_bad_bags_are_named(X, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        SingleLocationRegressor().fit(X, np.arange(float(len(X))))


def test_another_width_at_prediction_is_named(rng):
    model = SingleLocationRegressor().fit(
        rng.standard_normal((9, 2, 3)), np.arange(9.0)
    )
    with pytest.raises(ValueError, match="X has 2 features, but SingleLocationRegr"):
        model.predict(ragged)


def test_grouped_rows_come_back_as_bags(rng):
    ids = rng.integers(5, size=40)
    rows = rng.standard_normal((40, 3))
    grouped = group_bags(rows, ids)
    assert_array_equal(grouped.ids, list(dict.fromkeys(ids.tolist())))
    for bag, identity in zip(grouped.bags, grouped.ids, strict=True):
        assert_array_equal(bag, rows[ids == identity])
    assert_array_equal(ids[grouped.first_rows], grouped.ids)


def test_a_column_of_a_frame_can_name_the_bags():
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "molecule": ["x", "y", "x"]})
    grouped = group_bags(frame, "molecule")
    assert_array_equal(grouped.bags[0], [[1.0], [3.0]])
    assert list(grouped.bags[0].columns) == ["a"]
    assert grouped.ids.tolist() == ["x", "y"]


def patients():
    return pd.DataFrame(
        {
            "patient": ["p", "q", "q", "r", "r", "r"],
            "slide": [1, 2, 3, 4, 4, 4],
            "sick": [True, False, False, True, True, True],
            "seen": pd.to_datetime(["2024-01-01"] * 6),
            "note": list("abcdef"),
            "x": np.arange(6.0),
            "y": np.arange(6),
        }
    )


def test_labels_groups_and_dates_are_no_features():
    grouped = group_bags(patients(), "slide", target="sick", groups="patient")
    assert list(grouped.bags[0].columns) == ["x", "y"]
    assert grouped.targets.tolist() == [True, False, False, True]
    assert grouped.groups.tolist() == ["p", "q", "q", "r"]
    chosen = group_bags(patients(), "slide", target="sick", features=["y"])
    assert_array_equal(chosen.bags[-1], [[3], [4], [5]])
    assert chosen.groups is None


def test_frames_of_polars_are_cut_and_compared_as_those_of_pandas():
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame(patients().to_dict(orient="list"))
    grouped = group_bags(frame, "slide", target="sick", groups="patient")
    known = group_bags(patients(), "slide", target="sick", groups="patient")
    assert grouped.bags[-1].columns == ["x", "y"]
    for bag, other in zip(grouped.bags, known.bags, strict=True):
        assert_array_equal(bag.to_numpy(), other.to_numpy())
    assert_array_equal(grouped.targets, known.targets)
    assert_array_equal(grouped.groups, known.groups)
    model = SingleLocationRegressor(alpha=0.1).fit(grouped.bags, np.arange(4.0))
    assert model.feature_names_in_.tolist() == ["x", "y"]
    assert_array_equal(model.predict(grouped.bags), model.predict(known.bags))
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict([bag[["y", "x"]] for bag in grouped.bags])
    with pytest.raises(ValueError, match=re.escape("['patient', 'seen', 'note']")):
        model.fit(frame, np.arange(6.0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": "x"}, "`target` must be constant within bags; got 3.0 and 4.0 in"),
        ({"target": "sik"}, "`target` must be one of"),
        ({"features": ["z"]}, "`features` must be one of"),
    ],
)
def test_bad_columns_are_named(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        group_bags(patients(), "slide", **settings)


def test_columns_are_kept_and_compared(rng):
    bags = [pd.DataFrame(rng.standard_normal((3, 2)), columns=["a", "b"])] * 12
    model = SingleLocationRegressor(alpha=0.1).fit(bags, np.arange(12.0))
    assert model.feature_names_in_.tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict([bag[["b", "a"]] for bag in bags])
    mixed = [bags[0], bags[1][["b", "a"]]]
    with pytest.raises(ValueError, match=r"equal columns; got \['b', 'a'\] in bag 1"):
        SingleLocationRegressor(alpha=0.1).fit(mixed, [0.0, 1.0])
    with pytest.raises(
        ValueError, match="bags of one type; got a ndarray beside a Data"
    ):
        SingleLocationRegressor(alpha=0.1).fit([bags[0], np.ones((2, 2))], [0.0, 1.0])


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (patients(), "got a DataFrame with the columns ['patient', 'seen', 'note']"),
        (patients().groupby("slide"), "got a groupby. Use `group_bags(frame, by=...)"),
        (np.ones((6, 2)), "got 4 targets for 6 bags. A table is read as bags of one"),
    ],
)
def test_tables_get_a_sentence(X, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        SingleLocationRegressor().fit(X, np.arange(4.0))


def bag_models():
    # A search passes `predict` on to its best estimator.
    return (
        SingleLocationRegressor(alpha=0.1),
        SingleLocationRegressorCV(feature_maps=(None,), heads=("softmax",)),
        PooledBagRegressor(),
    )


@pytest.mark.parametrize("model", bag_models(), ids=lambda one: type(one).__name__)
def test_one_bag_or_a_long_table_given_to_predict_gets_a_sentence(rng, model):
    X = rng.standard_normal((12, 3, 2))
    model = model.fit(X, rng.standard_normal(12))
    table = pd.DataFrame(X.reshape(-1, 2), columns=["x", "y"])
    table["slide"] = np.repeat(np.arange(12), 3)
    hint = (
        "Pass `[bag]` for one bag; cut a long table into bags with "
        "`group_bags(table, by=...).bags`."
    )
    given = {
        "one array of shape (3, 2)": X[0],
        "a list of 3 rows": X[0].tolist(),
        "one DataFrame of shape (36, 3)": table,
    }
    for got, wrong in given.items():
        with pytest.raises(ValueError, match=re.escape(f"bags; got {got}. {hint}")):
            model.predict(wrong)
    with pytest.raises(ValueError, match=re.escape("got a groupby. Use `group_bags")):
        model.predict(table.groupby("slide"))
    assert model.predict([X[0]]).shape == (1,)
    grouped = group_bags(table, by="slide").bags
    known = model.fit(grouped, rng.standard_normal(12)).predict(grouped)
    assert known.shape == (12,)


def test_a_groupby_given_to_fit_or_a_transformer_gets_a_sentence():
    grouped = patients().groupby("slide")
    for estimator in (SingleLocationRegressor(), TokenTransformer(StandardScaler())):
        with pytest.raises(ValueError, match=r"got a groupby\. Use `group_bags"):
            estimator.fit(grouped)


def test_sparse_bags_are_read_as_dense_ones(rng):
    dense = [np.round(rng.standard_normal((3, 4))) for _ in range(12)]
    sparse = [csr_array(bag) for bag in dense]
    model = SingleLocationRegressor(alpha=0.1).fit(sparse, np.arange(12.0))
    assert_array_equal(model.predict(sparse), model.predict(dense))


@pytest.mark.parametrize(
    ("table", "groups", "message"),
    [
        (
            pd.DataFrame({"molecule": [1]}),
            "molecul",
            "group_bags: `by` must be one of 'molecule'; got 'molecul'. Did you "
            "mean 'molecule'?",
        ),
        (
            np.ones((2, 1)),
            "molecule",
            "`by` must be one id per row, or the name of a column of a DataFrame; "
            "got 'molecule'.",
        ),
        (np.ones((2, 1)), [1], "`by` must be one id per row, of shape (2,); got"),
        (np.ones(2), [1, 2], "`table` must be of shape (n_tokens, n_features); got"),
        (
            np.ones((2, 1)),
            [1.0, np.nan],
            "`by` must be an id for every row; got NaN at row 1.",
        ),
        (np.ones((2, 1)), [None, "a"], "an id for every row; got None at row 0."),
        (np.ones((2, 1)), [[1], [1, 2]], "`by` must be one id per row; got [[1], [1"),
        (np.ones((2, 1)), [1, "1"], "`by` must be ids of one type; got [1, '1']"),
        (
            np.ones((2, 1)),
            np.array([1, "1"], dtype=object),
            "`by` must be ids of one type; got an array",
        ),
        ([[1.0], [1.0, 2.0]], [1, 2], "`table` must be of shape (n_tokens, n_feat"),
    ],
)
def test_bad_groups_are_named(table, groups, message):
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        group_bags(table, groups)


@pytest.mark.torch
def test_tensors_that_numpy_does_not_have_are_read(rng):
    torch = pytest.importorskip("torch")
    numbers = torch.tensor(rng.integers(-4, 5, size=(6, 3, 2)), dtype=torch.float32)
    turned = torch.complex(torch.zeros_like(numbers), -numbers).conj().imag
    assert turned.is_neg()
    low = numbers.bfloat16(), numbers.to(torch.float8_e4m3fn)
    for tensor in (turned, *low):
        for X in (tensor, list(tensor)):
            tokens = read(X).tokens
            assert tokens.dtype == np.float32
            assert_array_equal(tokens, numbers.numpy().reshape(-1, 2))


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested")
@pytest.mark.parametrize(
    "model",
    [SingleLocationRegressor(), BagPooling(), TokenTransformer(StandardScaler())],
)
def test_tensors_that_are_no_arrays_get_a_sentence(model):
    torch = pytest.importorskip("torch")
    rows = torch.ones(4, 3)
    sparse = rows.to_sparse_csr()
    nested = torch.nested.nested_tensor([rows, rows[:2]])
    for tensor, message in (
        (sparse, "a dense tensor that holds numbers; got a sparse"),
        (nested, r"a dense tensor; got a nested tensor. Pass a list: `list\(X.unb"),
    ):
        with pytest.raises(ValueError, match=f"`X` must be {message}"):
            model.fit(tensor, np.arange(4.0))
        with pytest.raises(ValueError, match=rf"`X\[0\]` must be {message}"):
            model.fit([tensor, rows], np.arange(2.0))


@pytest.mark.parametrize("model", [SingleLocationClassifier(), PooledBagClassifier()])
def test_labels_that_are_none_get_a_sentence(rng, model):
    X = rng.standard_normal((30, 4, 3))
    with pytest.raises(ValueError, match="got labels of types NoneType, str"):
        model.fit(X, [None, "a"] * 15)
    days = np.arange(30).astype("timedelta64[D]")
    with pytest.raises(ValueError, match="`y` must be free of dates and durations"):
        model.fit(X, days)
    with pytest.raises(ValueError, match=r"`X\[0\]` must be free of dates and dur"):
        model.fit(list(X.astype("timedelta64[s]")), np.arange(30) % 2)


def test_texts_of_any_length_are_labels(rng):
    labels = np.array(["a", "bb"] * 15, dtype=np.dtypes.StringDType())
    model = PooledBagClassifier().fit(rng.standard_normal((30, 4, 3)), labels)
    assert model.classes_.tolist() == ["a", "bb"]


@pytest.mark.parametrize("model", [SingleLocationRegressor(), PooledBagRegressor()])
def test_arrays_of_unknown_length_get_a_sentence(rng, model):
    array = pytest.importorskip("dask.array").from_array(rng.standard_normal((9, 2, 3)))
    with pytest.raises(ValueError, match="`X` must be an array of known length"):
        model.fit(array[array[:, 0, 0] > -9], np.arange(9.0))
