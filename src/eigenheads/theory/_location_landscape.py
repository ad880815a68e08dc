r"""Single-location regression: closed forms of the risk, and the landscape they make.

Notation: :math:`m = \sqrt{d/2}`, :math:`w = \lambda/\sqrt{1+2\lambda^2 s^2}` and
:math:`r = 1/\sqrt{1+4\lambda^2 s^2}` for a token of scale :math:`s` (``w``, ``r`` for
the deciding token, ``w_0``, ``r_0`` for the others), :math:`h = w m \kappa`. Written
in these, no term overflows for any temperature.

Numba compiles these functions when a kernel of this module calls them.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from itertools import count
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numba.extending import register_jitable
from numpy.typing import ArrayLike
from scipy.integrate import solve_ivp
from scipy.special import erf, erfc, owens_t

from eigenheads._checks import Got, check_count, check_finite_array, fail
from eigenheads._compile import njit
from eigenheads._limits import LARGEST, MAX_RECORDED
from eigenheads._location_order import ORDER_PARAMETERS
from eigenheads._trajectories import Trajectories
from eigenheads._typing import FloatArray
from eigenheads.datasets import SingleLocation
from eigenheads.theory._ranges import (
    ROUNDING,
    check_broadcast,
    check_duration,
    check_inner_product,
    check_law,
    check_range,
)

# --- Formulas ------------------------------------------------------------------------


# A float inside a compiled loop, an array outside.
Number: TypeAlias = Any

TWO_OVER_ROOT_PI = 2 / np.sqrt(np.pi)

# Up to this length of [r, 1] the two Owen's T are too close to subtract, and six
# Gauss nodes integrate their difference to rounding (tests/theory).
SHORT = 0.05


def _unit_interval_rule(n_nodes: int) -> tuple[FloatArray, FloatArray]:
    nodes, weights = np.polynomial.legendre.leggauss(n_nodes)
    return (nodes + 1) / 2, weights / 2


SHORT_NODES, SHORT_WEIGHTS = _unit_interval_rule(6)
LONG_NODES, LONG_WEIGHTS = _unit_interval_rule(20)


@register_jitable
def erf_factors(inverse_temperature: Number, scale: Number) -> Number:
    r"""Return :math:`w`, :math:`r` and :math:`1 - r` (without cancellation)."""
    g = inverse_temperature * scale
    q = np.sqrt(1 + 4 * g * g)
    w = inverse_temperature / np.sqrt(1 + 2 * g * g)
    return w, 1 / q, 4 * g * g / (q * (q + 1))


@register_jitable
def owen_rule(
    h: Number, r: Number, length: Number, nodes: FloatArray, weights: FloatArray
) -> Number:
    r"""Return :math:`T(\sqrt2 h, 1) - T(\sqrt2 h, r)` by a rule on :math:`[r, 1]`.

    .. math::

        \frac1{2\pi} \int_r^1 \frac{e^{-h^2(1+t^2)}}{1+t^2} \, dt

    The integrand is positive, so the relative accuracy is that of the rule.
    """
    total = 0.0 * h
    for i in range(len(nodes)):
        one_plus_square = 1 + (r + length * nodes[i]) ** 2
        total = total + weights[i] * np.exp(-h * h * one_plus_square) / one_plus_square
    return total * length / (2 * np.pi)


@register_jitable
def erf_slopes(
    h: Number, w: Number, r: Number, erf_h: Number, erf_rh: Number
) -> Number:
    r"""Return the terms of the moments of the deciding token.

    The first three derivatives of :math:`\operatorname{erf}` at :math:`h`, and
    :math:`\lambda^j \partial_x^j \zeta`, :math:`j = 1, 2, 3`, where
    :math:`\zeta(x) = \mathbb E \operatorname{erf}^2(x + \lambda\gamma G)`.
    """
    e1 = TWO_OVER_ROOT_PI * np.exp(-h * h)
    e2 = -2 * h * e1
    e3 = (4 * h * h - 2) * e1
    f1 = r * TWO_OVER_ROOT_PI * np.exp(-(h * r) * (h * r))
    f2 = -2 * h * r * r * f1
    z1 = 2 * w * erf_rh * e1
    z2 = 2 * w * w * (f1 * e1 + erf_rh * e2)
    z3 = 2 * w * w * w * (f2 * e1 + 2 * f1 * e2 + erf_rh * e3)
    return e1, e2, e3, z1, z2, z3


@register_jitable
def risk_value(
    order: Number,
    law: Number,
    heads: Number,
    erf_h: Number,
    erf_rh: Number,
    gap: Number,
) -> Number:
    r"""Return the excess risk without the term :math:`(L-1) \zeta(0, \lambda)`.

    `order` is (kappa, nu, theta, eta, rho), `law` is (m, gamma², L - 1), `heads` is
    (w, r, w_0, r_0), `gap` the difference of the two Owen's T.
    """
    kappa, nu, theta, eta, rho = order
    m, variance, n_others = law
    w, r, w_0, r_0 = heads
    e1, e2, _, z1, z2, _ = erf_slopes(w * m * kappa, w, r, erf_h, erf_rh)
    zeta = erf_h * erf_h + 8 * gap
    mean = m * theta * erf_h + w * variance * rho * e1
    mean_0 = TWO_OVER_ROOT_PI * w_0 * rho
    # gamma² (1 - 2 nu erf(h) + zeta), as a sum of positive terms.
    on_manifold = variance * ((erf_h - nu) ** 2 + (1 - nu) * (1 + nu) + 8 * gap)
    of_decider = (m * theta) ** 2 * zeta + variance * rho * (
        2 * m * theta * z1 + variance * rho * z2
    )
    cross = w * variance * eta * (m * theta * e1 + w * variance * rho * e2)
    curvature_0 = 2 * TWO_OVER_ROOT_PI**2 * w_0 * w_0 * r_0
    of_others = rho * rho * curvature_0 + mean_0 * (2 * mean + (n_others - 1) * mean_0)
    return on_manifold + of_decider - 2 * cross + n_others * of_others


@register_jitable
def risk_slopes(
    order: Number,
    law: Number,
    heads: Number,
    erf_h: Number,
    erf_rh: Number,
    gap: Number,
) -> Number:
    """Return the five partial derivatives of the risk; arguments of `risk_value`."""
    kappa, nu, theta, eta, rho = order
    m, variance, n_others = law
    w, r, w_0, r_0 = heads
    h = w * m * kappa
    e1, e2, e3, z1, z2, z3 = erf_slopes(h, w, r, erf_h, erf_rh)
    zeta = erf_h * erf_h + 8 * gap
    p = w * variance
    t = m * theta
    slope_0 = TWO_OVER_ROOT_PI * w_0
    curvature_0 = 2 * TWO_OVER_ROOT_PI**2 * w_0 * w_0 * r_0
    mean = t * erf_h + p * rho * e1

    by_kappa = 2 * p * e1 * (erf_rh - nu) + t * t * z1
    by_kappa = by_kappa + variance * rho * (2 * t * z2 + variance * rho * z3)
    by_kappa = by_kappa - 2 * w * p * eta * (t * e2 + p * rho * e3)
    by_kappa = by_kappa + 2 * n_others * slope_0 * rho * w * (t * e1 + p * rho * e2)
    by_theta = t * zeta + variance * rho * z1 - p * eta * e1
    by_theta = by_theta + n_others * slope_0 * rho * erf_h
    by_eta = -2 * p * (t * e1 + p * rho * e2)
    by_rho = variance * (t * z1 + variance * rho * z2) - p * p * eta * e2
    by_rho = by_rho + n_others * (
        rho * curvature_0
        + slope_0 * (mean + rho * p * e1 + (n_others - 1) * rho * slope_0)
    )
    return m * by_kappa, -2 * variance * erf_h, 2 * m * by_theta, by_eta, 2 * by_rho


@register_jitable
def projected_step(
    order: Number, slopes: Number, step_size: Number, share: Number, noise: Number
) -> Number:
    r"""Return the mean of the five order parameters after one projected step.

    :math:`k \leftarrow (k - \alpha P_k G_k) / \lVert\cdot\rVert`, and its mirror image
    for :math:`v`, both at once. The gradients of a batch have the means
    :math:`\nabla_k R = R_\kappa k^* + R_\eta v^* + R_\rho v` and its mirror image.
    Steps are tangent, so the length before normalisation is
    :math:`\sqrt{1 + \alpha^2 \lVert P_k G_k \rVert^2}`; its mean square is the `share`
    1/B of the mean square of one prompt, in `noise`, and the rest of that of the mean
    gradient. A share of 0 is gradient descent on the risk.
    """
    kappa, nu, theta, eta, rho = order
    by_kappa, by_nu, by_theta, by_eta, by_rho = slopes
    a = step_size
    radial_k = kappa * by_kappa + eta * by_eta + rho * by_rho
    radial_v = nu * by_nu + theta * by_theta + rho * by_rho
    # Tangent gradients against k*, v*, and the other learned vector.
    k_on_key = by_kappa + theta * by_rho - kappa * radial_k
    k_on_value = by_eta + nu * by_rho - eta * radial_k
    k_on_v = theta * by_kappa + nu * by_eta + by_rho - rho * radial_k
    v_on_key = by_theta + kappa * by_rho - theta * radial_v
    v_on_value = by_nu + eta * by_rho - nu * radial_v
    v_on_k = kappa * by_theta + eta * by_nu + by_rho - rho * radial_v
    square_k = by_kappa * k_on_key + by_eta * k_on_value + by_rho * k_on_v
    square_v = by_nu * v_on_value + by_theta * v_on_key + by_rho * v_on_k
    mixed = by_theta * k_on_key + by_nu * k_on_value - radial_v * k_on_v
    if share > 0:
        square_k = share * noise[0] + (1 - share) * square_k
        square_v = share * noise[1] + (1 - share) * square_v
        mixed = share * noise[2] + (1 - share) * mixed
    norm_k = np.sqrt(1 + a * a * square_k)
    norm_v = np.sqrt(1 + a * a * square_v)
    return (
        (kappa - a * k_on_key) / norm_k,
        (nu - a * v_on_value) / norm_v,
        (theta - a * v_on_key) / norm_v,
        (eta - a * k_on_value) / norm_k,
        (rho - a * (k_on_v + v_on_k) + a * a * mixed) / (norm_k * norm_v),
    )


@njit()
def owen_gap(h: float, r: float, length: float) -> float:
    """Return the difference of the two Owen's T inside a compiled loop."""
    if length < SHORT:
        return owen_rule(h, r, length, SHORT_NODES, SHORT_WEIGHTS)
    return owen_rule(h, r, length, LONG_NODES, LONG_WEIGHTS)


