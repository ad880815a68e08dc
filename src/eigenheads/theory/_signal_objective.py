"""Objective of a query that looks for the signal, with infinitely many tokens."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, logit

from eigenheads._limits import LARGEST
from eigenheads._typing import FloatArray
from eigenheads.theory._location_checks import (
    check_broadcast,
    check_order,
    check_range,
)


class Tilt(NamedTuple):
    r"""Moments of the attention weights :math:`w = e^{\beta q \cdot x}`.

    Attributes
    ----------
    shift, shift_slope
        :math:`m(t)` and its derivative: the output is :math:`\beta q + m u`.
    spread, spread_slope
        :math:`\mathbb E w^2 / (\mathbb E w)^2` without its factor
        :math:`e^{\beta^2}`, and its derivative.
    """

    shift: FloatArray
    shift_slope: FloatArray
    spread: FloatArray
    spread_slope: FloatArray


def signal_objective(
    alignment: ArrayLike, *, fraction: ArrayLike, amplitude: ArrayLike
) -> FloatArray:
    r"""Return the squared norm of the attention output, with infinitely many tokens.

    A share :math:`\pi` of the tokens is :math:`\pm A u + z` with random signs, the
    others are :math:`z \sim \mathcal N(0, I)`, and :math:`\beta = 1`. The softmax
    average becomes a Gaussian tilt, :math:`o = q + m(t)\, u` with
    :math:`t = q \cdot u`, and

    .. math::

        J(t) = \lVert o \rVert^2 = 1 + 2 t\, m(t) + m(t)^2, \qquad
        m(t) = \frac{\pi A \sinh(At)}{1 - \pi + \pi \cosh(At)}

    Parameters
    ----------
    alignment
        :math:`t = q \cdot u`, from -1 to 1.
    fraction
        :math:`\pi`, the share of informative tokens.
    amplitude
        :math:`A = \theta \sqrt d \ge 0`.

    Returns
    -------
    objective
        Of the shape to which all arguments broadcast.

    See Also
    --------
    finite_signal_objective : any sharpness and signs, finitely many tokens.

    References
    ----------
    .. [1] truong2026; the law's constants are ours.

    Examples
    --------
    >>> signal_objective([0.0, 1.0], fraction=1.0, amplitude=2.0).round(2)
    array([1.  , 8.57])
    """
    t, _, tilt = _population(alignment, fraction, amplitude, owner="signal_objective")
    return np.asarray(1 + (2 * t + tilt.shift) * tilt.shift)


def signal_objective_gradient(
    alignment: ArrayLike, *, fraction: ArrayLike, amplitude: ArrayLike
) -> FloatArray:
    r"""Return the derivative :math:`J'(t)` of :func:`signal_objective`.

    .. math::

        J' = 2 m + 2 t m' + 2 m m', \qquad
        m' = \pi A^2 \frac{(1 - \pi) \cosh(At) + \pi}{(1 - \pi + \pi \cosh(At))^2}

    Parameters
    ----------
    alignment, fraction, amplitude
        As in :func:`signal_objective`.

    Returns
    -------
    slope
        The gradient in :math:`q` is :math:`J'(t)\, u`.

    Examples
    --------
    >>> signal_objective_gradient(0.0, fraction=0.1, amplitude=2.0)
    array(0.)
    """
    owner = "signal_objective_gradient"
    t, _, tilt = _population(alignment, fraction, amplitude, owner=owner)
    return np.asarray(population_slope(t, tilt, 1.0))


def population_slope(t: ArrayLike, tilt: Tilt, beta: float) -> FloatArray:
    """Return J′ for any sharpness."""
    output = beta * np.asarray(t) + tilt.shift
    slope: FloatArray = 2 * (beta * tilt.shift + output * tilt.shift_slope)
    return slope


def tilted(
    t: ArrayLike, pi: ArrayLike, amplitude: ArrayLike, beta: float, signs: str
) -> Tilt:
    """Return the moments of the weights at alignment `t`, without overflow."""
    t, pi, amplitude = np.asarray(t), np.asarray(pi), np.asarray(amplitude)
    rate = beta * amplitude
    y = rate * t
    return (_random if signs == "random" else _fixed)(y, rate, pi, amplitude)


def _random(y: FloatArray, rate: FloatArray, pi: FloatArray, a: FloatArray) -> Tilt:
    # All over e^|y|: c, s are cosh, sinh times e; c2, s2 those of 2y times e².
    e = np.exp(-np.abs(y))
    c, s = (1 + e * e) / 2, np.copysign((1 - e * e) / 2, y)
    c2, s2 = (1 + e**4) / 2, np.copysign((1 - e**4) / 2, y)
    # With no informative token all moments are those of the noise.
    mean = np.where(pi > 0, (1 - pi) * e + pi * c, 1.0)
    square = np.where(pi > 0, (1 - pi) * e * e + pi * c2, 1.0)
    spread = square / mean**2
    return Tilt(
        pi * a * s / mean,
        pi * a * rate * e * ((1 - pi) * c + pi * e) / mean**2,
        spread,
        2 * pi * rate * (s2 - spread * mean * s) / mean**2,
    )


def _fixed(y: FloatArray, rate: FloatArray, pi: FloatArray, a: FloatArray) -> Tilt:
    # The share of the weight on informative tokens, and of the squared weights.
    share = expit(y + logit(pi))
    spread = np.exp(_log_mean(2 * y, pi) - 2 * _log_mean(y, pi))
    square_share = expit(2 * y + logit(pi))
    return Tilt(
        a * share,
        a * rate * share * (1 - share),
        spread,
        2 * rate * spread * (square_share - share),
    )


def _log_mean(y: FloatArray, pi: FloatArray) -> FloatArray:
    """Return log(1 - π + π e^y)."""
    far = np.maximum(y, 0.0)
    mean: FloatArray = (1 - pi) * np.exp(-far) + pi * np.exp(y - far)
    return far + np.log(mean)


def _population(
    alignment: ArrayLike, fraction: ArrayLike, amplitude: ArrayLike, *, owner: str
) -> tuple[FloatArray, FloatArray, Tilt]:
    t = np.clip(check_order("alignment", alignment, owner=owner), -1.0, 1.0)
    pi = check_range("fraction", fraction, 0.0, 1.0, owner=owner)
    a = check_range("amplitude", amplitude, 0.0, LARGEST, owner=owner)
    named = {"alignment": t, "fraction": pi, "amplitude": a}
    shape = check_broadcast(named, owner=owner)
    return t + np.zeros(shape), a, tilted(t, pi, a, 1.0, "random")
