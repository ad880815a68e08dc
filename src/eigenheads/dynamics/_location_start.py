"""Where single-location regression starts: on the sphere, on the manifold, or given."""

import math
from collections.abc import Iterable

import numpy as np

from eigenheads._checks import Got, check_count, check_finite_array, fail, shown
from eigenheads._rng import run_generators
from eigenheads._typing import FloatArray
from eigenheads.dynamics._engine import chi

# Up to here d - 4 and d / 2 are exact in double precision.
MAX_DIMENSION = 10**15
MAX_RUNS = 10**6
# Slack for rounded input: in squared lengths, and in the inner product of residuals
# (where a residual of squared length 1e-16, lost to rounding, still counts 1e-8).
_LENGTH_SLACK, _PRODUCT_SLACK = 1e-9, 1e-7


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


def check_start(start: object, n_runs: int, d: int, *, owner: str) -> FloatArray:
    """Return `start` as (n_runs, 5), or raise if no two unit vectors in R^d have it."""
    rows = check_finite_array("start", start, owner=owner)
    if rows.shape not in {(5,), (n_runs, 5)}:
        contract = (
            "order parameters kappa, nu, theta, eta, rho of shape (5,) or "
            f"({n_runs}, 5)"
        )
        fail("start", contract, rows, owner=owner)
    rows = np.array(np.broadcast_to(rows, (n_runs, 5)))
    for run, row in enumerate(rows):
        if not _is_feasible(row, d):
            numbers = ", ".join(shown(number) for number in row)
            contract = (
                "order parameters kappa, nu, theta, eta, rho of two unit vectors in "
                f"{d} dimensions"
            )
            fail("start", contract, Got(f"{numbers} in run {run}"), owner=owner)
    return rows


def _is_feasible(row: FloatArray, d: int) -> bool:
    """Tell whether the Gram matrix of k*, v*, k, v is one, with rank at most d."""
    if np.abs(row).max() > 1 + _LENGTH_SLACK:
        return False
    kappa, nu, theta, eta, rho = row
    k_left = 1 - kappa**2 - eta**2
    v_left = 1 - nu**2 - theta**2
    if min(k_left, v_left) < -_LENGTH_SLACK:
        return False
    if d == 2 and max(k_left, v_left) > _LENGTH_SLACK:
        return False
    # What of the residuals' product Cauchy-Schwarz leaves; in a plane's complement
    # of one dimension (d = 3) they are parallel.
    cross = abs(rho - kappa * theta - eta * nu)
    bound = math.sqrt(max(0.0, k_left) * max(0.0, v_left))
    if d == 3 and cross < bound - _PRODUCT_SLACK:
        return False
    return bool(cross <= bound + _PRODUCT_SLACK)


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