# --- The landscape -------------------------------------------------------------------


# Tolerances of the integrator, far below what a figure or a claim resolves: the error
# of a run was 1e-9.
_RTOL, _ATOL = 1e-10, 1e-14
# A few hundred suffice at ordinary dimensions; 4e4 were needed at d = 1e12.
_MAX_CALLS = 400_000
_CORNERS = ((1.0, 1.0), (-1.0, -1.0), (1.0, -1.0), (-1.0, 1.0))


class FormulaArguments(NamedTuple):
    """Arguments of the shared formulas after the order parameters, in their order."""

    law: tuple[float, float, float]
    heads: tuple[FloatArray, FloatArray, FloatArray, FloatArray]
    erf_h: FloatArray
    erf_rh: FloatArray
    gap: FloatArray


@dataclass(frozen=True, kw_only=True)
class LocationFixedPoint:
    """A fixed point of the flow on the invariant manifold.

    Attributes
    ----------
    kappa, nu
        Position.
    kind
        ``"sink"`` attracts, ``"source"`` repels, ``"saddle"`` does both. From the
        exact signs of the eigenvalues, also where float64 rounds one to zero.
    eigenvalues
        Of the Jacobian of the velocity, in increasing order.
    """

    kappa: float
    nu: float
    kind: Literal["sink", "saddle", "source"]
    eigenvalues: tuple[float, float]


