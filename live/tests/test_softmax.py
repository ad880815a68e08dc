"""The page's integrals over softmax weights, against independent quadrature.

With two tokens the means are integrals over a few normals, computed here by a
trapezoidal rule on a grid; with more tokens they are compared with samples.
"""

import json
import math

import numpy as np
import pytest

from eigenheads import theory
from eigenheads.datasets import GaussianPrompts

pytestmark = pytest.mark.browser

TOLERANCE = 1e-6
LARGEST = 4.5  # standard errors, exceeded with probability 7e-6
GAMMA = math.sqrt(0.5)
ORDERS = [
    (0.3, 0.5, 0.1, 0.2, -0.1),
    (-0.4, 0.2, -0.3, 0.1, 0.5),
    (0.95, 0.9, 0.05, -0.1, 0.02),
]


def weights(scores):
    scores = np.exp(scores - scores.max(axis=0))
    return scores / scores.sum(axis=0)


def grid(n, gap=0.5, far=6.0):
    """Return nodes (n, points) and weights of a rule for n standard normals."""
    nodes = np.arange(-far, far + gap / 2, gap)
    mass = np.exp(-0.5 * nodes**2)
    points = np.stack(np.meshgrid(*[nodes] * n, indexing="ij")).reshape(n, -1)
    masses = np.stack(np.meshgrid(*[mass / mass.sum()] * n, indexing="ij"))
    return points, masses.reshape(n, -1).prod(axis=0)


def location_risk(order, d, scale):
    """Return the excess risk with two tokens: values given scores are Gaussian."""
    kappa, nu, along, eta, rho = order
    m = math.sqrt(d / 2)
    (g, h), mass = grid(2, gap=0.2)
    p, q = weights(scale * np.array([m * kappa + GAMMA * g, h]))
    first = m * along + GAMMA * rho * g
    target = GAMMA * eta * g
    mean = p * first + q * rho * h - target
    rest = 1 - rho**2
    variance = GAMMA**2 * (p**2 * rest + 1 - eta**2 - 2 * p * (nu - rho * eta))
    return mass @ (mean**2 + variance + q**2 * rest)


@pytest.mark.parametrize(("d", "scale"), [(80, 0.5), (10, 2.0), (10**9, 1e-4)])
def test_location_with_two_tokens(page, d, scale):
    law = {"d": d, "nTokens": 2, "gamma": GAMMA}
    for order in ORDERS:
        arguments = f"{json.dumps(order)}, {json.dumps(law)}, {scale}"
        seen = page.run(f"softmaxExcess({arguments})")
        expected = location_risk(order, d, scale)
        assert abs(seen - expected) < TOLERANCE * max(1.0, expected)
        # Gradients against differences; the largest derivative is of order √d.
        slopes = page.run(f"softmaxSlopes({arguments})")
        for axis, slope in enumerate(slopes):
            nudge = 1e-4 * (1 if axis in {1, 3, 4} else min(1, 1e3 / math.sqrt(d)))
            moved = [list(order), list(order)]
            moved[0][axis] += nudge
            moved[1][axis] -= nudge
            up, down = (location_risk(one, d, scale) for one in moved)
            expected = (up - down) / (2 * nudge)
            size = max(1.0, abs(expected), seen / nudge * 1e-8, d**0.5)
            assert abs(slope - expected) < 1e-5 * size


def test_location_with_ten_tokens(page):
    rng = np.random.default_rng(0)
    d, n, scale = 80, 200_000, 0.7
    law = {"d": d, "nTokens": 10, "gamma": GAMMA}
    for order in ORDERS:
        kappa, nu, along, eta, rho = order
        gram = np.eye(4)
        gram[0, 2:], gram[1, 2:], gram[2, 3] = (kappa, along), (eta, nu), rho
        gram = np.triu(gram) + np.triu(gram, 1).T
        x = np.linalg.cholesky(gram) @ rng.standard_normal((10, 4, n))
        x[0] *= GAMMA
        x[0, 2] += math.sqrt(d / 2) * kappa
        x[0, 3] += math.sqrt(d / 2) * along
        errors = (np.sum(weights(scale * x[:, 2]) * x[:, 3], 0) - x[0, 1]) ** 2
        seen = page.run(
            f"softmaxExcess({json.dumps(order)}, {json.dumps(law)}, {scale})"
        )
        assert abs(seen - errors.mean()) < LARGEST * errors.std() / math.sqrt(n)


