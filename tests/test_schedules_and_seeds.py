import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from eigenheads._rng import check_generator, run_generators, stream
from eigenheads._run_blocks import check_schedule, schedule_values


def test_a_number_is_a_constant_schedule():
    assert_array_equal(schedule_values("a", 0.5, 3, 5), [0.5, 0.5])


def test_a_schedule_gets_the_index_of_the_update():
    assert_array_equal(schedule_values("a", float, 3, 6), [3.0, 4.0, 5.0])


@pytest.mark.parametrize("number", [int, np.float32, np.int64, np.array, Fraction])
def test_a_schedule_may_return_any_real_number(number):
    assert_array_equal(schedule_values("a", number, 3, 5), [3.0, 4.0])


def test_a_largest_value_holds_for_numbers_and_schedules():
    assert_array_equal(schedule_values("a", 2.0, 0, 1, maximum=2.0), [2.0])
    with pytest.raises(
        ValueError, match=r"schedule_values: `a` must be <= 2; got 2\.5"
    ):
        schedule_values("a", 2.5, 0, 1, maximum=2.0)
    message = r"a schedule that returns numbers <= 2; got 3\.0 at update 3"
    with pytest.raises(ValueError, match=message):
        schedule_values("a", lambda t: t, 1, 9, maximum=2.0)


values = st.one_of(
    st.floats(), st.integers(), st.text(), st.binary(), st.none(), st.booleans()
)


@given(st.lists(values, min_size=1, max_size=4))
@settings(max_examples=100)
def test_any_schedule_gives_numbers_or_a_sentence(returned):
    try:
        numbers = schedule_values("a", returned.__getitem__, 0, len(returned))
    except ValueError as error:
        assert str(error).startswith(
            "schedule_values: `a` must be a schedule that returns a finite"
        )
    else:
        assert_array_equal(numbers, np.array(returned, dtype=float))


@pytest.mark.parametrize(
    "nonsense",
    [
        math.nan,
        math.inf,
        -1.0,
        None,
        "soon",
        [1],
        "0.001",
        True,
        10**400,
        pytest.param(10**5000, id="5001 digits"),
        1j,
    ],
)
def test_nonsense_is_named_with_its_update(nonsense):
    with pytest.raises(ValueError, match=r"must be a schedule that .* at update 4"):
        schedule_values("a", lambda t: nonsense if t == 4 else 1.0, 0, 9)


@pytest.mark.parametrize("value", [-1.0, math.nan, "fast", None])
def test_a_constant_must_be_a_number(value):
    with pytest.raises(
        ValueError, match="check_schedule: `a` must be a finite number >= 0; got"
    ):
        check_schedule("a", value)


def test_a_run_depends_on_its_seed_and_number_alone():
    few, many = run_generators(5, 3), run_generators(5, 9)
    for one, other in zip(few, many, strict=False):
        assert_array_equal(one.standard_normal(8), other.standard_normal(8))
    first = stream(5, 0).standard_normal(8)
    assert not np.array_equal(first, stream(5, 1).standard_normal(8))
    assert not np.array_equal(first, stream(6, 0).standard_normal(8))


@pytest.mark.parametrize("seed", [-1, 0.5, None, "a"])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(
        ValueError, match="run_generators: `seed` must be an integer >= 0; got"
    ):
        run_generators(seed, 1)


def test_a_generator_is_numpys(rng):
    assert check_generator(rng) is rng
    with pytest.raises(
        TypeError, match=r"check_generator: `rng` must be a numpy\..*; got 3\. np\."
    ):
        check_generator(3)
