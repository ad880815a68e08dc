"""Where single-location regression starts: on the sphere, on the manifold, or given."""

import math
from collections.abc import Iterable

import numpy as np

from eigenheads._checks import check_count, fail
from eigenheads._rng import run_generators
from eigenheads._typing import FloatArray
from eigenheads.dynamics._engine import chi

# Up to here d - 4 and d / 2 are exact in double precision.
MAX_DIMENSION = 10**15
MAX_RUNS = 10**6


def location_start(
    d: int, *, n_runs: int, seed: int, on_manifold: bool = False
) -> FloatArray:
    r"""Draw order parameters at which single-location regression may start.

    On the sphere, :math:`k` and :math:`v` are independent and uniform. On the
    invariant manifold they are uniform given :math:`k \perp v^*`,
    :math:`v \perp k^*` and :math:`v \perp k`. Either way at most seven numbers are
    drawn, whatever the dimension: Gaussian coordinates along the directions that
    matter, and one :math:`\chi` for the length of all the others.

    Parameters
    ----------
    d
        Dimension; at least 2, on the manifold at least 3.
    n_runs
        Number of starts.
    seed
        Start r depends on ``(seed, r)`` alone, and on the sphere it is the one that
        :func:`simulate_location` takes for this seed.
    on_manifold
        Whether to start on the invariant manifold.

    Returns
    -------
    start
        Rows :math:`\kappa = k \cdot k^*`, :math:`\nu = v \cdot v^*`,
        :math:`\theta = v \cdot k^*`, :math:`\eta = k \cdot v^*`,
        :math:`\rho = k \cdot v`, shape (n_runs, 5).

    References
    ----------
    .. [1] marion2025.

    Examples
    --------
    >>> location_start(10**9, n_runs=2, seed=0, on_manifold=True).round(5)[:, 2:]
    array([[0., 0., 0.],
           [0., 0., 0.]])
    """
    owner = "location_start"
    if not isinstance(on_manifold, bool | np.bool_):
        fail("on_manifold", "True or False", on_manifold, owner=owner)
    least = 3 if on_manifold else 2
    d = check_count("d", d, owner=owner, minimum=least, maximum=MAX_DIMENSION)
    n_runs = check_count("n_runs", n_runs, owner=owner, maximum=MAX_RUNS)
    generators = run_generators(seed, n_runs, owner=owner)
    return draw_starts(d, generators, on_manifold=on_manifold)


def draw_starts(
    d: int, generators: Iterable[np.random.Generator], *, on_manifold: bool = False
) -> FloatArray:
    """Draw one start from each generator (see :func:`location_start`)."""
    draw = _on_manifold if on_manifold else _on_sphere
    return np.array([draw(float(d), rng) for rng in generators])


def _on_sphere(d: float, rng: np.random.Generator) -> list[float]:
    """Draw k and v along k*, v*, the residual of k, and the length of what is left."""
    k = np.array([*rng.standard_normal(2), chi(rng, d - 2), 0.0])
    along = rng.standard_normal() if d > 2 else 0.0
    v = np.array([*rng.standard_normal(2), along, chi(rng, d - 3)])
    k /= np.linalg.norm(k)
    v /= np.linalg.norm(v)
    return [float(number) for number in (k[0], v[1], v[0], k[1], k @ v)]


def _on_manifold(d: float, rng: np.random.Generator) -> list[float]:
    """Draw (κ, ν) given θ = η = ρ = 0.

    k is uniform on the sphere of v*'s complement, of dimension d - 1. Given k, v is
    uniform on the sphere of the complement of k* and k, of dimension d - 2, in which
    v* lies (it is orthogonal to both).
    """
    first, second = rng.standard_normal(2)
    kappa = first / math.hypot(first, chi(rng, d - 2))
    nu = second / math.hypot(second, chi(rng, d - 3))
    return [float(kappa), float(nu), 0.0, 0.0, 0.0]


def frame_coordinates(row: FloatArray) -> FloatArray:
    """Return k and v (2, 4) along k*, v*, the residual of k, the residual of v."""
    kappa, nu, theta, eta, rho = row
    k_left = math.sqrt(max(0.0, 1 - kappa**2 - eta**2))
    v_left = max(0.0, 1 - theta**2 - nu**2)
    cross = (rho - kappa * theta - eta * nu) / k_left if k_left > 0 else 0.0
    cross = math.copysign(min(abs(cross), math.sqrt(v_left)), cross)
    rest = math.sqrt(max(0.0, v_left - cross**2))
    vectors = np.array([[kappa, eta, k_left, 0.0], [theta, nu, cross, rest]])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
