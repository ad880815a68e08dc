"""The descent on five numbers: its contract, its limits and its bad input."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from eigenheads._parallel import reporting, threads
from eigenheads.datasets import SingleLocation
from eigenheads.theory import LocationLandscape, location_descent

LANDSCAPE = LocationLandscape(SingleLocation(d=400), inverse_temperature=0.1)
NAMES = ["kappa", "nu", "theta", "eta", "rho"]


def descend(start, d=400, **changes):
    settings = {"inverse_temperature": 0.1, "step_size": 4e-3, "n_steps": 50}
    return location_descent(SingleLocation(d=d), start, **{**settings, **changes})


def states(paths):
    return np.stack([paths[name] for name in NAMES], axis=-1)


def test_records_are_states_after_that_many_updates(orders):
    every = descend(orders)
    thinned = descend(orders, record_every=7)
    assert_array_equal(every.steps, np.arange(51))
    assert_array_equal(thinned.steps, [0, 7, 14, 21, 28, 35, 42, 49])
    assert_array_equal(states(thinned), states(every)[:, ::7])
    assert_array_equal(states(every)[:, 0], orders)
    assert list(every) == NAMES


def test_records_across_blocks_of_work(orders):
    """More updates than one block holds, and records that do not divide it."""
    whole = descend(orders[:2], n_steps=45_000, record_every=7_000)
    first = descend(orders[:2], n_steps=14_000, record_every=14_000)
    assert_array_equal(whole.steps, np.arange(0, 45_001, 7_000))
    assert_array_equal(states(whole)[:, 2], states(first)[:, 1])


def test_a_run_depends_on_its_own_start_only(orders):
    together = states(descend(orders))
    with threads(1):
        assert_array_equal(states(descend(orders)), together)
    assert_array_equal(states(descend(orders[3])), together[3:4])


def test_a_constant_schedule_is_a_number(orders):
    constant = descend(orders)
    scheduled = descend(
        orders, inverse_temperature=lambda t: 0.1, step_size=lambda t: 4e-3
    )
    assert_array_equal(states(constant), states(scheduled))


def test_schedules_get_the_index_of_the_update(orders):
    seen = []
    descend(orders, inverse_temperature=lambda t: seen.append(t) or 0.1, n_steps=5)
    assert seen == [0, 1, 2, 3, 4]


def test_no_step_no_motion(orders):
    still = states(descend(orders, step_size=0.0, n_steps=3))
    assert_array_equal(still[:, -1], orders)


def test_small_steps_lower_the_risk(orders):
    """To first order by step times squared tangent gradient; here on all runs."""
    paths = descend(orders, n_steps=2_000, record_every=10)
    risk = LANDSCAPE.risk(*(paths[n] for n in NAMES))
    assert np.diff(risk, axis=1).max() < 1e-12
    assert (risk[:, 0] - risk[:, -1]).min() > 0


def test_reaches_the_oracle_from_the_manifold():
    start = [[0.05, 0.05, 0, 0, 0], [-0.05, 0.02, 0, 0, 0], [0.3, -0.1, 0, 0, 0]]
    paths = descend(start, n_steps=40_000, record_every=40_000)
    risk = LANDSCAPE.risk(*(paths.final(n) for n in NAMES))
    assert np.all(np.abs(risk - LANDSCAPE.oracle_risk()) < 2e-3)
    assert_allclose(np.sign(paths.final("kappa")), np.sign(paths.final("nu")))


def test_dimension_1e12_with_the_scaled_temperature():
    """lambda sqrt(d) fixed: the descent on the manifold is that of d = 400, but for
    the terms in lambda² that vanish."""
    start = [0.1, 0.2, 0.0, 0.0, 0.0]
    scale = 0.1 * math.sqrt(400 / 1e12)
    huge = descend(start, d=10**12, inverse_temperature=scale)
    made = LocationLandscape(SingleLocation(d=10**12), inverse_temperature=scale)
    risk = made.risk(*(huge[n] for n in NAMES))
    assert np.isfinite(states(huge)).all()
    assert np.diff(risk).max() < 0
    assert_allclose(states(huge), states(descend(start)), atol=5e-3)


def test_says_how_much_work_is_done(orders):
    units = []
    with reporting(units.append):
        descend(orders, n_steps=30_000, record_every=30_000)
    assert sum(units) == 30_000 * len(orders)
    assert len(units) > 1


@pytest.mark.parametrize(
    "start",
    [
        [1.0, 0.0, 0.0, 0.1, 0.0],
        [0.0, 1.0, 0.1, 0.0, 0.0],
        [1.0, 1.0, 0.0, 0.0, 0.1],
        [0.5, 0.5, 0.5, 0.5, -0.9],
        [2.0, 0.0, 0.0, 0.0, 0.0],
    ],
)
def test_start_must_come_from_unit_vectors(start):
    message = (
        r"location_descent: `start` must be order parameters .* of two unit vectors"
    )
    with pytest.raises(ValueError, match=message) as raised:
        descend([[0.0] * 5, start])
    assert "in run 1" in str(raised.value)


def test_starts_of_real_vectors_are_accepted(rng, pair, order):
    """Also in R^2 and R^3, where the conditions hold with equality."""
    for d in (2, 3, 5, 1000):
        # A start that no real vectors have would be refused.
        paths = descend([order(*pair(rng, d)) for _ in range(100)], d=d, n_steps=1)
        assert all(np.isfinite(curve).all() for curve in paths.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_steps": 0}, "`n_steps` must be an integer from 1 to 10{15}; got 0"),
        (
            {"n_steps": 1e12},
            "`record_every` must be large enough .* got 1, which makes",
        ),
        ({"record_every": 0.5}, "`record_every` must be an integer from 1 to 50; got"),
        ({"record_every": 51}, "from 1 to 50; got 51. A run has 50 steps"),
        ({"d": 2}, "two unit vectors in 2 dimensions; got 0.1, 0.1, 0.3, 0.2, 0.1"),
        ({"step_size": -1.0}, "`step_size` must be a finite number >= 0; got -1.0"),
        (
            {"step_size": 1e300},
            "`step_size` must be so small .* got 1e[+]300 at update",
        ),
        ({"inverse_temperature": math.nan}, "must be a finite number >= 0; got nan"),
        ({"inverse_temperature": 1e60}, "`inverse_temperature` must be <= 1e[+]50"),
        ({"inverse_temperature": lambda t: -t}, "got -1 at update 1"),
        ({"step_size": lambda t: "x"}, "got 'x' at update 0"),
    ],
)
def test_bad_input(changes, message):
    with pytest.raises(ValueError, match=f"location_descent: .*{message}"):
        descend([0.1, 0.1, 0.3, 0.2, 0.1], **changes)


@pytest.mark.parametrize("start", [[], [0.1] * 4, np.zeros((2, 2, 5)), "five"])
def test_start_must_have_five_columns(start):
    with pytest.raises(ValueError, match="location_descent: `start` must be"):
        descend(start)
