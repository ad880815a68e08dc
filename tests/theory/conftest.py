"""Order parameters of real vectors, and an independent derivation of the risk."""

import numpy as np
import pytest
from scipy.special import erf

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(200)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def order_of(k, v):
    """Return kappa, nu, theta, eta, rho of unit vectors; k*, v* are e_1, e_2."""
    return np.array([k[0], v[1], v[0], k[1], k @ v])


def random_pair(rng, d):
    k, v = rng.standard_normal((2, d))
    return k / np.linalg.norm(k), v / np.linalg.norm(v)


def risk_by_quadrature(order, *, d, n_tokens, gamma, inverse_temperature, noise=0.0):
    """The risk from conditional Gaussian moments and a 200-node Gauss-Hermite rule.

    Given G = (X·k - mean)/scale, X·v is Gaussian: condition on G and integrate erf
    numerically. Analytic in `order`, so complex steps differentiate it exactly.
    """
    kappa, nu, theta, eta, rho = order
    nodes, weights = NODES, WEIGHTS
    shift = np.sqrt(d / 2)
    score = erf(inverse_temperature * (shift * kappa + gamma * nodes))
    mean = shift * theta + gamma * rho * nodes
    target = gamma * eta * nodes
    deciding_square = (weights * score**2 * (mean**2 + gamma**2 * (1 - rho**2))).sum()
    deciding = (weights * score * mean).sum()
    with_target = weights * score * (target * mean + gamma**2 * (nu - eta * rho))
    score_0 = erf(inverse_temperature * nodes) + 0j
    other_square = (weights * score_0**2 * (1 - rho**2 + (rho * nodes) ** 2)).sum()
    other = (weights * score_0 * rho * nodes).sum()
    n = n_tokens - 1
    return (
        gamma**2
        + noise**2
        - 2 * with_target.sum()
        + deciding_square
        + n * other_square
        + 2 * n * deciding * other
        + n * (n - 1) * other**2
    )


@pytest.fixture
def orders(rng):
    """Twenty draws of order parameters of uniform unit vectors in R^6."""
    return np.array([order_of(*random_pair(rng, 6)) for _ in range(20)])


@pytest.fixture
def quadrature():
    return risk_by_quadrature


@pytest.fixture
def pair():
    return random_pair


@pytest.fixture
def order():
    return order_of
