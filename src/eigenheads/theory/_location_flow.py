"""Gradient flow on the invariant manifold, its fixed points and their kinds."""

import math
from dataclasses import dataclass
from itertools import count
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import solve_ivp
from scipy.special import erf, erfc

from eigenheads._checks import Got, check_count, check_finite_array, fail
from eigenheads._limits import MAX_RECORDED
from eigenheads._trajectories import Trajectories
from eigenheads._typing import FloatArray
from eigenheads.theory._location_checks import (
    ROUNDING,
    Law,
    check_broadcast,
    check_duration,
    check_law,
    check_order,
    check_scalar_law,
)
from eigenheads.theory._location_formulas import (
    TWO_OVER_ROOT_PI,
    erf_factors,
    risk_slopes,
)
from eigenheads.theory._location_risk import special_values

Kind = Literal["sink", "saddle", "source"]

# Far below what a figure or a claim resolves; an error of 1e-9 a run was seen.
_RTOL, _ATOL = 1e-10, 1e-14

# A few hundred suffice at ordinary dimensions, 4e4 were needed at d = 1e12.
_MAX_CALLS = 400_000


@dataclass(frozen=True, kw_only=True)
class FixedPoint:
    """A point where the flow on the invariant manifold rests.

    Attributes
    ----------
    kappa, nu
        Where it is.
    kind
        ``"sink"`` attracts, ``"source"`` repels, ``"saddle"`` does both. By the signs
        of the eigenvalues as numbers, also where float64 rounds one to zero.
    eigenvalues
        Of the field's Jacobian there, in increasing order.
    """

    kappa: float
    nu: float
    kind: Kind
    eigenvalues: tuple[float, float]


def location_field(
    kappa: ArrayLike,
    nu: ArrayLike,
    *,
    d: ArrayLike,
    n_tokens: ArrayLike,
    gamma: ArrayLike,
    inverse_temperature: ArrayLike,
) -> tuple[FloatArray, FloatArray]:
    r"""Velocity of the gradient flow on the invariant manifold.

    .. math::

        \dot\kappa = -(1-\kappa^2)\, \partial_\kappa R, \qquad
        \dot\nu = -(1-\nu^2)\, \partial_\nu R
        \qquad (\theta = \eta = \rho = 0)

    Parameters
    ----------
    kappa, nu
        :math:`\kappa = k \cdot k^*`, :math:`\nu = v \cdot v^*`.
    d, n_tokens, gamma
        Of the law; here the number of tokens changes nothing.
    inverse_temperature
        :math:`\lambda \ge 0`.

    Returns
    -------
    kappa_velocity, nu_velocity
        Of the shape to which all arguments broadcast.

    Examples
    --------
    >>> location_field(0.0, 0.0, d=400, n_tokens=10, gamma=1.0, inverse_temperature=1.0)
    (array(0.), array(0.))
    """
    owner = "location_field"
    at = check_order("kappa", kappa, owner=owner), check_order("nu", nu, owner=owner)
    law = check_law(d, n_tokens, gamma, inverse_temperature, owner=owner)
    named = {"kappa": at[0], "nu": at[1], **law._asdict()}
    shape = check_broadcast(named, owner=owner)
    # Adding zero turns -0.0 into 0.0.
    along_kappa, along_nu = (part + np.zeros(shape) for part in _velocity(*at, law))
    return np.asarray(along_kappa), np.asarray(along_nu)


