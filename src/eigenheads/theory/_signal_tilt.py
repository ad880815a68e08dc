"""Moments of the attention weights of signal recovery, without overflow."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, logit

from eigenheads._typing import FloatArray


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


def tilted(
    t: ArrayLike, fraction: float, amplitude: float, beta: float, signs: str
) -> Tilt:
    """Return the moments of the weights at alignment `t`, without overflow."""
    pi, a = np.asarray(fraction), np.asarray(amplitude)
    rate = beta * a
    y = rate * np.asarray(t)
    return (_random if signs == "random" else _fixed)(y, rate, pi, a)


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
