"""The closed form of the risk against the law itself, quadrature, and its limits."""

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import erf, owens_t

from eigenheads.datasets import SingleLocation
from eigenheads.functional import location_predictor
from eigenheads.theory import LocationLandscape
from eigenheads.theory._location_landscape import erf_factors, owen_gap, zeta_at_zero

PAPER = {"d": 400, "n_tokens": 10, "gamma": math.sqrt(0.5)}

LAWS = [
    {"d": 6, "n_tokens": 1, "gamma": 0.7, "inverse_temperature": 0.5, "noise": 0.3},
    {"d": 20, "n_tokens": 4, "gamma": 1.3, "inverse_temperature": 0.4, "noise": 0.0},
    {"d": 80, "n_tokens": 10, "gamma": 0.5, "inverse_temperature": 0.1, "noise": 0.2},
]

# Normal quantile of 1e-6 on both sides; about 30 numbers are compared with it.
SIGMAS = 5.0

# Gauss-Hermite with 200 nodes resolves erf(lambda m kappa + lambda gamma G) to this
# for lambda gamma <= 0.6, seen; the terms are of order m² <= 40.
QUADRATURE_RTOL = 1e-11


def landscape(*, inverse_temperature, **law):
    return LocationLandscape(
        SingleLocation(**law), inverse_temperature=inverse_temperature
    )


def vectors(law, kind, rng):
    planted = np.eye(law["d"])[:2]
    k, v = rng.standard_normal((2, law["d"]))
    if kind == "manifold":
        k[1] = v[0] = 0.0
        v[2:] -= k[2:] * (k[2:] @ v[2:]) / (k[2:] @ k[2:])
    elif kind == "equal":
        v = k + planted.sum(0)
        k = v
    elif kind == "planted":
        k, v = planted
    elif kind == "swapped":
        v, k = planted
    return k / np.linalg.norm(k), v / np.linalg.norm(v)


@pytest.mark.parametrize("law", LAWS)
def test_equals_the_law_by_simulation(law, rng, order):
    data = {name: law[name] for name in ("d", "n_tokens", "gamma", "noise")}
    tokens, targets, _ = SingleLocation(**data).sample(20_000, rng)
    for kind in ("free", "manifold", "equal", "planted", "swapped"):
        k, v = vectors(law, kind, rng)
        predictions = location_predictor(
            tokens, k, v, inverse_temperature=law["inverse_temperature"]
        )
        losses = (targets - predictions) ** 2
        error = losses.std() / math.sqrt(len(losses))
        assert abs(losses.mean() - landscape(**law).risk(*order(k, v))) < SIGMAS * error


@pytest.mark.parametrize("law", LAWS)
def test_equals_quadrature(law, orders, quadrature):
    closed_form = landscape(**law).risk(*orders.T)
    assert_allclose(
        closed_form, [quadrature(x, **law).real for x in orders], rtol=QUADRATURE_RTOL
    )


@pytest.mark.parametrize("law", LAWS)
def test_gradient_equals_complex_steps_of_quadrature(law, orders, quadrature):
    gradient = landscape(**law).gradient(*orders.T)
    step = 1e-30
    numeric = [
        [quadrature(x + 1j * step * e, **law).imag / step for e in np.eye(5)]
        for x in orders
    ]
    scale = np.abs(gradient).max()
    assert_allclose(gradient, numeric, rtol=1e-9, atol=QUADRATURE_RTOL * scale)


def test_gradient_equals_the_law_by_simulation(rng, pair, order):
    """Tangent parts of the expected gradients of the loss, all coordinates."""
    law = {"d": 6, "n_tokens": 3, "gamma": 0.8}
    sharp = 0.4
    k, v = pair(rng, 6)
    tokens, targets, _ = SingleLocation(**law).sample(100_000, rng)
    error = location_predictor(tokens, k, v, inverse_temperature=sharp) - targets
    slope = sharp * 2 / math.sqrt(math.pi) * np.exp(-((sharp * tokens @ k) ** 2))
    sample_k = (
        2 * error[:, None] * np.einsum("nl,nld->nd", slope * (tokens @ v), tokens)
    )
    sample_v = (
        2 * error[:, None] * np.einsum("nl,nld->nd", erf(sharp * tokens @ k), tokens)
    )

    by = landscape(**law, inverse_temperature=sharp).gradient(*order(k, v))
    planted_key, planted_value = np.eye(6)[:2]
    exact_k = by[0] * planted_key + by[3] * planted_value + by[4] * v
    exact_v = by[1] * planted_value + by[2] * planted_key + by[4] * k

    for sample, exact, at in ((sample_k, exact_k, k), (sample_v, exact_v, v)):
        tangent = np.eye(6) - np.outer(at, at)
        sample = sample @ tangent
        deviation = np.abs(sample.mean(0) - tangent @ exact)
        assert np.all(deviation < SIGMAS * sample.std(0) / math.sqrt(len(sample)))


def test_oracle_values_of_the_paper():
    """d = 400, L = 10, gamma² = 1/2: the schedule ends at 1/13."""
    risk = landscape(**PAPER, inverse_temperature=[0.1, 1 / 13, 0.3]).risk(1, 1)
    assert_allclose(risk, [0.1135, 0.0750, 0.877], atol=5e-4)
    assert risk[2] > PAPER["gamma"] ** 2