def heads_risk(order, amplitude, scale, n_tokens, g, mass):
    """Return the excess risk of two heads at nodes g (2, tokens, points)."""
    k1, v2, v1, k2, rho = order
    h = np.stack([g[0], rho * g[0] + math.sqrt(1 - rho**2) * g[1]])
    h[0, :2] += amplitude * np.array([[k1], [k2]])
    h[1, :2] += amplitude * np.array([[v1], [v2]])
    total = weights(scale * h[0]) + weights(scale * h[1])
    total[:2] -= 1
    losses = np.sum(total**2, axis=0)
    mean = mass @ losses
    return mean, math.sqrt(mass @ (losses - mean) ** 2)


@pytest.mark.parametrize("scale", [0.5, 1.2])
def test_two_heads(page, scale):
    points, mass = grid(4, gap=0.55, far=5.5)
    points = points.reshape(2, 2, -1)
    drawn = np.random.default_rng(1).standard_normal((2, 10, 100_000))
    even = np.full(100_000, 1e-5)
    for order in [*ORDERS, (0.7, 0.7, 0.65, 0.65, 0.94)]:
        for n_tokens, g, share in ((2, points, mass), (10, drawn, even)):
            law = {"nTokens": n_tokens, "amplitude": 3.0}
            arguments = f"{json.dumps(law)}, {scale}"
            seen = page.run(f"headsRisk({json.dumps(order)}, {arguments})")
            mean, spread = heads_risk(order, 3.0, scale, n_tokens, g, share)
            bound = TOLERANCE if n_tokens == 2 else LARGEST * spread / math.sqrt(1e5)
            assert abs(seen["excess"] - mean) < bound
        # Derivatives with ten tokens, by differences of the page's own risk.
        for axis in range(5):
            ends = [list(order), list(order)]
            ends[0][axis] += 1e-3
            ends[1][axis] -= 1e-3
            up, down = (
                page.run(f"headsRisk({json.dumps(end)}, {arguments}).excess")
                for end in ends
            )
            assert abs(seen["slopes"][axis] - (up - down) / 2e-3) < 1e-3


def test_pca_means_of_softmax(page):
    nodes, mass = grid(2, gap=0.05, far=6.5)
    drawn = np.random.default_rng(2).standard_normal((50, 40_000))
    for c in (0.05, 0.4, 1.0, 1.7):
        for g, share, n in ((nodes, mass, 0), (drawn, np.full(40_000, 1 / 4e4), 4e4)):
            p = weights(c * g[0] * g)
            errors = (g[0] - np.sum(p * g, axis=0)) ** 2
            norms = 1 - 2 * p[0] + np.sum(p**2, axis=0)
            seen = page.run(f"pcaMeans({c}, {len(g)}, true)")
            for one, values in zip(seen, (errors, norms), strict=True):
                mean = share @ values
                bound = 1e-5 if not n else LARGEST * values.std() / math.sqrt(n)
                assert abs(one - mean) < bound


def test_pca_risk_of_the_linear_head(page):
    """Risk and gradient are those of PCALandscape, in closed form."""
    d, n_tokens = 12, 9
    leading = [0.6**i for i in range(5)]
    values = [*leading, *[0.5 / (d - 5)] * (d - 5)]
    law = {
        "d": d,
        "nTokens": n_tokens,
        "isSoftmax": False,
        "roots": [math.sqrt(value) for value in leading],
        "bulk": math.sqrt(values[-1]),
        "trace": sum(values),
    }
    landscape = theory.PCALandscape(
        GaussianPrompts(np.diag(values), n_tokens=n_tokens),
        inverse_temperature=1.0,
        head="linear",
    )
    for order in ([0.3, -0.2, 0.1, 0.05, 0.2, 0.15], [0.35, 0, 0, 0, 0, 0.01]):
        point = np.array([*order, *[0.0] * (d - 6)])
        arguments = f"{json.dumps(order)}, {json.dumps(law)}, new PcaTable(9, false)"
        seen = page.run(f"[pcaRisk({arguments}), ...pcaGradient({arguments})]")
        expected = [landscape.risk(point), *landscape.gradient(point)[:6]]
        np.testing.assert_allclose(seen, expected, rtol=1e-9, atol=1e-12)


def test_pca_table_interpolates_the_integrals(page):
    for c in (0.013, 0.31, 0.99, 1.61):
        seen = page.run(f"new PcaTable(50, true).at({c})")
        exact = page.run(f"pcaMeans({c}, 50, true)")
        np.testing.assert_allclose(seen[:2], exact, atol=1e-5)
        up, down = (page.run(f"pcaMeans({c + e}, 50, true)") for e in (1e-3, -1e-3))
        slopes = (np.array(up) - down) / 2e-3
        np.testing.assert_allclose(seen[2:], slopes, atol=2e-3)
