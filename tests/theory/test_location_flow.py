"""The flow on the invariant manifold: limits, fixed points, bad input."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from eigenheads.datasets import SingleLocation
from eigenheads.theory import LocationLandscape, location_descent

PAPER = {
    "d": 400,
    "n_tokens": 10,
    "gamma": math.sqrt(0.5),
    "inverse_temperature": 0.1,
}

LAWS = [
    PAPER,
    {"d": 5, "n_tokens": 1, "gamma": 2.0, "inverse_temperature": 3.0},
    {"d": 10**6, "n_tokens": 3, "gamma": 0.3, "inverse_temperature": 2e-3},
]


def landscape(*, inverse_temperature, **law):
    return LocationLandscape(
        SingleLocation(**law), inverse_temperature=inverse_temperature
    )


def jacobian(point, law):
    """Central differences of the field."""
    step = 1e-6
    at = np.array([point.kappa, point.nu]) * (1 - step)  # differences stay in range
    columns = [
        np.subtract(
            landscape(**law).velocity(*(at + step * e)),
            landscape(**law).velocity(*(at - step * e)),
        )
        / (2 * step)
        for e in np.eye(2)
    ]
    return np.transpose(columns)


def test_field_is_the_tangent_gradient(rng):
    kappa, nu = rng.uniform(-1, 1, (2, 30))
    gradient = landscape(**PAPER).gradient(kappa, nu)
    field = landscape(**PAPER).velocity(kappa, nu)
    assert_allclose(field[0], -gradient[:, 0] * (1 - kappa**2), rtol=1e-12)
    assert_allclose(field[1], -gradient[:, 1] * (1 - nu**2), rtol=1e-12)


def test_descent_tends_to_the_flow_at_first_order():
    """Euler's method on the sphere: halving the step halves the distance."""
    start, duration = [0.1, -0.2], 10.0
    exact = landscape(**PAPER).flow(start, duration=duration, n_records=2)
    gaps = []
    for n_steps in (250, 500, 1000):
        path = location_descent(
            SingleLocation(d=400),
            [*start, 0, 0, 0],
            inverse_temperature=0.1,
            step_size=duration / n_steps,
            n_steps=n_steps,
            record_every=n_steps,
        )
        gaps.append(abs(path.final("kappa") - exact.final("kappa"))[0])
    order = -np.polyfit(np.log([250, 500, 1000]), np.log(gaps), deg=1)[0]
    assert order == pytest.approx(1.0, abs=0.1)


def test_flow_lowers_the_risk_and_is_a_semigroup(rng):
    start = rng.uniform(-0.5, 0.5, (4, 2))
    whole = landscape(**PAPER).flow(start, duration=20.0, n_records=41)
    risk = landscape(**PAPER).risk(whole["kappa"], whole["nu"])
    assert np.diff(risk, axis=1).max() < 1e-9

    middle = np.stack([whole["kappa"][:, 20], whole["nu"][:, 20]], axis=1)
    rest = landscape(**PAPER).flow(middle, duration=10.0, n_records=21)
    # Twice the integrator's global error, 1e-9 seen.
    assert_allclose(rest["kappa"], whole["kappa"][:, 20:], atol=2e-8)
    assert_array_equal(whole.steps, np.linspace(0, 20, 41))


def test_flow_keeps_the_sign_symmetry(rng):
    start = rng.uniform(-0.9, 0.9, (3, 2))
    plus = landscape(**PAPER).flow(start, duration=5.0)
    minus = landscape(**PAPER).flow(-start, duration=5.0)
    assert_allclose(plus["kappa"], -minus["kappa"], atol=1e-8)
    assert_allclose(plus["nu"], -minus["nu"], atol=1e-8)


@pytest.mark.parametrize("law", LAWS)
def test_flow_rests_at_the_fixed_points(law):
    points = landscape(**law).fixed_points()
    start = [[point.kappa, point.nu] for point in points]
    path = landscape(**law).flow(start, duration=3.0)
    assert_array_equal(path["kappa"], np.outer([p[0] for p in start], np.ones(201)))
    assert_array_equal(path["nu"], np.outer([p[1] for p in start], np.ones(201)))


@pytest.mark.parametrize("law", LAWS)
def test_no_other_fixed_points(law):
    """On a grid that avoids the five, the field never vanishes."""
    grid = np.linspace(-1, 1, 40)
    kappa, nu = (axis.ravel() for axis in np.meshgrid(grid, grid))
    corner = (np.abs(kappa) == 1) & (np.abs(nu) == 1)
    velocity = np.hypot(*landscape(**law).velocity(kappa, nu))
    assert velocity[~corner].min() > 0