def test_formula_on_the_manifold(rng):
    """Written out with Owen's T once more, as the documentation states it."""
    kappa, nu = rng.uniform(-1, 1, (2, 50))
    sharp, gamma, d, n_tokens = 0.37, 0.9, 50, 6
    c, m = 1 + 2 * (sharp * gamma) ** 2, math.sqrt(d / 2)
    h = sharp * m * kappa / math.sqrt(c)
    zeta = 1 - 8 * owens_t(
        math.sqrt(2) * h, 1 / math.sqrt(1 + 4 * (sharp * gamma) ** 2)
    )
    zeta_0 = 1 - 4 / math.pi * math.atan(1 / math.sqrt(1 + 4 * sharp**2))
    expected = gamma**2 * (1 - 2 * nu * erf(h) + zeta) + (n_tokens - 1) * zeta_0
    assert_allclose(
        landscape(d=d, n_tokens=n_tokens, gamma=gamma, inverse_temperature=sharp).risk(
            kappa, nu
        ),
        expected,
        rtol=1e-13,
    )


@pytest.mark.parametrize(
    "signs", [(-1, -1, -1, -1, 1), (1, 1, -1, -1, -1), (-1, -1, 1, 1, -1)]
)
def test_symmetries(orders, signs):
    """(k, v) -> -(k, v); reflection along v* with v -> -v; and both."""
    law = LAWS[1]
    assert_allclose(
        landscape(**law).risk(*(orders * signs).T),
        landscape(**law).risk(*orders.T),
        rtol=1e-13,
    )
    assert_allclose(
        landscape(**law).gradient(*(orders * signs).T),
        landscape(**law).gradient(*orders.T) * signs,
        rtol=1e-11,
        atol=1e-13,
    )


def test_reversing_the_key_alone_is_no_symmetry(orders):
    law = LAWS[1]
    flipped = landscape(**law).risk(*(orders * (-1, 1, 1, -1, -1)).T)
    assert np.abs(flipped - landscape(**law).risk(*orders.T)).max() > 0.1


def test_zero_temperature_predicts_zero(orders):
    risk = landscape(**PAPER, inverse_temperature=0.0, noise=0.3).risk(*orders.T)
    assert_allclose(risk, PAPER["gamma"] ** 2 + 0.09, rtol=1e-14)


def test_an_array_of_temperatures_broadcasts(orders):
    law = {"d": 10, "n_tokens": 3, "gamma": 1.0}
    made = landscape(**law, inverse_temperature=np.array([0.1, 0.2, 0.4])[:, None])
    assert made.risk(*orders.T).shape == (3, 20)
    assert made.gradient(*orders.T).shape == (3, 20, 5)
    single = landscape(**law, inverse_temperature=0.4).risk(*orders[7])
    assert made.risk(*orders.T)[2, 7] == pytest.approx(float(single), rel=1e-14)


@pytest.mark.parametrize("sharp", [1e-8, 1e-6, 1e-3, 1.0, 1e8])
def test_finite_and_monotone_in_dimension_1e12(sharp):
    kappa = np.concatenate([[0.0], np.logspace(-12, 0, 200)])
    law = {"d": 10**12, "n_tokens": 10, "gamma": 1.0, "inverse_temperature": sharp}
    risk = landscape(**law).risk(kappa, 1.0)
    assert np.isfinite(risk).all()
    # One rounding of numbers up to 1 + 9.
    assert np.diff(risk).max() <= 2e-15
    gradient = landscape(**law).gradient(kappa, 1.0, 1e-6, -1e-6, 1e-6)
    assert np.isfinite(gradient).all()


def zeta_reference(h, g):
    """Relative accuracy: panels of 40 Gauss nodes of a positive integrand."""
    q = math.sqrt(1 + 4 * g * g)
    length = 4 * g * g / (q * (q + 1))  # 1 - 1/q
    nodes, weights = np.polynomial.legendre.leggauss(40)
    edges = np.linspace(0, 1, 6)
    total = 0.0
    for low, high in itertools.pairwise(edges):
        u = low + (high - low) * (nodes + 1) / 2
        square = 1 + (1 - length * u) ** 2
        terms = np.exp(-h * h * square) / square
        total += (weights * terms).sum() * (high - low) / 2
    return erf(h) ** 2 + 8 * length * total / (2 * math.pi)


@pytest.mark.parametrize("g", [1e-3, 0.1, 0.16, 0.17, 0.5, 2.0, 50.0])
@pytest.mark.parametrize("h", [0.0, 1e-6, 1e-2, 0.5, 2.0, 5.0, 30.0])
def test_zeta_keeps_relative_accuracy(g, h):
    """The worst error seen against 50 digits is 3e-15 (at the switch of methods)."""
    made = landscape(d=2, n_tokens=1, gamma=g, inverse_temperature=1.0)
    values = made._arguments(np.asarray(h * math.sqrt(1 + 2 * g * g)))
    zeta = values.erf_h**2 + 8 * values.gap
    assert zeta == pytest.approx(zeta_reference(h, g), rel=2e-14)


@pytest.mark.parametrize("sharp", [1e-12, 1e-8, 1e-4])
def test_zeta_at_zero_for_small_temperatures(sharp):
    """E erf²(lambda G) = (4/pi) lambda² (1 - 2 lambda² + O(lambda⁴))."""
    series = 4 / math.pi * sharp**2 * (1 - 2 * sharp**2)
    assert float(zeta_at_zero(np.asarray(sharp))) == pytest.approx(series, rel=1e-14)


def test_compiled_owen_difference_equals_scipy():
    """T(H, 1) - T(H, r) by the compiled rule, to 1e-15 over all H and r."""
    for g in np.logspace(-4, 4, 33):
        _, r, length = erf_factors(1.0, g)
        for h in np.linspace(-9, 9, 181):
            big = math.sqrt(2) * h
            expected = owens_t(big, 1.0) - owens_t(big, r)
            assert abs(owen_gap(h, r, length) - expected) < 1e-15