@dataclass(frozen=True, eq=False)
class LocationLandscape:
    r"""Population risk of the erf head on single-location regression, in closed form.

    For unit vectors :math:`k, v`, tokens of
    :class:`~eigenheads.datasets.SingleLocation` and
    :math:`T(X) = \sum_l \operatorname{erf}(\lambda X_l \cdot k) \, X_l \cdot v`, the
    risk :math:`R = \mathbb E (Y - T(X))^2` depends on five inner products only:
    :math:`\kappa = k \cdot k^*`, :math:`\nu = v \cdot v^*`,
    :math:`\theta = v \cdot k^*`, :math:`\eta = k \cdot v^*`,
    :math:`\rho = k \cdot v`.

    Parameters
    ----------
    law
        Law of the prompts.
    inverse_temperature
        :math:`\lambda \ge 0`; an array evaluates a schedule.

    References
    ----------
    .. [1] marion2025.

    Examples
    --------
    >>> from eigenheads.datasets import SingleLocation
    >>> landscape = LocationLandscape(SingleLocation(d=400), inverse_temperature=0.1)
    >>> float(landscape.risk(1, 1).round(4))
    0.1135
    >>> path = landscape.flow([0.1, 0.0], duration=100.0)
    >>> path.final("kappa").round(2), path.final("nu").round(2)
    (array([0.99]), array([1.]))
    """

    law: SingleLocation
    _: KW_ONLY
    inverse_temperature: ArrayLike

    def __post_init__(self) -> None:
        check_law(self.law, (SingleLocation,))
        numbers = check_range(
            "inverse_temperature", self.inverse_temperature, 0.0, LARGEST
        )
        # The dataclass is frozen: this is how a field is normalised.
        object.__setattr__(self, "inverse_temperature", numbers)

    def risk(
        self,
        kappa: ArrayLike,
        nu: ArrayLike,
        theta: ArrayLike = 0.0,
        eta: ArrayLike = 0.0,
        rho: ArrayLike = 0.0,
    ) -> FloatArray:
        r"""Return the risk, including the noise :math:`\varepsilon^2` of the target.

        Where :math:`\theta=\eta=\rho=0`,

        .. math::

            R = \varepsilon^2
            + \gamma^2 \bigl(1 - 2\nu \operatorname{erf}(h) + \zeta(\lambda m\kappa,
            \lambda\gamma)\bigr) + (L-1)\, \zeta(0, \lambda), \qquad
            h = \frac{\lambda m \kappa}{\sqrt{1 + 2\lambda^2\gamma^2}}, \quad
            m = \sqrt{d/2}

        .. math::

            \zeta(x, g) = \mathbb E \operatorname{erf}^2(x + g G)
            = 1 - 8\, T_{\text{Owen}}\Bigl(\frac{\sqrt2 x}{\sqrt{1 + 2g^2}},
            \frac1{\sqrt{1+4g^2}}\Bigr)

        The page on the theory gives the terms of the general case.

        Parameters
        ----------
        kappa, nu, theta, eta, rho
            Order parameters. They are not checked together: unit vectors with these
            inner products need not exist.

        Returns
        -------
        risk
            Of the shape to which the arguments and the inverse temperature broadcast.

        Notes
        -----
        The formulas need :math:`T_{\text{Owen}}(\sqrt2 h, 1) -
        T_{\text{Owen}}(\sqrt2 h, r)` with :math:`r = 1/\sqrt{1 + 4\lambda^2\gamma^2}`.
        For :math:`1 - r < 0.05` the two are almost equal; then their difference,
        an integral from r to 1, is computed by a six-node Gauss rule, otherwise by
        ``scipy.special.owens_t``. So :math:`\zeta` keeps full relative accuracy, which
        its factor :math:`m^2\theta^2` needs at large d. The risk is even under
        :math:`(\kappa,\nu,\theta,\eta) \to -(\kappa,\nu,\theta,\eta)` and under
        :math:`(\theta,\eta,\rho) \to -(\theta,\eta,\rho)`.
        """
        order, _ = self._check_order((kappa, nu, theta, eta, rho))
        of_others = (self.law.n_tokens - 1) * zeta_at_zero(self._lambda)
        excess = risk_value(order, *self._arguments(order[0]))
        return np.asarray(excess + of_others + self.law.noise**2)

    def gradient(
        self,
        kappa: ArrayLike,
        nu: ArrayLike,
        theta: ArrayLike = 0.0,
        eta: ArrayLike = 0.0,
        rho: ArrayLike = 0.0,
    ) -> FloatArray:
        r"""Return the derivatives of the risk by the five order parameters.

        The gradients in the vectors are
        :math:`\nabla_k R = R_\kappa k^* + R_\eta v^* + R_\rho v` and
        :math:`\nabla_v R = R_\nu v^* + R_\theta k^* + R_\rho k`. Where
        :math:`\theta=\eta=\rho=0`, with
        :math:`w = \lambda/\sqrt{1+2\lambda^2\gamma^2}`,

        .. math::

            R_\nu = -2\gamma^2 \operatorname{erf}(h), \quad
            R_\kappa = 2\gamma^2 w m \operatorname{erf}'(h)
            \Bigl(\operatorname{erf}\bigl(h / \sqrt{1+4\lambda^2\gamma^2}\bigr)
            - \nu\Bigr), \quad R_\theta = R_\eta = R_\rho = 0

        Returns
        -------
        gradient
            Derivatives by kappa, nu, theta, eta, rho along the last axis.
        """
        order, shape = self._check_order((kappa, nu, theta, eta, rho))
        slopes = risk_slopes(order, *self._arguments(order[0]))
        return np.stack([np.broadcast_to(slope, shape) for slope in slopes], axis=-1)

    def oracle_risk(self) -> FloatArray:
        r"""Return the risk at the planted vectors, :math:`k = k^*`, :math:`v = v^*`.

        Its excess over the noise goes to 0 when :math:`L = o(d)`,
        :math:`\lambda\sqrt d \to \infty` and :math:`\lambda\sqrt L \to 0`, and not
        otherwise: each of the other :math:`L - 1` tokens adds about
        :math:`\tfrac4\pi \lambda^2`.
        """
        return self.risk(1.0, 1.0)

    def velocity(
        self, kappa: ArrayLike, nu: ArrayLike
    ) -> tuple[FloatArray, FloatArray]:
        r"""Return the velocity of the gradient flow on the invariant manifold.

        .. math::

            \dot\kappa = -(1-\kappa^2)\, \partial_\kappa R, \qquad
            \dot\nu = -(1-\nu^2)\, \partial_\nu R
            \qquad (\theta = \eta = \rho = 0)

        Returns
        -------
        kappa_velocity, nu_velocity
            Of the shape to which all arguments broadcast. They do not depend on the
            number of tokens.
        """
        order, shape = self._check_order((kappa, nu, 0.0, 0.0, 0.0))
        # Adding zero turns -0.0 into 0.0.
        along_kappa, along_nu = (
            part + np.zeros(shape) for part in self._velocity(order[0], order[1])
        )
        return np.asarray(along_kappa), np.asarray(along_nu)

    def flow(
        self, start: ArrayLike, *, duration: float, n_records: int = 201
    ) -> Trajectories:
        r"""Integrate the flow on the manifold :math:`\theta = \eta = \rho = 0`.

        It is the limit of :func:`location_descent` on the manifold as the step size
        :math:`\alpha \to 0`; time is the number of updates times :math:`\alpha`.

        Parameters
        ----------
        start
            :math:`\kappa, \nu` of each run, (2,) or (n_runs, 2).
        duration
            Time to integrate over.
        n_records
            Equally spaced records, including the start and the end.

        Returns
        -------
        trajectories
            ``kappa`` and ``nu``; ``steps`` are times.
        """
        self._check_one_temperature()
        end = check_duration(duration)
        points = _check_points(start)
        most = MAX_RECORDED // (2 * len(points))
        n_records = check_count("n_records", n_records, minimum=2, maximum=most)
        times = np.linspace(0.0, end, n_records)
        paths = np.array([self._integrate(point, times) for point in points])
        return Trajectories(times, {"kappa": paths[:, 0], "nu": paths[:, 1]})

    def fixed_points(self) -> tuple[LocationFixedPoint, ...]:
        r"""Return all fixed points of the flow on the invariant manifold.

        On the manifold, with :math:`h = wm\kappa`,

        .. math::

            R_\nu = -2\gamma^2 \operatorname{erf}(h), \qquad
            R_\kappa = 2\gamma^2 w m \operatorname{erf}'(h)
            \bigl(\operatorname{erf}(rh) - \nu\bigr)

        so :math:`\dot\nu = 0` only for :math:`\kappa = 0`
        (then :math:`\dot\kappa = 0` forces :math:`\nu = 0`) or :math:`\nu = \pm 1`
        (then :math:`|\operatorname{erf}| < 1` forces :math:`\kappa = \pm 1`). The
        origin is a saddle, corners with :math:`\kappa = \nu` are sinks, and the other
        corners are sources. For :math:`\lambda = 0` every point is a fixed point; this
        raises an error.

        Returns
        -------
        fixed_points
            The origin, then the four corners.
        """
        self._check_one_temperature()
        if self._lambda == 0:
            fail("inverse_temperature", "a finite number > 0", 0.0)
        return (self._origin(), *(self._corner(*corner) for corner in _CORNERS))

    @property
    def _lambda(self) -> FloatArray:
        return np.asarray(self.inverse_temperature)

    def _arguments(self, kappa: FloatArray) -> FormulaArguments:
        """Return the arguments of the shared formulas at this kappa."""
        law, m = self.law, math.sqrt(self.law.d / 2)
        w, r, length = erf_factors(self._lambda, law.gamma)
        w_0, r_0, _ = erf_factors(self._lambda, 1.0)
        h = w * m * kappa
        gap = _owen_gap(*np.broadcast_arrays(h, r, length))
        return FormulaArguments(
            (m, law.gamma**2, law.n_tokens - 1.0),
            (w, r, w_0, r_0),
            erf(h),
            erf(h * r),
            gap,
        )

    def _velocity(self, kappa: FloatArray, nu: FloatArray) -> tuple[FloatArray, ...]:
        order = (kappa, nu, 0.0, 0.0, 0.0)
        by_kappa, by_nu, *_ = risk_slopes(order, *self._arguments(kappa))
        # The product of both factors is accurate near 1, where 1 - κ² would cancel.
        return -by_kappa * (1 - kappa) * (1 + kappa), -by_nu * (1 - nu) * (1 + nu)

    def _jacobian(self, kappa: float, nu: float) -> FloatArray:
        """Return the derivative of the velocity, from second derivatives of R."""
        w, r, _ = erf_factors(self._lambda, self.law.gamma)
        s = w * np.sqrt(self.law.d / 2)
        h = s * kappa
        variance = self.law.gamma**2
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

    def _origin(self) -> LocationFixedPoint:
        # Eigenvalues of [[-p, b], [b, 0]]: their product is -b² < 0, so one of each
        # sign. The small one is computed as a quotient, without cancellation.
        (minus_p, b), _ = self._jacobian(0.0, 0.0)
        reach = math.hypot(minus_p / 2, b) - minus_p / 2
        escape = b * (b / reach) if reach else 0.0
        eigenvalues = (-float(reach), float(escape))
        return LocationFixedPoint(
            kappa=0.0, nu=0.0, kind="saddle", eigenvalues=eigenvalues
        )

    def _corner(self, kappa: float, nu: float) -> LocationFixedPoint:
        w, r, _ = erf_factors(self._lambda, self.law.gamma)
        h = float(w * np.sqrt(self.law.d / 2))
        scale = 4 * self.law.gamma**2
        is_sink = kappa == nu
        # 1 - erf(r h) by erfc, without cancellation; 1 + erf(r h) has none.
        distance = erfc(r * h) if is_sink else 1 + erf(r * h)
        slope = TWO_OVER_ROOT_PI * math.exp(-min(h * h, 1e6))
        along_kappa = scale * h * slope * distance
        along_nu = scale * erf(h)
        sign = -1.0 if is_sink else 1.0
        low, high = sorted((sign * float(along_kappa), sign * float(along_nu)))
        return LocationFixedPoint(
            kappa=kappa,
            nu=nu,
            kind="sink" if is_sink else "source",
            eigenvalues=(low, high),
        )

    def _integrate(self, point: FloatArray, times: FloatArray) -> FloatArray:
        # In units of the duration: the integrator cannot start on a tiny interval.
        calls, end = count(), times[-1]

        def velocity(share: float, state: FloatArray) -> FloatArray:
            if next(calls) >= _MAX_CALLS:
                got = Got(f"{float(end)!r}, and stopped at {share * end:.3g}")
                contract = f"reachable in {_MAX_CALLS} evaluations of the velocity"
                fail("duration", contract, got)
            return end * np.array(self._velocity(state[0], state[1]))

        def jacobian(_: float, state: FloatArray) -> FloatArray:
            return end * self._jacobian(state[0], state[1])

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
            fail("duration", "a time the integrator can reach", got)
        path: FloatArray = np.clip(solution.y, -1.0, 1.0)
        path[:, 0] = point
        return path

    def _check_order(
        self, values: tuple[ArrayLike, ...]
    ) -> tuple[tuple[FloatArray, ...], tuple[int, ...]]:
        order = {
            name: check_inner_product(name, value)
            for name, value in zip(ORDER_PARAMETERS, values, strict=True)
        }
        named = {**order, "inverse_temperature": self._lambda}
        return tuple(order.values()), check_broadcast(named)

    def _check_one_temperature(self) -> None:
        if self._lambda.ndim:
            fail("inverse_temperature", "one number", self._lambda)