@pytest.mark.parametrize("law", LAWS)
def test_kinds_and_eigenvalues(law):
    origin, *corners = landscape(**law).fixed_points()
    assert origin.kind == "saddle"
    assert [point.kind for point in corners] == ["sink", "sink", "source", "source"]
    for point in (origin, *corners):
        numeric = np.sort(np.linalg.eigvals(jacobian(point, law)))
        scale = np.abs(numeric).max()
        assert_allclose(point.eigenvalues, numeric, rtol=1e-3, atol=1e-3 * scale)
        low, high = np.sign(point.eigenvalues)
        expected = {"sink": (-1, -1), "saddle": (-1, 1), "source": (1, 1)}[point.kind]
        assert (low, high) == expected


def test_escape_along_the_unstable_direction_of_the_saddle():
    """log distance to the origin grows at the positive eigenvalue."""
    origin = landscape(**PAPER).fixed_points()[0]
    rate = origin.eigenvalues[1]
    path = landscape(**PAPER).flow([1e-7, 1e-7], duration=8 / rate)
    distance = np.hypot(path["kappa"][0], path["nu"][0])
    window = slice(100, 180)
    slope = np.polyfit(path.steps[window], np.log(distance[window]), deg=1)[0]
    assert slope == pytest.approx(rate, rel=1e-3)


def test_kinds_survive_underflow_in_dimension_1e12():
    law = {**PAPER, "d": 10**12}
    kinds = [point.kind for point in landscape(**law).fixed_points()]
    assert kinds == ["saddle", "sink", "sink", "source", "source"]
    for point in landscape(**law).fixed_points():
        assert np.isfinite(point.eigenvalues).all()
    # float64 rounds the weak eigenvalue of a corner to zero: hence kinds by sign.
    assert landscape(**law).fixed_points()[1].eigenvalues[1] == 0


def test_flow_in_dimension_1e12():
    """lambda sqrt(d) fixed: the flow tends to a limit; lambda² terms are 0.02."""
    law = {**PAPER, "d": 10**12, "inverse_temperature": 0.1 * math.sqrt(400 / 1e12)}
    huge = landscape(**law).flow([0.1, 0.2], duration=10.0)
    small = landscape(**PAPER).flow([0.1, 0.2], duration=10.0)
    assert_allclose(huge["nu"], small["nu"], atol=0.02)
    assert_allclose(huge["kappa"], small["kappa"], atol=0.02)


def test_zero_temperature_has_no_isolated_fixed_points():
    message = "fixed_points: `inverse_temperature` must be a finite number > 0"
    with pytest.raises(ValueError, match=message):
        landscape(**{**PAPER, "inverse_temperature": 0.0}).fixed_points()
    still = landscape(**{**PAPER, "inverse_temperature": 0.0}).flow(
        [0.3, 0.4], duration=1
    )
    assert np.all(still["kappa"] == 0.3)


@pytest.mark.parametrize(
    ("start", "changes", "message"),
    [
        ([0.1, 0.2, 0.3], {}, r"`start` must be of shape \(n_runs, 2\)"),
        ([1.5, 0.0], {}, "`start` must be inner products from -1 to 1; got 1.5"),
        ([0.1, 0.2], {"duration": 0.0}, "`duration` must be a finite number > 0"),
        ([0.1, 0.2], {"duration": -1.0}, "`duration` must be a finite number >= 0"),
        ([0.1, 0.2], {"n_records": 1}, "`n_records` must be an integer from 2 to"),
        ([0.1, 0.2], {"n_records": 1e12}, "`n_records` must be an integer from 2 to"),
    ],
)
def test_bad_input(start, changes, message):
    with pytest.raises(ValueError, match=f"LocationLandscape.flow: .*{message}"):
        landscape(**PAPER).flow(start, **{"duration": 1.0, **changes})


def test_a_flow_has_one_temperature():
    message = "LocationLandscape.flow: `inverse_temperature` must be one number"
    with pytest.raises(ValueError, match=message):
        landscape(**PAPER | {"inverse_temperature": [0.1, 0.2]}).flow(
            [0.1, 0.2], duration=1.0
        )
    with pytest.raises(ValueError, match="`inverse_temperature` must be finite num"):
        landscape(**PAPER | {"inverse_temperature": lambda t: 1.0})


def test_arguments_must_broadcast():
    message = r"LocationLandscape.velocity: `nu` must be .* kappa \(2,\)"
    with pytest.raises(ValueError, match=message):
        landscape(**PAPER).velocity([0.1, 0.2], [0.1, 0.2, 0.3])


def test_an_integration_without_end_is_given_up(monkeypatch):
    monkeypatch.setattr("eigenheads.theory._location_landscape._MAX_CALLS", 20)
    message = "LocationLandscape.flow: `duration` must be reachable in 20 evaluations"
    with pytest.raises(ValueError, match=message):
        landscape(**PAPER).flow([0.1, 0.2], duration=100.0)
