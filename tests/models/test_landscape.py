"""Risk and critical points against closed forms."""

import numpy as np
import pytest
from tests.models import declared_models as declared

from eigenheads.datasets import SingleLocation
from eigenheads.models import Model, Token, critical_points, gaussian, risk
from eigenheads.theory import LocationLandscape


def test_risk_is_the_closed_form_of_single_location_regression():
    model = declared.location_model()
    points = {
        "k.key": np.array([[0.3, 0.0], [1.0, -0.5]]),
        "v.value": np.array([[0.4, 0.2], [1.0, 0.8]]),
        "k.v": np.array([[0.1, 0.0], [0.0, 0.1]]),
    }
    found = risk(model, points, d=40, n_samples=2**15)
    zero = np.zeros((2, 2))
    law = SingleLocation(d=40, n_tokens=3, gamma=0.5, noise=0.2)
    expected = LocationLandscape(law, inverse_temperature=0.6).risk(
        points["k.key"], points["v.value"], zero, zero, points["k.v"]
    )
    np.testing.assert_allclose(found, expected, rtol=0.05)


def variance(X, w, u, g, p):
    return -((X[0] @ w.k) ** 2)


def test_critical_points_of_a_variance_are_its_principal_directions():
    tokens = Token(mean={"a": gaussian(2.0), "b": gaussian(1.0)})
    model = Model(variance, weights={"k": "sphere"}, planted=("a", "b"), tokens=tokens)
    d = 20
    points = critical_points(model, d=d, n_starts=12, n_samples=2**13)
    # Covariance diag(5, 2, 1, …): minima ±a, saddles ±b, and any direction off both,
    # from which the risk falls towards a and b and is flat elsewhere.
    by_kind = {(point.kind, point.index) for point in points}
    assert by_kind == {("minimum", 0), ("saddle", 1), ("maximum", 2)}
    for point in points:
        along = max(abs(point.overlaps["k.a"]), abs(point.overlaps["k.b"]))
        assert along == pytest.approx(0.0 if point.kind == "maximum" else 1.0, abs=0.05)
        gaps = {"minimum": [6, 8], "saddle": [-6, 2], "maximum": [-8, -2]}[point.kind]
        np.testing.assert_allclose(point.curvatures, gaps, atol=0.4)
        outside = {"minimum": 8, "saddle": 2, "maximum": 0}[point.kind]
        np.testing.assert_allclose(point.outside, [outside], atol=0.4)
        value = {"minimum": -5, "saddle": -2, "maximum": -1}[point.kind]
        assert point.risk == pytest.approx(value, rel=0.05)


def test_directions_outside_the_frame_decide_the_kind():
    # The variance along a is reduced by a quarter: at w = ±a the risk falls in all
    # d - 1 other directions, of which the frame holds one.
    narrow = Model(
        lambda X, w, u, g, p: (
            -((X[0] @ w.k - 0.75**0.5 * (X[0] @ u.a) * (w.k @ u.a)) ** 2)
        ),
        weights={"k": "sphere"},
        planted=("a",),
        tokens=Token(),
    )
    points = critical_points(narrow, d=12, n_starts=8, n_samples=2**12)
    corner = [point for point in points if abs(point.overlaps["k.a"]) > 0.95]
    assert corner
    assert all(np.all(point.outside < 0) for point in corner)
    assert all(point.index >= 12 - 2 for point in corner)


def flat_saddle(X, w, u, g, p):
    y = w.k @ u.b
    return (X[0] @ w.k) ** 2 - y**2 - y**3


def test_a_point_without_curvature_is_no_minimum():
    # x² - y³: no curvature is negative at zero, and the risk falls along y.
    model = Model(flat_saddle, weights={"k": "free"}, planted=("b",), tokens=Token())
    points = [
        point
        for seed in range(4)
        for point in critical_points(model, d=6, n_starts=2, seed=seed)
    ]
    for point in points:
        assert abs(point.overlaps["k.b"]) < 0.05
        assert risk(model, {"k.b": 0.3, "k.k": 0.09}, d=6) < point.risk
    # The samples move the point, to places where the curvature may be below zero.
    assert {point.kind for point in points} == {"undecided", "saddle"}


def test_bad_input_gets_a_sentence():
    model = declared.location_model()
    with pytest.raises(ValueError, match=r"risk: `overlaps` must be named k\.key"):
        risk(model, {"kappa": 0.5}, d=8)
    with pytest.raises(ValueError, match="risk: `overlaps` must be overlaps that vec"):
        risk(model, {"k.key": 1.5}, d=8)
    with pytest.raises(TypeError, match="risk: `overlaps` must be a mapping"):
        risk(model, 0.5, d=8)
    with pytest.raises(ValueError, match="`n_starts` must be an integer >= 1"):
        critical_points(model, d=8, n_starts=0)
