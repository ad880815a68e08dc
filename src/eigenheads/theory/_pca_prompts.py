"""Distance of a softmax head on finite prompts to its limit of long prompts."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from eigenheads._checks import check_finite_array, check_positive, fail
from eigenheads.datasets import GaussianPrompts
from eigenheads.theory._ranges import check_law

_OWNER = "pca_prompt_error"


class PromptError(NamedTuple):
    """Leading order of the squared distance to the limit, ``coefficient · L^exponent``.

    Attributes
    ----------
    exponent
        Power of the number of tokens L, up to logarithms.
    coefficient
        Factor; NaN where it is not known.
    """

    exponent: float
    coefficient: float


def pca_prompt_error(
    law: GaussianPrompts, direction: ArrayLike, *, inverse_temperature: float
) -> PromptError:
    r"""Squared distance of a softmax head on L tokens to its limit of long prompts.

    For the head :math:`T_L(X) = \sum_j p_j x_j`,
    :math:`p = \operatorname{softmax}(\lambda\, (\mu \cdot x_1)\, X\mu)`, and its limit
    :math:`T_\infty = \lambda \Sigma \mu\, (\mu \cdot x_1)`, with
    :math:`c = \lambda\, \mu^\top \Sigma \mu`,

    .. math::

        \mathbb E \lVert T_L - T_\infty \rVert^2 \simeq \frac1L \Bigl(
        \frac{\operatorname{tr}\Sigma}{(1 - 2c^2)^{1/2}}
        + \frac{\lambda^2\, \mu^\top\Sigma\mu\, \lVert\Sigma\mu\rVert^2}
        {(1 - 2c^2)^{3/2}} \Bigr), \qquad c < \tfrac1{\sqrt 2}

    Beyond :math:`c = 1/\sqrt2` the variance of the softmax's normaliser, averaged over
    the query, is infinite, and the distance falls like :math:`L^{-2/(1 + 2c^2)}`. At
    the minimiser of the limiting risk c = 1, so there it falls like
    :math:`L^{-2/3}`.

    Parameters
    ----------
    law
        Law of the prompts; its number of tokens does not count.
    direction
        :math:`\mu`, (d,).
    inverse_temperature
        :math:`\lambda > 0`.

    Returns
    -------
    error
        ``exponent`` and ``coefficient``.

    Notes
    -----
    The coefficient is the delta method: given the query, the tokens are tilted by
    :math:`e^{a \cdot x}`, :math:`a = \lambda\mu\,(\mu \cdot x_1)`, and
    :math:`L\, \mathbb E \lVert T_L - T_\infty \rVert^2 \to e^{a^\top\Sigma a}
    (\operatorname{tr}\Sigma + \lVert\Sigma a\rVert^2)`. Its mean over the query is a
    Gaussian integral. The exponent beyond :math:`1/\sqrt2` is a heuristic of extreme
    values, not a proof: for a query of size h, with :math:`b = ch/\sqrt{\log L}`
    between :math:`1/\sqrt2` and :math:`\sqrt2`, the largest weight alone makes a
    relative error of :math:`L^{-(\sqrt2 - b)^2}`, and such a query has the probability
    :math:`L^{-b^2/(2c^2)}`; the largest product of both over b is the rate. The
    experiment ``maulensoto2026/finite_prompts`` measures both.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenheads.datasets import GaussianPrompts
    >>> law = GaussianPrompts(np.diag([2.0, 1.0]))
    >>> small = pca_prompt_error(law, [0.1, 0.0], inverse_temperature=1.0)
    >>> small.exponent, round(small.coefficient, 3)
    (-1.0, 3.002)
    >>> round(pca_prompt_error(law, [0.5**0.5, 0.0], inverse_temperature=1.0)[0], 3)
    -0.667
    """
    check_law(law, (GaussianPrompts,), owner=_OWNER)
    scale = check_positive("inverse_temperature", inverse_temperature, owner=_OWNER)
    mu = check_finite_array("direction", direction, owner=_OWNER)
    if mu.shape != (len(law.covariance),):
        fail("direction", f"of shape ({len(law.covariance)},)", mu, owner=_OWNER)
    pulled = law.covariance @ mu
    variance = float(mu @ pulled)
    c = scale * variance
    if 2 * c * c >= 1:
        return PromptError(-2 / (1 + 2 * c * c), math.nan)
    room = 1 - 2 * c * c
    trace = float(np.trace(law.covariance))
    moved = scale**2 * variance * float(pulled @ pulled)
    return PromptError(-1.0, trace / room**0.5 + moved / room**1.5)
