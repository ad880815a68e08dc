import math

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from eigenheads._rng import drawn_seed, run_generator, run_generators
from eigenheads._schedules import check_schedule, schedule_values


def test_a_number_is_a_constant_schedule():
    assert_array_equal(schedule_values("a", 0.5, 3, 5, owner="f"), [0.5, 0.5])


def test_a_schedule_gets_the_index_of_the_update():
    assert_array_equal(schedule_values("a", float, 3, 6, owner="f"), [3.0, 4.0, 5.0])


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -1.0, None, "soon", [1]])
def test_nonsense_is_named_with_its_update(nonsense):
    with pytest.raises(ValueError, match=r"must be a schedule that .* at update 4"):
        schedule_values("a", lambda t: nonsense if t == 4 else 1.0, 0, 9, owner="f")


@pytest.mark.parametrize("value", [-1.0, math.nan, "fast", None])
def test_a_constant_must_be_a_number(value):
    with pytest.raises(ValueError, match="f: `a` must be a finite number >= 0; got"):
        check_schedule("a", value, owner="f")


def test_a_run_depends_on_its_seed_and_number_alone():
    few, many = run_generators(5, 3, owner="f"), run_generators(5, 9, owner="f")
    for one, other in zip(few, many, strict=False):
        assert_array_equal(one.standard_normal(8), other.standard_normal(8))
    first = run_generator(5, 0, owner="f").standard_normal(8)
    assert not np.array_equal(first, run_generator(5, 1, owner="f").standard_normal(8))
    assert not np.array_equal(first, run_generator(6, 0, owner="f").standard_normal(8))


@pytest.mark.parametrize("seed", [-1, 0.5, None, "a"])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(ValueError, match="f: `seed` must be an integer >= 0; got"):
        run_generator(seed, 0, owner="f")


def test_a_drawn_seed_serves_as_a_seed(rng):
    run_generator(drawn_seed(rng), 0, owner="f")
