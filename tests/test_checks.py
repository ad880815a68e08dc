import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigenheads._checks import (
    check_choice,
    check_count,
    check_finite_array,
    check_number,
    check_positive,
    shown,
)

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.floats(), max_size=3),
    st.complex_numbers(),
    st.builds(np.zeros, st.tuples(st.integers(0, 3))),
)


@pytest.mark.parametrize(
    "value", [True, "1", None, math.nan, math.inf, 1j, [1.0], 10**400]
)
def test_a_number_is_a_finite_real_and_nothing_else(value):
    with pytest.raises(
        ValueError, match=r"test_a_number.*: `x` must be a finite number; got"
    ):
        check_number("x", value)


@pytest.mark.parametrize("value", [1, 1.0, np.float32(1), np.int64(1), np.array(1.0)])
def test_a_number_may_come_from_numpy(value):
    assert check_number("x", value) == 1.0


@pytest.mark.parametrize(
    ("bounds", "contract"),
    [
        ({"minimum": 0.0}, ">= 0"),
        ({"maximum": 1.0}, "<= 1"),
        ({"minimum": 0.0, "maximum": 1.0}, "from 0 to 1"),
    ],
)
def test_bounds_are_in_the_sentence(bounds, contract):
    value = -1 if "minimum" in bounds else 2
    with pytest.raises(ValueError, match=f"a finite number {contract}; got {value}"):
        check_number("x", value, **bounds)


@pytest.mark.parametrize("value", [0, -1.0, math.inf, "a"])
def test_positive_excludes_zero(value):
    with pytest.raises(ValueError, match="must be a finite number > 0; got"):
        check_positive("x", value)


@pytest.mark.parametrize("value", [0.5, True, "3", 0, math.nan])
def test_a_count_is_a_whole_number(value):
    with pytest.raises(ValueError, match="must be an integer >= 1; got"):
        check_count("n", value)
    assert check_count("n", 1e9) == 10**9


def test_a_count_may_have_a_maximum():
    with pytest.raises(ValueError, match="an integer from 1 to 3; got 4"):
        check_count("n", 4, maximum=3)


def test_a_wrong_choice_names_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'exact'"):
        check_choice("method", "exat", ["exact", "full"])
    with pytest.raises(ValueError, match=r"got 3\.$"):
        check_choice("method", 3, ["exact", "full"])


def test_an_array_must_be_finite_and_numeric():
    with pytest.raises(ValueError, match=r"got inf at index \(0, 1\)"):
        check_finite_array("x", [[0.0, math.inf]])
    with pytest.raises(ValueError, match="finite numbers; got 'a'"):
        check_finite_array("x", "a")
    with pytest.raises(ValueError, match="finite numbers; got"):
        check_finite_array("x", [[1.0], [1.0, 2.0]])


def test_long_values_are_cut():
    assert len(shown("a" * 1000)) <= 60


def test_a_table_is_shown_by_the_columns_that_are_not_numbers():
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame({"a": [1.0], "b": [True], "name": ["x"]})
    assert shown(table).endswith("(1, 3) whose columns name are not numbers")
    assert shown(table[["a", "b"]]) == "a DataFrame of shape (1, 2)"


@given(ANYTHING)
def test_every_check_returns_or_says_one_sentence(value):
    checks = (check_number, check_positive, check_count, check_finite_array)
    for check in checks:
        try:
            check("x", value)
        except ValueError as error:
            assert str(error).startswith(
                "test_every_check_returns_or_says_one_sentence: `x` must be"
            )
            assert "\n" not in str(error)


def test_a_value_that_cannot_be_shown_is_named_by_its_type():
    with pytest.raises(ValueError, match="; got a value of type int"):
        check_count("n", 10**5000, maximum=3)