def zeta_at_zero(inverse_temperature: FloatArray) -> FloatArray:
    r"""Return :math:`\mathbb E \operatorname{erf}^2(\lambda G)`, small values too.

    :math:`1 - \tfrac4\pi \arctan r = \tfrac4\pi \arctan\frac{1-r}{1+r}`.
    """
    _, r, length = erf_factors(inverse_temperature, 1.0)
    return 4 / np.pi * np.arctan(length / (1 + r))


def _owen_gap(h: FloatArray, r: FloatArray, length: FloatArray) -> FloatArray:
    # T(sqrt(2) h, 1) = erfc(h) erfc(-h) / 8. Rounding must not make the gap negative.
    closed_form = erfc(h) * erfc(-h) / 8 - owens_t(np.sqrt(2) * h, r)
    direct = owen_rule(h, r, length, SHORT_NODES, SHORT_WEIGHTS)
    return np.where(length < SHORT, direct, np.maximum(closed_form, 0))


def _check_points(start: ArrayLike) -> FloatArray:
    array = np.atleast_2d(check_finite_array("start", start))
    if array.ndim != 2 or array.shape[1] != 2 or not len(array):
        contract = "of shape (n_runs, 2), the columns kappa, nu"
        fail("start", contract, array)
    if np.any(np.abs(array) > 1 + ROUNDING):
        worst = float(array.flat[np.argmax(np.abs(array))])
        fail("start", "inner products from -1 to 1", worst)
    return np.clip(array, -1.0, 1.0)
