r"""The arithmetic of the single-location risk, once, for arrays and for compiled loops.

Notation: :math:`m = \sqrt{d/2}`, :math:`w = \lambda/\sqrt{1+2\lambda^2 s^2}` and
:math:`r = 1/\sqrt{1+4\lambda^2 s^2}` for a token of scale :math:`s` (``w``, ``r`` for
the deciding token, ``w_0``, ``r_0`` for the others), :math:`h = w m \kappa`. Written
in these, no term overflows for any temperature.

Numba compiles these functions when a kernel of this module calls them.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numba.extending import register_jitable

from eigenheads._compile import njit
from eigenheads._typing import FloatArray

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
    own = (m * theta) ** 2 * zeta + variance * rho * (
        2 * m * theta * z1 + variance * rho * z2
    )
    cross = w * variance * eta * (m * theta * e1 + w * variance * rho * e2)
    curvature_0 = 2 * TWO_OVER_ROOT_PI**2 * w_0 * w_0 * r_0
    others = rho * rho * curvature_0 + mean_0 * (2 * mean + (n_others - 1) * mean_0)
    return on_manifold + own - 2 * cross + n_others * others


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
    both = by_theta * k_on_key + by_nu * k_on_value - radial_v * k_on_v
    if share > 0:
        square_k = share * noise[0] + (1 - share) * square_k
        square_v = share * noise[1] + (1 - share) * square_v
        both = share * noise[2] + (1 - share) * both
    norm_k = np.sqrt(1 + a * a * square_k)
    norm_v = np.sqrt(1 + a * a * square_v)
    return (
        (kappa - a * k_on_key) / norm_k,
        (nu - a * v_on_value) / norm_v,
        (theta - a * v_on_key) / norm_v,
        (eta - a * k_on_value) / norm_k,
        (rho - a * (k_on_v + v_on_k) + a * a * both) / (norm_k * norm_v),
    )


@njit()
def owen_gap(h: float, r: float, length: float) -> float:
    """Return the difference of the two Owen's T inside a compiled loop."""
    if length < SHORT:
        return owen_rule(h, r, length, SHORT_NODES, SHORT_WEIGHTS)
    return owen_rule(h, r, length, LONG_NODES, LONG_WEIGHTS)
