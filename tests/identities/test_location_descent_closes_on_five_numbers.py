r"""Population descent in R^d is a dynamical system on five numbers.

Identity (docs/theory/location.md, Proposition 3): with R a function of
kappa, nu, theta, eta, rho, projected gradient descent on unit vectors k, v moves these
five numbers by a map that does not see d otherwise.
"""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import owens_t

from eigenheads.datasets import SingleLocation
from eigenheads.functional import location_predictor
from eigenheads.theory import LocationLandscape, location_descent

LAW = {"d": 400, "n_tokens": 10, "gamma": math.sqrt(0.5)}
NAMES = ["kappa", "nu", "theta", "eta", "rho"]
KEY, VALUE = 0, 1  # k*, v* are the first two basis vectors


def order(k, v):
    return np.stack(
        [k[:, KEY], v[:, VALUE], v[:, KEY], k[:, VALUE], (k * v).sum(1)], axis=-1
    )


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def tangent(vectors, at):
    return vectors - at * (vectors * at).sum(axis=-1, keepdims=True)


def gradient_by_moments(order, sharp):
    """Product rule on the moments of one token, in the variables of the law.

    R = const - 2 E[Yab] + E[a²b²] + 2 (L-1) E[ab] E[ab]_0 + (L-1) E[a²b²]_0
        + (L-1)(L-2) E[ab]_0²,  a = erf(lambda X·k), b = X·v.
    """
    kappa, nu, theta, eta, rho = order
    m, n, s2 = math.sqrt(LAW["d"] / 2), LAW["n_tokens"] - 1, LAW["gamma"] ** 2
    c, q = 1 + 2 * sharp**2 * s2, 1 + 4 * sharp**2 * s2
    x = sharp * m * kappa
    h, u = x / math.sqrt(c), x / math.sqrt(c * q)
    e = math.erf(h)
    e1 = 2 / math.sqrt(math.pi) * math.exp(-h * h) / math.sqrt(c)  # by x, as below
    e2, e3 = -2 * h * e1 / math.sqrt(c), (4 * h * h - 2) * e1 / c
    f = math.erf(u)
    f1 = 2 / math.sqrt(math.pi) * math.exp(-u * u) / math.sqrt(c * q)
    f2 = -2 * u * f1 / math.sqrt(c * q)
    zeta = 1 - 8 * owens_t(math.sqrt(2) * h, 1 / math.sqrt(q))
    z1, z2 = 2 * f * e1, 2 * (f1 * e1 + f * e2)
    z3 = 2 * (f2 * e1 + 2 * f1 * e2 + f * e3)
    t, p = m * theta, sharp * s2 * rho

    target = np.array(
        [
            sharp * m * (s2 * nu * e1 + sharp * s2 * eta * (t * e2 + p * e3)),
            s2 * e,
            sharp * s2 * m * eta * e1,
            sharp * s2 * (t * e1 + p * e2),
            sharp**2 * s2**2 * eta * e2,
        ]
    )
    mean = t * e + p * e1
    by_mean = np.array([sharp * m * (t * e1 + p * e2), 0, m * e, 0, sharp * s2 * e1])
    by_square = np.array(
        [
            sharp * m * ((t * t + s2) * z1 + 2 * t * p * z2 + p * p * z3),
            0,
            2 * m * (t * zeta + p * z1),
            0,
            2 * sharp * s2 * (t * z1 + p * z2),
        ]
    )
    slope_0 = 2 * sharp / math.sqrt(math.pi * (1 + 2 * sharp**2))
    curvature_0 = 8 / math.pi / (1 + 2 * sharp**2) / math.sqrt(1 + 4 * sharp**2)
    gradient = by_square - 2 * target + 2 * n * slope_0 * rho * by_mean
    gradient[4] += 2 * n * (slope_0 * mean + rho * sharp**2 * curvature_0)
    gradient[4] += 2 * n * (n - 1) * slope_0**2 * rho
    return gradient


def vector_steps(k, v, sharpness, step_size):
    """Chain rule and Euclidean geometry in R^d; one array entry a coordinate."""
    for sharp in sharpness:
        by = np.array([gradient_by_moments(x, sharp) for x in order(k, v).tolist()])
        gradient_k, gradient_v = by[:, 4:] * v, by[:, 4:] * k
        gradient_k[:, [KEY, VALUE]] += by[:, [0, 3]]
        gradient_v[:, [KEY, VALUE]] += by[:, [2, 1]]
        k, v = (
            unit(k - step_size * tangent(gradient_k, k)),
            unit(v - step_size * tangent(gradient_v, v)),
        )
    return k, v


def test_gradient_by_moments_is_the_gradient(rng):
    """Two ways to write it; relative to its largest entry, of order 10."""
    k, v = unit(rng.standard_normal((2, 50, 4)))
    for sharp in (0.03, 0.1, 0.9):
        landscape = LocationLandscape(SingleLocation(**LAW), inverse_temperature=sharp)
        exact = landscape.gradient(*order(k, v).T)
        ours = [gradient_by_moments(x, sharp) for x in order(k, v).tolist()]
        assert_allclose(ours, exact, rtol=0, atol=1e-12 * np.abs(exact).max())


