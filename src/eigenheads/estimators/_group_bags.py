"""Cut a long table, one row per token, into bags."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eigenheads._checks import (
    Got,
    check_array_like,
    check_choice,
    check_items,
    fail,
    shown,
)
from eigenheads.estimators._bags import column_kind


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
            fail(name, contract, column, owner="group_bags")
        check_choice(name, column, columns, owner="group_bags")
    given = table[by] if isinstance(by, str) else by
    ids = check_array_like("by", given, "one id per row", owner="group_bags")
    rows = _feature_columns(table, columns, features, set(named.values()))
    if np.ndim(rows) != 2:
        contract = "of shape (n_tokens, n_features)"
        fail("table", contract, np.asarray(rows), owner="group_bags")
    if ids.shape != (len(rows),):
        contract = f"one id per row, of shape ({len(rows)},)"
        fail("by", contract, ids, owner="group_bags")
    _check_present("by", ids)
    try:
        # NumPy writes numbers beside texts as texts.
        texts = by if isinstance(by, list | tuple) and ids.dtype.kind in "US" else ()
        if not all(isinstance(text, str | bytes) for text in texts):
            raise TypeError
        unique, first, member = np.unique(ids, return_index=True, return_inverse=True)
    except TypeError:
        fail("by", "ids of one type", by, owner="group_bags", error=TypeError)
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
            fail("features", contract, features, owner="group_bags")
        contract = "of shape (n_tokens, n_features)"
        return check_array_like("table", table, contract, owner="group_bags")
    if features is not None:
        contract = "a list of names of columns"
        features = check_items("features", features, contract, owner="group_bags")
        for name in features:
            check_choice("features", name, columns, owner="group_bags")
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
        fail("table", "with columns of numbers", got, owner="group_bags", hint=hint)
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
            fail(name, "constant within bags", got, owner="group_bags")
    return column[[part[0] for part in parts]]


def _check_present(name: str, values: NDArray[Any]) -> None:
    given = values.tolist()
    missing = [row for row, one in enumerate(given) if _is_missing(one)]
    if missing:
        word = "None" if given[missing[0]] is None else "NaN"
        got = Got(f"{word} at row {missing[0]}")
        contract = "an id for every row" if name == "by" else "a value for every row"
        fail(name, contract, got, owner="group_bags")


def _is_missing(identity: object) -> bool:
    try:
        return identity is None or bool(identity != identity)
    except TypeError:  # pandas' NA is neither
        return True
