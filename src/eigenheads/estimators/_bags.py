"""Bags: reading them in any form, and grouping the rows of a long table."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, issparse
from sklearn.utils.validation import validate_data

from eigenheads._checks import (
    Got,
    check_array_like,
    check_choice,
    check_items,
    fail,
    shown,
    without_traps,
)

_HINT = "A bag is an array of shape (n_tokens, n_features)."
_ONE_HINT = (
    "Pass `[bag]` for one bag; cut a long table into bags with "
    "`group_bags(table, by=...).bags`."
)


@dataclass(frozen=True)
class Bags:
    """Tokens of all bags, bag after bag; bag i is ``tokens[offsets[i]:offsets[i+1]]``.

    Examples
    --------
    >>> bags = Bags(np.zeros((5, 2)), np.array([0, 2, 5]))
    >>> len(bags), bags.lengths
    (2, array([2, 3]))
    """

    tokens: NDArray[Any]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens in each bag."""
        return np.diff(self.offsets)

    @property
    def starts(self) -> NDArray[np.int64]:
        """Row of the first token of each bag."""
        return self.offsets[:-1]

    def take(self, chosen: NDArray[np.int64]) -> "Bags":
        """Return the chosen bags, in the order given."""
        lengths = self.lengths[chosen]
        offsets = _offsets(lengths)
        shift = np.repeat(self.starts[chosen] - offsets[:-1], lengths)
        return self._rows(shift + np.arange(offsets[-1]), offsets)

    def keep(self, kept: NDArray[np.bool_]) -> "Bags":
        """Return the bags with some of their tokens, at least one in each."""
        counts = np.add.reduceat(kept, self.starts, dtype=np.int64)
        return self._rows(np.flatnonzero(kept), _offsets(counts))

    def _rows(self, rows: NDArray[np.int64], offsets: NDArray[np.int64]) -> "Bags":
        return Bags(self.tokens[rows], offsets)

    @cached_property
    def _common_length(self) -> int:
        """Length of all bags if it is the same, else 0."""
        lengths = self.lengths
        return int(lengths[0]) if (lengths == lengths[0]).all() else 0

    def sums(self, per_token: NDArray[Any]) -> NDArray[Any]:
        """Return the sum over the tokens of each bag."""
        if self._common_length:
            return np.asarray(self._table(per_token).sum(axis=1))
        return np.asarray(np.add.reduceat(per_token, self.starts, axis=0))

    def largest(self, per_token: NDArray[Any]) -> NDArray[Any]:
        """Return the largest over the tokens of each bag."""
        if self._common_length:
            return np.asarray(self._table(per_token).max(axis=1))
        return np.asarray(np.maximum.reduceat(per_token, self.starts, axis=0))

    def spread(self, per_bag: NDArray[Any]) -> NDArray[Any]:
        """Return the entry of its bag for each token."""
        return np.repeat(per_bag, self._common_length or self.lengths, axis=0)

    def products(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        """Return the product of each token with each row, in double precision."""
        # Equal types: otherwise NumPy would convert all tokens.
        products = self.tokens @ rows.T.astype(self.tokens.dtype, copy=False)
        return np.asarray(products, dtype=np.float64)

    def pooled(self, weights: NDArray[Any]) -> NDArray[np.float64]:
        """Return the weighted sum of the tokens of each bag, in double precision."""
        places = np.arange(len(self.tokens))
        shape = (len(self), len(self.tokens))
        table = csr_array((weights, places, self.offsets), shape=shape)
        return np.asarray(table @ self.tokens, dtype=np.float64)

    def means(self) -> NDArray[np.float64]:
        """Return the mean of the tokens of each bag."""
        return self.pooled(np.repeat(1.0 / self.lengths, self.lengths))

    def _table(self, per_token: NDArray[Any]) -> NDArray[Any]:
        shape = len(self), self._common_length, *per_token.shape[1:]
        return per_token.reshape(shape)

    def split(self, per_token: NDArray[Any]) -> list[NDArray[Any]]:
        """Cut an array with one entry per token into one array per bag."""
        return np.split(per_token, self.offsets[1:-1])


def read_bags(
    estimator: Any, X: object, *, reset: bool, allow_nan: bool = False
) -> Bags:
    """Read any of the accepted layouts, or raise an error that names the bag.

    Sets ``n_features_in_`` when `reset`, and compares with it otherwise.
    """
    table, lengths = bag_rows(X)
    tokens = validate_data(
        estimator,
        table,
        dtype=[np.float64, np.float32],
        order="C",
        ensure_all_finite=False,
        reset=reset,
    )
    if lengths is None:  # rows are bags of one token
        lengths = np.ones(len(tokens), dtype=np.int64)
    bags = Bags(tokens, _offsets(lengths))
    if not allow_nan:
        _check_finite(bags)
    return bags


def bag_rows(X: Any) -> tuple[Any, NDArray[np.int64] | None]:
    """Return rows and the lengths of bags; None if rows are bags of one token."""
    X = without_traps("X", X)
    n_axes = getattr(X, "ndim", None)
    check_known_length(X)
    check_is_no_groupby(X)
    if is_frame(X):
        _check_frame(X)
    if isinstance(X, dict) and n_axes is None:  # a sparse array may be a dict
        fail("X", "a list of bags, or an array", Got("a dict"), hint=_HINT)
    if (isinstance(X, list | tuple) and not X) or (n_axes == 3 and not len(X)):
        fail("X", "at least one bag", Got("none"), hint=_HINT)
    if n_axes is not None and n_axes > 3:
        got = Got(f"shape {tuple(X.shape)}")
        fail("X", "an array of at most three axes", got, hint=_HINT)
    if n_axes == 3:
        return _cube(np.asarray(X))
    if _is_sequence_of_bags(X):
        arrays = [_as_bag(bag, index) for index, bag in enumerate(X)]
        _check_widths(arrays)
        lengths = np.array([len(bag) for bag in arrays], dtype=np.int64)
        return _with_names(X, np.concatenate(arrays)), lengths
    if isinstance(X, list | tuple):
        _check_rows(X)
    return X, None


def check_known_length(X: Any) -> None:
    """Raise if `X` is a Dask array that does not know its length."""
    if any(side != side for side in getattr(X, "shape", ())):
        hint = "Call `X.compute_chunk_sizes()` first."
        got = Got("an unknown one")
        fail("X", "an array of known length", got, hint=hint)


def check_is_no_groupby(X: object) -> None:
    """Raise if `X` is a groupby of pandas or polars."""
    if type(X).__name__.endswith("GroupBy"):
        hint = "Use `group_bags(frame, by=...).bags`, or `[bag for _, bag in grouped]`."
        fail("X", "a list of bags", Got("a groupby"), hint=hint)


def check_is_no_table(X: Any) -> None:
    """Raise if `X` is one bag or one long table, for a model fitted to longer bags."""
    if is_frame(X):
        got = Got(f"one DataFrame of shape {tuple(X.shape)}")
    elif len(getattr(X, "shape", ())) == 2:
        got = Got(f"one array of shape {tuple(X.shape)}")
    elif isinstance(X, list | tuple) and X and all(_n_axes(row) == 1 for row in X):
        got = Got(f"a list of {len(X)} rows")
    else:
        return
    fail("X", "a list of bags", got, hint=_ONE_HINT)


def _check_frame(frame: Any) -> None:
    """Raise if a table has columns that are not numbers."""
    text = [
        str(name)
        for name in frame.columns
        if column_kind(frame[name]).kind not in "biuf"
    ]
    if text:
        got = Got(f"a DataFrame with the columns {text}, which are not numbers")
        hint = (
            "Cut a long table into bags with `group_bags(frame, by=..., target=...)`."
        )
        fail("X", "a list of bags, or an array", got, hint=hint)


def _with_names(bags: Any, rows: NDArray[Any]) -> Any:
    """Return the rows as a DataFrame if the bags are DataFrames with equal columns.

    scikit-learn then records the names in `fit`, and compares them afterwards.
    """
    kinds = [type(bag) if is_frame(bag) else None for bag in bags]
    if not any(kinds):
        return rows
    if len(set(kinds)) > 1:
        other = next(bag for bag in bags if type(bag) is not type(bags[0]))
        got = Got(f"a {type(other).__name__} beside a {type(bags[0]).__name__}")
        fail("X", "bags of one type", got)
    names = list(bags[0].columns)
    for index, bag in enumerate(bags):
        if list(bag.columns) != names:
            got = Got(f"{list(bag.columns)} in bag {index}, {names} in bag 0")
            hint = "Reorder them: `bag[names]`."
            fail("X", "bags with equal columns", got, hint=hint)
    names_of = "columns" if hasattr(bags[0], "iloc") else "schema"
    return type(bags[0])(rows, **{names_of: bags[0].columns})


def _cube(array: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the rows of an array with three axes, and the lengths of its bags."""
    n_bags, n_tokens, width = array.shape
    if not array.size:
        if not n_tokens:
            _fail_empty(0)
        got = Got(f"shape {array.shape}")
        fail("X", "tokens of at least one feature", got, hint=_HINT)
    numbers = _numbers(array)
    if numbers is None:
        fail("X", "bags of numbers", array, hint=_HINT)
    return numbers.reshape(-1, width), np.full(n_bags, n_tokens, dtype=np.int64)


def _check_rows(rows: Sequence[Any]) -> None:
    """Raise if rows are missing, empty, or of several widths."""
    for index, row in enumerate(rows):
        if row is None:
            got = Got(f"None as bag {index}")
            fail("X", "bags of numbers", got, hint=_HINT)
    widths = [len(row) if np.ndim(row) == 1 else -1 for row in rows]
    for index, width in enumerate(widths):
        if width == 0:
            _fail_empty(index)
        if width != widths[0]:
            got = Got(f"{width} numbers as bag {index}, {widths[0]} as bag 0")
            fail("X", "bags with two axes", got, hint=_HINT)


def is_frame(table: Any) -> bool:
    """Return whether a table is a DataFrame of pandas or polars."""
    return hasattr(table, "columns") and (
        hasattr(table, "iloc") or hasattr(table, "get_columns")
    )


def column_kind(column: Any) -> Any:
    """Return the NumPy dtype of a column; nullable columns count by their numbers."""
    if not hasattr(column, "iloc"):  # of polars
        return column[:0].to_numpy().dtype
    dtype = getattr(column.dtype, "numpy_dtype", column.dtype)
    return dtype if isinstance(dtype, np.dtype) else np.dtype(object)


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _is_sequence_of_bags(X: object) -> bool:
    """Return whether any element has two axes; otherwise `X` is read as rows."""
    is_object_array = isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1
    if not (isinstance(X, list | tuple) or is_object_array):
        return False
    return any(_n_axes(bag) >= 2 for bag in cast(Sequence[object], X))


def _n_axes(bag: object) -> int:
    ndim = 2 if is_frame(bag) else getattr(bag, "ndim", None)
    if ndim is not None:
        return int(ndim)
    if isinstance(bag, list | tuple) and len(bag):
        return 1 + _n_axes(bag[0])
    return 1 if isinstance(bag, list | tuple) else 0


def _as_bag(bag: Any, index: int) -> NDArray[Any]:
    bag = without_traps(f"X[{index}]", bag)
    if issparse(bag):
        bag = bag.toarray()
    try:
        array = _numbers(np.asarray(bag))
    except ValueError:  # rows of several widths
        array = None
    if array is None or bag is None:
        got = Got(f"{shown(bag)} as bag {index}")
        fail("X", "bags of numbers", got, hint=_HINT)
    if not array.size:
        _fail_empty(index)
    if array.ndim != 2:
        got = Got(f"shape {array.shape} for bag {index}")
        fail("X", "bags with two axes", got, hint=_HINT)
    return array


def _numbers(array: NDArray[Any]) -> NDArray[Any] | None:
    """Return real numbers, or None if there are others or none."""
    if array.dtype.kind in "biuf":
        return array
    try:
        return None if array.dtype.kind == "c" else array.astype(np.float64)
    except (TypeError, ValueError):
        return None


def _fail_empty(index: int) -> None:
    got = Got(f"an empty bag at index {index}")
    hint = "Leave the bag and its target out."
    fail("X", "bags of at least one token", got, hint=hint)


def _check_widths(arrays: list[NDArray[Any]]) -> None:
    width = arrays[0].shape[1]
    for index, bag in enumerate(arrays):
        if bag.shape[1] != width:
            got = Got(f"{bag.shape[1]} columns in bag {index}, {width} in bag 0")
            fail("X", "bags of equal width", got, hint=_HINT)


def _check_finite(bags: Bags) -> None:
    # A finite sum shows that all numbers are finite, without an array of flags.
    with np.errstate(all="ignore"):
        if np.isfinite(bags.tokens.sum(dtype=np.float64)):
            return
    bad = np.argwhere(~np.isfinite(bags.tokens))
    if not len(bad):  # large finite numbers of which only the sum overflows
        return
    row, column = bad[0]
    bag = int(np.searchsorted(bags.offsets, row, side="right")) - 1
    value = bags.tokens[row, column]
    word = "NaN" if np.isnan(value) else str(value)
    got = Got(f"{word} in bag {bag}, token {row - bags.offsets[bag]}, column {column}")
    hint = "Impute it with `TokenTransformer(SimpleImputer())`, or leave the token out."
    fail("X", "finite numbers", got, hint=hint)


def as_given(X: Any, bags: Bags, per_token: NDArray[Any]) -> Any:
    """Return one row per token, or one array per bag if bags were given."""
    if len(bags) == len(bags.tokens) and getattr(X, "ndim", 2) != 3:
        is_rows = not isinstance(X, list | tuple) or np.ndim(X[0]) < 2
        if is_rows:
            return per_token
    return bags.split(per_token)


# --- From a long table to bags -------------------------------------------------------


class GroupedBags(NamedTuple):
    """Bags cut from a long table; see :func:`group_bags`."""

    bags: list[Any]
    ids: NDArray[Any]
    first_rows: NDArray[np.int64]
    targets: NDArray[Any] | None
    groups: NDArray[Any] | None


def group_bags(
    table: Any,
    by: ArrayLike | str,
    *,
    target: str | None = None,
    features: Sequence[str] | None = None,
    groups: str | None = None,
) -> GroupedBags:
    """Cut a long table, one row per token, into bags.

    Parameters
    ----------
    table : array-like or DataFrame of shape (n_tokens, n_features)
        One row per token, in any order of bags; NaN stay as they are. DataFrames are
        those of pandas or polars.

    by : array-like of shape (n_tokens,) or str
        The bag of each row; or, for a DataFrame, the name of the column that contains
        it.

    target : str, default=None
        Column of a DataFrame with the target, which must be constant within bags.

    features : list of str, default=None
        Columns of a DataFrame to use as features. None means all columns of numbers
        other than those named by `by`, `target` and `groups`; columns of text, dates
        and times are never features.

    groups : str, default=None
        Column of a DataFrame with a group of bags, such as a patient, which must be
        constant within bags; for ``GroupKFold``.

    Returns
    -------
    grouped : GroupedBags
        ``bags``, a list of arrays, or of DataFrames for a DataFrame, in the order in
        which the ids first appear, rows in their order within a bag; ``ids``, one per
        bag; ``first_rows``, the first row of each bag; ``targets`` and ``groups``, one
        per bag, or None.

    Examples
    --------
    >>> grouped = group_bags([[1.0], [2.0], [3.0]], by=["b", "a", "b"])
    >>> grouped.bags
    [array([[1.], [3.]]), array([[2.]])]
    >>> grouped.ids, grouped.first_rows
    (array(['b', 'a'], dtype='<U1'), array([0, 1]))
    """
    columns = [str(name) for name in getattr(table, "columns", [])]
    named = {"by": by if isinstance(by, str) else None, "target": target}
    named["groups"] = groups
    for name, column in named.items():
        if column is None:
            continue
        if not columns:
            contract = "the name of a column, for a DataFrame"
            if name == "by":
                contract = "one id per row, or the name of a column of a DataFrame"
            fail(name, contract, column)
        check_choice(name, column, columns)
    given = table[by] if isinstance(by, str) else by
    ids = check_array_like("by", given, "one id per row")
    rows = _feature_columns(table, columns, features, set(named.values()))
    if np.ndim(rows) != 2:
        contract = "of shape (n_tokens, n_features)"
        fail("table", contract, np.asarray(rows))
    if ids.shape != (len(rows),):
        contract = f"one id per row, of shape ({len(rows)},)"
        fail("by", contract, ids)
    _check_present("by", ids)
    try:
        # NumPy writes numbers beside texts as texts.
        texts = by if isinstance(by, list | tuple) and ids.dtype.kind in "US" else ()
        if not all(isinstance(text, str | bytes) for text in texts):
            raise TypeError
        unique, first, member = np.unique(ids, return_index=True, return_inverse=True)
    except TypeError:
        fail("by", "ids of one type", by, error=TypeError)
    # The ids are sorted by now; ranks restore the order of their first appearance.
    appearance = np.argsort(first)
    rank = np.empty_like(appearance)
    rank[appearance] = np.arange(len(appearance))
    # A stable sort keeps the order of the rows within a bag.
    order = np.argsort(rank[member], kind="stable")
    cuts = np.cumsum(np.bincount(rank[member], minlength=len(unique)))[:-1]
    parts = np.split(order, cuts)
    by_place = getattr(rows, "iloc", rows)
    bags = [by_place[part] for part in parts]
    per_bag = {
        name: _constant_within(
            name, np.asarray(table[column]), parts, unique[appearance]
        )
        for name, column in named.items()
        if column is not None and name != "by"
    }
    return GroupedBags(
        bags,
        unique[appearance],
        first[appearance],
        per_bag.get("target"),
        per_bag.get("groups"),
    )


def _feature_columns(
    table: Any, columns: list[str], features: Sequence[str] | None, other: set[Any]
) -> Any:
    """Return the columns of numbers, or the features that the caller names."""
    if not columns:
        if features is not None:
            contract = "None, unless the table is a DataFrame"
            fail("features", contract, features)
        contract = "of shape (n_tokens, n_features)"
        return check_array_like("table", table, contract)
    if features is not None:
        contract = "a list of names of columns"
        features = check_items("features", features, contract)
        for name in features:
            check_choice("features", name, columns)
        return table[list(features)]
    # Numbers and booleans; dates have kind "M", durations "m", text "O" or "U".
    chosen = [
        name
        for name in table.columns
        if name not in other and np.dtype(column_kind(table[name])).kind in "biuf"
    ]
    if not chosen:
        got = Got(f"columns {columns}")
        hint = "Name them with `features`."
        fail("table", "with columns of numbers", got, hint=hint)
    return table[chosen]


def _constant_within(
    name: str, column: NDArray[Any], parts: list[NDArray[Any]], ids: NDArray[Any]
) -> NDArray[Any]:
    """Return the value of each bag, or raise if it varies within one."""
    _check_present(name, column)
    for part, identity in zip(parts, ids, strict=True):
        values = column[part]
        if (values != values[0]).any():
            other = values[values != values[0]][0]
            got = Got(f"{shown(values[0])} and {shown(other)} in bag {shown(identity)}")
            fail(name, "constant within bags", got)
    return column[[part[0] for part in parts]]


def _check_present(name: str, values: NDArray[Any]) -> None:
    given = values.tolist()
    missing = [row for row, one in enumerate(given) if _is_missing(one)]
    if missing:
        word = "None" if given[missing[0]] is None else "NaN"
        got = Got(f"{word} at row {missing[0]}")
        contract = "an id for every row" if name == "by" else "a value for every row"
        fail(name, contract, got)


def _is_missing(identity: object) -> bool:
    try:
        return identity is None or bool(identity != identity)
    except TypeError:  # pandas' NA is neither
        return True