def test_equal_over_20_000_steps(rng):
    """The difference is rounding, contracted by the descent: 1e-8 has a wide margin."""
    k, v = unit(rng.standard_normal((2, 3, 400)))
    path = location_descent(
        SingleLocation(**LAW),
        order(k, v),
        inverse_temperature=0.1,
        step_size=4e-3,
        n_steps=20_000,
        record_every=5_000,
    )
    for record in range(1, 5):
        k, v = vector_steps(k, v, [0.1] * 5_000, 4e-3)
        closed = np.stack([path[name][:, record] for name in NAMES], axis=-1)
        assert_allclose(closed, order(k, v), rtol=0, atol=1e-8)


@pytest.mark.parametrize("first", [0, 600, 3_000, 8_000, 16_000, 24_000])
def test_equal_after_restarts_of_the_schedule(rng, first):
    """lambda = 1/(1 + 1e-4 t): 200 steps, taken up from the vectors every 40.

    A period-2 oscillation amplifies rounding there, by about 1e9 in 200 free steps
    (seen), so by about 1e2 in 40: free runs are not compared, restarts are.
    """
    k, v = unit(rng.standard_normal((2, 3, 400)))
    # Approach the oscillation first, on vectors.
    k, v = vector_steps(k, v, [1 / (1 + 1e-4 * first)] * 300, 4e-3)
    for restart in range(first, first + 200, 40):
        sharpness = [1 / (1 + 1e-4 * (restart + t)) for t in range(40)]
        path = location_descent(
            SingleLocation(**LAW),
            order(k, v),
            inverse_temperature=sharpness.__getitem__,
            step_size=4e-3,
            n_steps=40,
        )
        k, v = vector_steps(k, v, sharpness, 4e-3)
        closed = np.stack([path.final(name) for name in NAMES], axis=-1)
        assert_allclose(closed, order(k, v), rtol=0, atol=1e-8)


@pytest.mark.torch
def test_equal_to_automatic_differentiation_in_the_vectors(rng, quadrature_risk):
    """Nothing of the library's gradient: autograd through a quadrature of the risk."""
    import torch

    k, v = unit(rng.standard_normal((2, 400)))
    path = location_descent(
        SingleLocation(**LAW),
        order(k[None], v[None]),
        inverse_temperature=0.1,
        step_size=4e-3,
        n_steps=100,
    )
    for _ in range(100):
        vectors = [
            torch.tensor(k, requires_grad=True),
            torch.tensor(v, requires_grad=True),
        ]
        quadrature_risk(*vectors, **LAW, inverse_temperature=0.1).backward()
        k, v = (
            unit(x - 4e-3 * tangent(t.grad.numpy(), x))
            for x, t in zip((k, v), vectors, strict=True)
        )
    closed = [path.final(name)[0] for name in NAMES]
    assert_allclose(closed, order(k[None], v[None])[0], rtol=0, atol=1e-10)


@pytest.fixture
def quadrature_risk():
    import torch

    nodes, weights = map(torch.asarray, np.polynomial.hermite_e.hermegauss(80))
    weights = weights / weights.sum()

    def risk(k, v, *, d, n_tokens, gamma, inverse_temperature):
        """Condition on X·k = mean + scale G, then integrate over G."""
        rho, eta, nu = k @ v, k[VALUE], v[VALUE]
        shift, n = math.sqrt(d / 2), n_tokens - 1
        score = torch.erf(inverse_temperature * (shift * k[KEY] + gamma * nodes))
        mean = shift * v[KEY] + gamma * rho * nodes
        target = gamma * eta * nodes * mean + gamma**2 * (nu - eta * rho)
        score_0 = torch.erf(inverse_temperature * nodes)
        square = score**2 * (mean**2 + gamma**2 * (1 - rho**2)) - 2 * score * target
        square_0 = score_0**2 * (1 - rho**2 + (rho * nodes) ** 2)
        first, first_0 = weights @ (score * mean), weights @ (score_0 * rho * nodes)
        return (
            weights @ (square + n * square_0)
            + 2 * n * first * first_0
            + n * (n - 1) * first_0**2
        )

    return risk


def test_fails_for_tokens_that_are_not_isotropic(rng):
    """The hypothesis is needed: one noisy coordinate, same five numbers, other risk.

    Twice the difference of the two risks is above 20 standard errors.
    """
    law = SingleLocation(d=4, n_tokens=3, gamma=1.0)
    tokens, targets, _ = law.sample(50_000, rng)
    tokens[:, :, 2] *= 3.0
    key, value, noisy, quiet = np.eye(4)

    def losses(rest):
        k, v = 0.6 * key + 0.8 * rest, value
        predictions = location_predictor(tokens, k, v, inverse_temperature=1.0)
        return (targets - predictions) ** 2

    difference = losses(noisy) - losses(quiet)
    assert abs(difference.mean()) > 10 * difference.std() / math.sqrt(len(difference))
