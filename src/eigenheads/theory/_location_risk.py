"""Population risk of the erf head on single-location regression, in closed form."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erf, erfc, owens_t

from eigenheads._location_order import ORDER_PARAMETERS
from eigenheads._typing import FloatArray
from eigenheads.theory._location_checks import (
    Law,
    check_broadcast,
    check_law,
    check_noise,
    check_order,
)
from eigenheads.theory._location_formulas import (
    SHORT,
    SHORT_NODES,
    SHORT_WEIGHTS,
    erf_factors,
    owen_rule,
    risk_slopes,
    risk_value,
)


class SpecialValues(NamedTuple):
    """Arguments of the shared formulas after the order parameters, in their order."""

    law: tuple[FloatArray, FloatArray, FloatArray]
    heads: tuple[FloatArray, FloatArray, FloatArray, FloatArray]
    erf_h: FloatArray
    erf_rh: FloatArray
    gap: FloatArray


def location_risk(
    kappa: ArrayLike,
    nu: ArrayLike,
    theta: ArrayLike,
    eta: ArrayLike,
    rho: ArrayLike,
    *,
    d: ArrayLike,
    n_tokens: ArrayLike,
    gamma: ArrayLike,
    inverse_temperature: ArrayLike,
    noise: ArrayLike = 0.0,
) -> FloatArray:
    r"""Return the population risk :math:`\mathbb E (Y - T(X))^2` of the erf head.

    For unit vectors :math:`k, v`, tokens of
    :class:`~eigenheads.datasets.SingleLocation` and
    :math:`T(X) = \sum_l \operatorname{erf}(\lambda X_l \cdot k) \, X_l \cdot v`, the
    risk depends on five inner products only. Where :math:`\theta=\eta=\rho=0`,

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

    and the page on the theory gives the terms of the general case.

    Parameters
    ----------
    kappa, nu
        :math:`\kappa = k \cdot k^*`, :math:`\nu = v \cdot v^*`.
    theta, eta, rho
        :math:`\theta = v \cdot k^*`, :math:`\eta = k \cdot v^*`,
        :math:`\rho = k \cdot v`.
    d, n_tokens, gamma, noise
        Of the law. `noise` is the standard deviation :math:`\varepsilon`.
    inverse_temperature
        :math:`\lambda \ge 0`; an array evaluates a schedule.

    Returns
    -------
    risk
        Of the shape to which all arguments broadcast; includes
        :math:`\varepsilon^2`.

    Notes
    -----
    All arguments broadcast. The five numbers are taken as they are: whether unit
    vectors with these inner products exist is the caller's business.
    The formulas need :math:`T_{\text{Owen}}(\sqrt2 h, 1) -
    T_{\text{Owen}}(\sqrt2 h, r)` with :math:`r = 1/\sqrt{1 + 4\lambda^2\gamma^2}`.
    For :math:`1 - r < 0.05` the two are next to each other, and their difference,
    an integral from r to 1, is evaluated by a six-node Gauss rule; elsewhere by
    ``scipy.special.owens_t``. So :math:`\zeta` keeps full relative accuracy, which
    its factor :math:`m^2\theta^2` needs at large `d`. The risk is even under
    :math:`(\kappa,\nu,\theta,\eta) \to -(\kappa,\nu,\theta,\eta)` and under
    :math:`(\theta,\eta,\rho) \to -(\theta,\eta,\rho)`.

    References
    ----------
    .. [1] marion2025.

    Examples
    --------
    >>> risk = location_risk(1, 1, 0, 0, 0, d=400, n_tokens=10, gamma=0.5**0.5,
    ...                      inverse_temperature=[0.1, 0.3])
    >>> risk.round(4)
    array([0.1135, 0.8774])
    """
    law = d, n_tokens, gamma, inverse_temperature
    return checked_risk((kappa, nu, theta, eta, rho), law, noise, owner="location_risk")


def location_risk_gradient(
    kappa: ArrayLike,
    nu: ArrayLike,
    theta: ArrayLike,
    eta: ArrayLike,
    rho: ArrayLike,
    *,
    d: ArrayLike,
    n_tokens: ArrayLike,
    gamma: ArrayLike,
    inverse_temperature: ArrayLike,
    noise: ArrayLike = 0.0,
) -> FloatArray:
    r"""Gradient of :func:`location_risk` in the five order parameters.

    With it the gradients in the vectors are
    :math:`\nabla_k R = R_\kappa k^* + R_\eta v^* + R_\rho v` and
    :math:`\nabla_v R = R_\nu v^* + R_\theta k^* + R_\rho k`. Where
    :math:`\theta=\eta=\rho=0`, with :math:`w = \lambda/\sqrt{1+2\lambda^2\gamma^2}`,

    .. math::

        R_\nu = -2\gamma^2 \operatorname{erf}(h), \quad
        R_\kappa = 2\gamma^2 w m \operatorname{erf}'(h)
        \Bigl(\operatorname{erf}\bigl(h / \sqrt{1+4\lambda^2\gamma^2}\bigr)
        - \nu\Bigr), \quad R_\theta = R_\eta = R_\rho = 0

    Parameters
    ----------
    kappa, nu, theta, eta, rho, d, n_tokens, gamma, inverse_temperature, noise
        As in :func:`location_risk`; the noise changes nothing.

    Returns
    -------
    gradient
        Derivatives by kappa, nu, theta, eta, rho along the last axis.

    Examples
    --------
    >>> location_risk_gradient(0, 0.5, 0, 0, 0, d=2, n_tokens=1, gamma=1.0,
    ...                        inverse_temperature=1.0).round(3)
    array([-0.651, -0.   ,  0.   , -0.   ,  0.   ])
    """
    owner = "location_risk_gradient"
    order, law, _, shape = _check(
        (kappa, nu, theta, eta, rho),
        (d, n_tokens, gamma, inverse_temperature),
        noise,
        owner=owner,
    )
    slopes = risk_slopes(order, *special_values(order[0], law))
    return np.stack([np.broadcast_to(slope, shape) for slope in slopes], axis=-1)


def checked_risk(
    order_parameters: tuple[ArrayLike, ...],
    law_parameters: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike],
    noise: ArrayLike,
    *,
    owner: str,
) -> FloatArray:
    """Return the risk; errors name `owner`, the function the user called."""
    order, law, sigma, _ = _check(order_parameters, law_parameters, noise, owner=owner)
    others = (law.n_tokens - 1) * zeta_at_zero(law.inverse_temperature)
    excess = risk_value(order, *special_values(order[0], law))
    return np.asarray(excess + others + sigma**2)


def zeta_at_zero(inverse_temperature: FloatArray) -> FloatArray:
    r"""Return :math:`\mathbb E \operatorname{erf}^2(\lambda G)`, small values too.

    :math:`1 - \tfrac4\pi \arctan r = \tfrac4\pi \arctan\frac{1-r}{1+r}`.
    """
    _, r, length = erf_factors(inverse_temperature, 1.0)
    return 4 / np.pi * np.arctan(length / (1 + r))


def special_values(kappa: FloatArray, law: Law) -> SpecialValues:
    """Return the arguments of the shared formulas that are not order parameters."""
    m, variance = np.sqrt(law.d / 2), law.gamma**2
    w, r, length = erf_factors(law.inverse_temperature, law.gamma)
    w_0, r_0, _ = erf_factors(law.inverse_temperature, 1.0)
    h = w * m * kappa
    gap = _owen_gap(*np.broadcast_arrays(h, r, length))
    return SpecialValues(
        (m, variance, law.n_tokens - 1), (w, r, w_0, r_0), erf(h), erf(h * r), gap
    )


def _owen_gap(h: FloatArray, r: FloatArray, length: FloatArray) -> FloatArray:
    # T(sqrt(2) h, 1) = erfc(h) erfc(-h) / 8. Rounding must not make the gap negative.
    closed_form = erfc(h) * erfc(-h) / 8 - owens_t(np.sqrt(2) * h, r)
    direct = owen_rule(h, r, length, SHORT_NODES, SHORT_WEIGHTS)
    return np.where(length < SHORT, direct, np.maximum(closed_form, 0))


def _check(
    order_parameters: tuple[ArrayLike, ...],
    law_parameters: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike],
    noise: ArrayLike,
    *,
    owner: str,
) -> tuple[tuple[FloatArray, ...], Law, FloatArray, tuple[int, ...]]:
    order = {
        name: check_order(name, value, owner=owner)
        for name, value in zip(ORDER_PARAMETERS, order_parameters, strict=True)
    }
    law = check_law(*law_parameters, owner=owner)
    sigma = check_noise(noise, owner=owner)
    shape = check_broadcast({**order, **law._asdict(), "noise": sigma}, owner=owner)
    return tuple(order.values()), law, sigma, shape