def location_flow(
    start: ArrayLike,
    *,
    d: int,
    n_tokens: int,
    gamma: float,
    inverse_temperature: float,
    duration: float,
    n_records: int = 201,
) -> Trajectories:
    r"""Gradient flow on the invariant manifold :math:`\theta = \eta = \rho = 0`.

    The solution of :func:`location_field`, the limit of
    :func:`location_descent` on the manifold as the step size :math:`\alpha \to 0`
    with time = updates :math:`\times\ \alpha`.

    Parameters
    ----------
    start
        One row per run: :math:`\kappa, \nu`. A single row is one run.
    d, n_tokens, gamma
        Of the law.
    inverse_temperature
        :math:`\lambda \ge 0`, constant.
    duration
        Time to integrate over.
    n_records
        Equally spaced records, the start and the end included.

    Returns
    -------
    trajectories
        ``kappa`` and ``nu``; ``steps`` are times.

    References
    ----------
    .. [1] marion2025, the vector field of the dynamics on the manifold.

    Examples
    --------
    >>> path = location_flow([0.1, 0.0], d=400, n_tokens=10, gamma=0.5**0.5,
    ...                      inverse_temperature=0.1, duration=100.0)
    >>> path.final("kappa").round(2), path.final("nu").round(2)
    (array([0.99]), array([1.]))
    """
    owner = "location_flow"
    law = check_scalar_law(d, n_tokens, gamma, inverse_temperature, owner=owner)
    end = check_duration(duration, owner=owner)
    points = _check_start(start, owner=owner)
    most = MAX_RECORDED // (2 * len(points))
    n_records = check_count(
        "n_records", n_records, owner=owner, minimum=2, maximum=most
    )
    times = np.linspace(0.0, end, n_records)
    paths = np.array([_integrate(point, law, times, owner=owner) for point in points])
    return Trajectories(times, {"kappa": paths[:, 0], "nu": paths[:, 1]})


def location_fixed_points(
    *, d: int, n_tokens: int, gamma: float, inverse_temperature: float
) -> tuple[FixedPoint, ...]:
    r"""All fixed points of the flow on the invariant manifold, with their kinds.

    On the manifold, with :math:`h = wm\kappa`,

    .. math::

        R_\nu = -2\gamma^2 \operatorname{erf}(h), \qquad
        R_\kappa = 2\gamma^2 w m \operatorname{erf}'(h)
        \bigl(\operatorname{erf}(rh) - \nu\bigr)

    so :math:`\dot\nu = 0` only for :math:`\kappa = 0`
    (then :math:`\dot\kappa = 0` forces :math:`\nu = 0`) or :math:`\nu = \pm 1` (then
    :math:`|\operatorname{erf}| < 1` forces :math:`\kappa = \pm 1`). The origin is a
    saddle; corners with :math:`\kappa = \nu` are sinks, the others sources.

    Parameters
    ----------
    d, n_tokens, gamma
        Of the law; the number of tokens changes nothing.
    inverse_temperature
        :math:`\lambda > 0`. (For :math:`\lambda = 0` every point is fixed.)

    Returns
    -------
    fixed_points
        The origin, then the four corners.

    Examples
    --------
    >>> for point in location_fixed_points(d=400, n_tokens=10, gamma=0.5**0.5,
    ...                                    inverse_temperature=0.1):
    ...     print(point.kappa, point.nu, point.kind)
    0.0 0.0 saddle
    1.0 1.0 sink
    -1.0 -1.0 sink
    1.0 -1.0 source
    -1.0 1.0 source
    """
    owner = "location_fixed_points"
    law = check_scalar_law(d, n_tokens, gamma, inverse_temperature, owner=owner)
    if law.inverse_temperature == 0:
        fail("inverse_temperature", "a finite number > 0", 0.0, owner=owner)
    corners = ((1.0, 1.0), (-1.0, -1.0), (1.0, -1.0), (-1.0, 1.0))
    return (_origin(law), *(_corner(kappa, nu, law) for kappa, nu in corners))


def _origin(law: Law) -> FixedPoint:
    # Eigenvalues of [[-p, b], [b, 0]]: their product is -b² < 0, so one of each sign.
    (minus_p, b), _ = _jacobian(0.0, 0.0, law)
    reach = math.hypot(minus_p / 2, b) - minus_p / 2
    escape = b * (b / reach) if reach else 0.0
    eigenvalues = (-float(reach), float(escape))
    return FixedPoint(kappa=0.0, nu=0.0, kind="saddle", eigenvalues=eigenvalues)


