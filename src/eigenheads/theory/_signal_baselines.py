"""Alignments for comparison: principal components of pooled tokens, random queries."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from eigenheads._checks import check_count, check_number
from eigenheads._limits import LARGEST
from eigenheads._typing import FloatArray
from eigenheads.theory._ranges import (
    check_broadcast,
    check_integers,
    check_range,
)


def pooled_pca_alignment(
    *, fraction: ArrayLike, amplitude: ArrayLike, d: ArrayLike, n_samples: ArrayLike
) -> FloatArray:
    r"""Return the alignment of the first principal component with the signal.

    The pooled tokens of all prompts, not centred, have a covariance with one spike
    :math:`\ell = \pi A^2`. As d and n grow with a fixed ratio :math:`\gamma = d / n`,
    the top eigenvector of the covariance of n tokens has

    .. math::

        \cos^2 = \frac{1 - \gamma / \ell^2}{1 + \gamma / \ell}
        \quad \text{if } \ell > \sqrt\gamma, \text{ else } 0

    Parameters
    ----------
    fraction
        :math:`\pi`, the realised share of informative tokens.
    amplitude
        :math:`A = \theta \sqrt d`.
    d
        Dimension.
    n_samples
        :math:`n`, tokens in all prompts together.

    Returns
    -------
    alignment
        :math:`|\cos|`, of the shape to which all arguments broadcast.

    Notes
    -----
    This holds for random signs. With fixed signs and centred tokens the spike is
    :math:`\pi (1 - \pi) A^2`.

    Examples
    --------
    >>> pooled_pca_alignment(fraction=0.01, amplitude=[2.0, 5.0], d=100,
    ...                      n_samples=10_000).round(3)
    array([0.   , 0.899])
    """
    owner = "pooled_pca_alignment"
    named = {
        "fraction": check_range("fraction", fraction, 0.0, 1.0, owner=owner),
        "amplitude": check_range("amplitude", amplitude, 0.0, LARGEST, owner=owner),
        "d": check_integers("d", d, minimum=1, owner=owner),
        "n_samples": check_integers("n_samples", n_samples, minimum=1, owner=owner),
    }
    shape = check_broadcast(named, owner=owner)
    gamma = named["d"] / named["n_samples"]
    spike = named["fraction"] * named["amplitude"] ** 2 + np.zeros(shape)
    seen = spike > np.sqrt(gamma)
    spike = np.where(seen, spike, 1.0)
    squared = np.where(seen, (1 - gamma / spike**2) / (1 + gamma / spike), 0.0)
    return np.sqrt(np.maximum(squared, 0.0))


def pooled_pca_threshold(
    *, fraction: ArrayLike, d: ArrayLike, n_samples: ArrayLike
) -> FloatArray:
    r"""Return the strength below which pooled PCA does not detect the signal.

    .. math::

        \pi A^2 = \sqrt{d / n} \iff \theta = (\pi^2\, n\, d)^{-1/4}

    Parameters
    ----------
    fraction
        :math:`\pi > 0`, the share of informative tokens.
    d
        Dimension.
    n_samples
        :math:`n`, tokens in all prompts together.

    Returns
    -------
    strength
        :math:`\theta`; infinite where the share is 0.

    Examples
    --------
    >>> float(pooled_pca_threshold(fraction=0.01, d=100, n_samples=10_000).round(3))
    0.316
    """
    owner = "pooled_pca_threshold"
    named = {
        "fraction": check_range("fraction", fraction, 0.0, 1.0, owner=owner),
        "d": check_integers("d", d, minimum=1, owner=owner),
        "n_samples": check_integers("n_samples", n_samples, minimum=1, owner=owner),
    }
    check_broadcast(named, owner=owner)
    with np.errstate(divide="ignore"):
        inverse = named["fraction"] ** 2 * named["n_samples"] * named["d"]
        return np.asarray(inverse ** (-0.25))


def random_alignment(d: int, *, quantile: float = 0.5) -> float:
    r"""Return a quantile of :math:`|q \cdot u|` for q uniform on the sphere.

    :math:`(q \cdot u)^2` has the distribution Beta(1/2, (d - 1)/2), so the median of
    :math:`|q \cdot u|` is of order :math:`1/\sqrt d`.

    Parameters
    ----------
    d
        Dimension, at least 2.
    quantile
        From 0 to 1; the median by default.

    Returns
    -------
    alignment
        That quantile.

    Examples
    --------
    >>> round(random_alignment(3, quantile=0.25), 3)
    0.25
    """
    owner = "random_alignment"
    d = check_count("d", d, owner=owner, minimum=2)
    share = check_number("quantile", quantile, owner=owner, minimum=0.0, maximum=1.0)
    return math.sqrt(float(betaincinv(0.5, (d - 1) / 2, share)))
