r"""Second moments of the stochastic gradients of single-location regression.

One prompt has the error :math:`E = T(X) - Y = \sum_l W_l - \varepsilon\xi`, where
:math:`W_l = A_l b_l` (minus the target for the deciding token) with
:math:`A = \operatorname{erf}(\lambda X \cdot k)` and :math:`b = X \cdot v`. Its
gradients are :math:`g_k = 2E \sum_l A'_l b_l X_l` and :math:`g_v = 2E \sum_l A_l X_l`,
:math:`A' = \lambda \operatorname{erf}'(\lambda X \cdot k)`. Tokens are independent, so
the second moments need moments of one token at a time; given the coordinate g of a
token along k, everything else is Gaussian, and one integral over g is left.

Numba compiles the functions below when a kernel calls them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from eigenheads._compile import njit
from eigenheads._typing import FloatArray
from eigenheads.theory._location_formulas import (
    TWO_OVER_ROOT_PI,
    erf_factors,
    owen_gap,
    projected_step,
    risk_slopes,
)

# The integrals over g use the trapezoidal rule, which is exponentially accurate for
# smooth functions times a Gaussian. Gauss-Hermite rules are not: erf is too steep.
_REACH, _FEWEST_NODES, _MOST_NODES = 8.0, 61, 4001
_KK, _VV, _KV = 0, 1, 2


@njit()
def normal_rule(steepness: float) -> tuple[FloatArray, FloatArray]:
    """Return nodes and weights for means over a standard normal.

    `steepness` is the largest inverse temperature times the scale of a token; 61 nodes
    have an error of 3e-5 at 2 and less below.
    """
    count = _FEWEST_NODES
    if steepness > 2.0:
        count = int(min(_FEWEST_NODES * steepness / 2.0, float(_MOST_NODES)))
    nodes = np.linspace(-_REACH, _REACH, count)
    weights = np.exp(-0.5 * nodes * nodes)
    return nodes, weights / weights.sum()


@njit()
def _token_moments(
    means: tuple[float, float],
    scale: float,
    inverse_temperature: float,
    products: tuple[float, float, float],
    decides: bool,
    rule: tuple[FloatArray, FloatArray],
    out: Any,
) -> None:
    r"""Write :math:`\mathbb E[\varphi W^n]` of one token, n = 0, 1, 2, into `out`.

    The rows are :math:`\varphi = A'^2 b^2, A^2, A A' b, 1`. `means` are those of
    X·k and X·v; `products` are (nu, eta, rho).
    """
    nu, eta, rho = products
    out[:] = 0.0
    variance = scale * scale
    # Given g: the variance of b, and the covariance of b with the target.
    spread = variance * (1.0 - rho * rho)
    with_target = variance * (nu - rho * eta) if decides else 0.0
    nodes, weights = rule
    for i in range(len(nodes)):
        g, weight = nodes[i], weights[i]
        x = inverse_temperature * (means[0] + scale * g)
        a = math.erf(x)
        slope = inverse_temperature * TWO_OVER_ROOT_PI * math.exp(-x * x)
        b = means[1] + scale * rho * g
        w = a * b
        w_spread = a * a * spread
        if decides:
            w -= scale * eta * g
            w_spread += variance * (1.0 - eta * eta) - 2.0 * a * with_target
        cross = a * spread - with_target
        # Given g, the pair (b, w) is Gaussian: these are its moments up to order four.
        w2, b2 = w * w + w_spread, b * b + spread
        out[_KK, 0] += weight * slope * slope * b2
        out[_KK, 1] += weight * slope * slope * (w * b2 + 2.0 * b * cross)
        fourth = b2 * w2 + 4.0 * b * w * cross + 2.0 * cross * cross
        out[_KK, 2] += weight * slope * slope * fourth
        out[_VV, 0] += weight * a * a
        out[_VV, 1] += weight * a * a * w
        out[_VV, 2] += weight * a * a * w2
        out[_KV, 0] += weight * a * slope * b
        out[_KV, 1] += weight * a * slope * (b * w + cross)
        out[_KV, 2] += weight * a * slope * (b * w2 + 2.0 * w * cross)
        out[3, 0] += weight
        out[3, 1] += weight * w
        out[3, 2] += weight * w2


@njit()
def gradient_noise(
    order: tuple[float, float, float, float, float],
    law: tuple[float, float, float],
    target_noise: float,
    inverse_temperature: float,
    rule: tuple[FloatArray, FloatArray],
    scratch: Any,
) -> tuple[float, float, float]:
    r"""Return the mean squared tangent gradients of one prompt, and their product.

    .. math::

        \mathbb E \lVert P_k g_k \rVert^2, \qquad \mathbb E \lVert P_v g_v \rVert^2,
        \qquad \mathbb E\, P_k g_k \cdot P_v g_v, \qquad P_k = I - kk^\top

    up to terms of relative order 1/d. `law` is (m, gamma², L - 1); `scratch` (2, 4, 3)
    is overwritten.
    """
    kappa, nu, theta, eta, rho = order
    m, variance, n = law
    d = 2.0 * m * m
    first, other = scratch[0], scratch[1]
    _token_moments(
        (m * kappa, m * theta),
        math.sqrt(variance),
        inverse_temperature,
        (nu, eta, rho),
        True,
        rule,
        first,
    )
    _token_moments(
        (0.0, 0.0), 1.0, inverse_temperature, (0.0, 0.0, rho), False, rule, other
    )
    # Moments of the rest of the error, without the deciding token or without another.
    mean_0, square_0 = first[3, 1], first[3, 2]
    mean_1, square_1 = other[3, 1], other[3, 2]
    noise = target_noise * target_noise
    # Different tokens are independent, so their products have squared means.
    rest_0 = n * square_1 + n * (n - 1.0) * mean_1 * mean_1 + noise
    mean_rest = mean_0 + (n - 1.0) * mean_1
    rest_1 = square_0 + 2.0 * mean_0 * (n - 1.0) * mean_1 + (n - 1.0) * square_1
    rest_1 += (n - 1.0) * (n - 2.0) * mean_1 * mean_1 + noise
    isotropic, planted = np.empty(3), np.empty(3)
    for row in range(3):
        one = first[row, 2] + 2.0 * first[row, 1] * n * mean_1 + first[row, 0] * rest_0
        two = other[row, 2] + 2.0 * other[row, 1] * mean_rest + other[row, 0] * rest_1
        # The noise of the tokens points everywhere, the mean of the deciding token
        # along k* alone.
        isotropic[row] = 4.0 * (variance * one + n * two)
        planted[row] = 4.0 * one
    both = 1.0 - kappa * kappa - theta * theta + kappa * theta * rho
    half = 0.5 * d
    return (
        (d - 1.0) * isotropic[_KK] + half * planted[_KK] * (1.0 - kappa * kappa),
        (d - 1.0) * isotropic[_VV] + half * planted[_VV] * (1.0 - theta * theta),
        (d - 2.0 + rho * rho) * isotropic[_KV] + half * planted[_KV] * both,
    )


@njit()
def location_mean_block(
    order: FloatArray,
    inverse_temperatures: FloatArray,
    step_sizes: FloatArray,
    law: tuple[float, float, float],
    target_noise: float,
    share: float,
    first: int,
    record_every: int,
    records: FloatArray,
) -> int:
    """Advance one run by a block of mean updates; a kernel of `run_blocks`.

    `order` (5,) is the state, `law` is (m, gamma², L - 1), `share` is 1/B, or 0 for
    descent on the risk, which needs no moments of the noise.
    """
    m, variance, _ = law
    gamma = math.sqrt(variance)
    rule = normal_rule(np.max(inverse_temperatures) * max(gamma, 1.0))
    scratch = np.empty((2, 4, 3))
    noise = (0.0, 0.0, 0.0)
    state = (order[0], order[1], order[2], order[3], order[4])
    previous = -1.0
    for i in range(len(step_sizes)):
        # Constant schedules are common: do not compute the factors again.
        if inverse_temperatures[i] != previous:
            previous = inverse_temperatures[i]
            w, r, length = erf_factors(previous, gamma)
            w_0, r_0, _ = erf_factors(previous, 1.0)
        h = w * m * state[0]
        slopes = risk_slopes(
            state,
            law,
            (w, r, w_0, r_0),
            math.erf(h),
            math.erf(h * r),
            owen_gap(h, r, length),
        )
        if share > 0.0:
            noise = gradient_noise(state, law, target_noise, previous, rule, scratch)
        state = projected_step(state, slopes, step_sizes[i], share, noise)
        # The sum is not finite if one of the five numbers is not.
        if not math.isfinite(state[0] + state[1] + state[2] + state[3] + state[4]):
            return first + i
        n_updates = first + i + 1
        if n_updates % record_every == 0:
            for j in range(5):
                records[n_updates // record_every, j] = state[j]
    for j in range(5):
        order[j] = state[j]
    return -1