def _corner(kappa: float, nu: float, law: Law) -> FixedPoint:
    w, r, _ = erf_factors(law.inverse_temperature, law.gamma)
    h = float(w * np.sqrt(law.d / 2))
    scale = 4 * float(law.gamma) ** 2
    # 1 - erf(r h) without cancellation; 1 + erf(r h) has none.
    distance = erfc(r * h) if kappa == nu else 1 + erf(r * h)
    along_kappa = scale * h * TWO_OVER_ROOT_PI * math.exp(-min(h * h, 1e6)) * distance
    along_nu = scale * erf(h)
    sign = -1.0 if kappa == nu else 1.0
    low, high = sorted((sign * float(along_kappa), sign * float(along_nu)))
    kind: Kind = "sink" if kappa == nu else "source"
    return FixedPoint(kappa=kappa, nu=nu, kind=kind, eigenvalues=(low, high))


def _velocity(kappa: FloatArray, nu: FloatArray, law: Law) -> tuple[FloatArray, ...]:
    by_kappa, by_nu, *_ = risk_slopes(
        (kappa, nu, 0.0, 0.0, 0.0), *special_values(kappa, law)
    )
    return -by_kappa * (1 - kappa) * (1 + kappa), -by_nu * (1 - nu) * (1 + nu)


def _jacobian(kappa: float, nu: float, law: Law) -> FloatArray:
    """Return the derivative of the velocity, from the second derivatives of R."""
    w, r, _ = erf_factors(law.inverse_temperature, law.gamma)
    s = w * np.sqrt(law.d / 2)
    h = s * kappa
    variance = law.gamma**2
    e1 = TWO_OVER_ROOT_PI * np.exp(-h * h)
    f1 = r * TWO_OVER_ROOT_PI * np.exp(-h * h * r * r)
    mismatch = erf(r * h) - nu
    by_kappa, by_nu = 2 * variance * s * e1 * mismatch, -2 * variance * erf(h)
    kappa_kappa = 2 * variance * s * s * e1 * (f1 - 2 * h * mismatch)
    kappa_nu = -2 * variance * s * e1
    return np.array(
        [
            [
                2 * kappa * by_kappa - (1 - kappa**2) * kappa_kappa,
                -(1 - kappa**2) * kappa_nu,
            ],
            [-(1 - nu**2) * kappa_nu, 2 * nu * by_nu],
        ]
    )


def _integrate(
    point: FloatArray, law: Law, times: FloatArray, *, owner: str
) -> FloatArray:
    # In units of the duration: the integrator cannot start on a tiny interval.
    calls, end = count(), times[-1]

    def velocity(share: float, state: FloatArray) -> FloatArray:
        if next(calls) >= _MAX_CALLS:
            got = Got(f"{float(end)!r}, and stopped at {share * end:.3g}")
            contract = f"reachable in {_MAX_CALLS} evaluations of the field"
            fail("duration", contract, got, owner=owner)
        return end * np.array(_velocity(state[0], state[1], law))

    def jacobian(_: float, state: FloatArray) -> FloatArray:
        return end * _jacobian(state[0], state[1], law)

    # The origin is stiff at large d: its stable rate grows like d.
    solution = solve_ivp(
        velocity,
        (0.0, 1.0),
        point,
        method="LSODA",
        t_eval=np.linspace(0.0, 1.0, len(times)),
        jac=jacobian,
        rtol=_RTOL,
        atol=_ATOL,
    )
    if not solution.success or not np.isfinite(solution.y).all():
        got = Got(f"{float(end)!r} ({solution.message})")
        fail("duration", "a time the integrator can reach", got, owner=owner)
    path: FloatArray = np.clip(solution.y, -1.0, 1.0)
    path[:, 0] = point
    return path


def _check_start(start: ArrayLike, *, owner: str) -> FloatArray:
    array = np.atleast_2d(check_finite_array("start", start, owner=owner))
    if array.ndim != 2 or array.shape[1] != 2 or not len(array):
        contract = "of shape (n_runs, 2), the columns kappa, nu"
        fail("start", contract, array, owner=owner)
    if np.any(np.abs(array) > 1 + ROUNDING):
        worst = float(array.flat[np.argmax(np.abs(array))])
        fail("start", "inner products from -1 to 1", worst, owner=owner)
    return np.clip(array, -1.0, 1.0)
