r"""The manifold theta = eta = rho = 0 is invariant under descent.

Identity (docs/theory/location.md, Proposition 2): reflecting along v* and reversing v
maps the problem to itself and (theta, eta, rho) to its negative; the manifold is the
fixed set of this symmetry, so gradients are tangent to it.
"""

import numpy as np
import pytest

from eigenheads.datasets import SingleLocation
from eigenheads.theory import LocationLandscape, location_descent

LAW = SingleLocation(d=400)


@pytest.mark.parametrize("inverse_temperature", [0.0, 0.1, 1.0, 30.0])
def test_gradient_is_tangent(rng, inverse_temperature):
    kappa, nu = rng.uniform(-1, 1, (2, 100))
    landscape = LocationLandscape(LAW, inverse_temperature=inverse_temperature)
    gradient = landscape.gradient(kappa, nu)
    assert np.all(gradient[:, 2:] == 0)


@pytest.mark.parametrize("sharpness", [0.1, 0.9, lambda t: 1 / (1 + 1e-4 * t)])
def test_descent_stays(rng, sharpness):
    """Exactly: every term of the three updates has a factor theta, eta or rho."""
    start = np.zeros((5, 5))
    start[:, :2] = rng.uniform(-1, 1, (5, 2))
    path = location_descent(
        LAW,
        start,
        inverse_temperature=sharpness,
        step_size=4e-3,
        n_steps=5_000,
        record_every=50,
    )
    for name in ("theta", "eta", "rho"):
        assert np.all(path[name] == 0)
    assert np.abs(path["nu"] - start[:, 1:2]).max() > 0.1


@pytest.mark.parametrize("dropped", [2, 3, 4])
def test_fails_when_one_of_the_three_is_not_zero(dropped):
    """The hypothesis is needed: any one of the three drives another one off zero."""
    start = np.array([0.5, 0.4, 0.0, 0.0, 0.0])
    start[dropped] = 0.1
    if dropped == 2:  # theta = 0.1 with a feasible rho
        start[4] = 0.0
    path = location_descent(
        LAW, start, inverse_temperature=0.1, step_size=4e-3, n_steps=1
    )
    names = ["kappa", "nu", "theta", "eta", "rho"]
    others = [name for name in names[2:] if name != names[dropped]]
    assert max(abs(path.final(name)[0]) for name in others) > 1e-6
