"""Risks that the erf head is compared with: null, best linear, Bayes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from eigenheads._checks import check_count, fail
from eigenheads._limits import MAX_RECORDED
from eigenheads._rng import check_generator
from eigenheads._typing import FloatArray
from eigenheads.datasets import SingleLocation
from eigenheads.theory._ranges import check_law

# Numbers per statistic in a block of the Monte Carlo: a few tens of megabytes.
_BLOCK_ENTRIES = 1_000_000


class LocationBaselines(NamedTuple):
    """Risks of two predictors without attention; both include the noise."""

    null: float
    linear: float


@dataclass(frozen=True, kw_only=True)
class BayesRisk:
    """A Monte Carlo estimate of the Bayes risk.

    Attributes
    ----------
    estimate
        Mean over the samples; includes the noise.
    standard_error
        Of the mean.
    """

    estimate: float
    standard_error: float


def location_baselines(law: SingleLocation) -> LocationBaselines:
    r"""Return the risk of predicting 0 and that of the best linear predictor.

    Predicting 0 has the risk :math:`\gamma^2 + \varepsilon^2`. The best linear
    predictor in all :math:`L d` coordinates has

    .. math::

        \varepsilon^2 + \gamma^2 - \frac{\gamma^4}{\gamma^2 + L - 1}

    reached by :math:`\frac{\gamma^2}{\gamma^2+L-1} \sum_l X_l \cdot v^*`: a linear
    predictor cannot find the deciding token, so it adds up the noise of all tokens.

    Parameters
    ----------
    law
        Law of the prompts.

    Returns
    -------
    baselines
        ``null`` and ``linear``.

    Examples
    --------
    >>> from eigenheads.datasets import SingleLocation
    >>> location_baselines(SingleLocation(d=9, n_tokens=2, gamma=1.0, noise=2.0))
    LocationBaselines(null=5.0, linear=4.5)
    """
    check_law(law, (SingleLocation,))
    n_others = law.n_tokens - 1
    # A single token is known exactly, however small gamma is.
    share = n_others / (law.gamma**2 + n_others) if n_others else 0.0
    null = law.gamma**2 + law.noise**2
    return LocationBaselines(null, law.noise**2 + law.gamma**2 * share)


def location_bayes_risk(
    law: SingleLocation, *, n_samples: int, rng: np.random.Generator
) -> BayesRisk:
    r"""Estimate the risk of the best predictor, the posterior mean, by Monte Carlo.

    .. math::

        \mathbb E[Y \mid X] = \sum_l p_l \, X_l \cdot v^*, \qquad
        \log p_l = \text{const} + \tfrac12 \lVert X_l \rVert^2
        - \tfrac1{2\gamma^2} \lVert X_l - \sqrt{d/2}\, k^* \rVert^2

    Its risk is :math:`\varepsilon^2 + \mathbb E \operatorname{Var}_p(X_l\cdot v^*)`.
    The posterior variance is averaged, because it varies less than a squared error.

    Parameters
    ----------
    law
        Law of the prompts.
    n_samples
        Number of prompts to draw, at least 2.
    rng
        Source of randomness.

    Returns
    -------
    risk
        ``estimate`` and ``standard_error``.

    Notes
    -----
    The posterior depends on a token through :math:`X\cdot k^*`, :math:`X\cdot v^*` and
    the squared length of the remainder, a chi-square variable with :math:`d - 2`
    degrees of freedom. Drawing these three numbers per token is exact for any d. The
    limit as
    :math:`L = o(d)` and :math:`d \to \infty` is :math:`\varepsilon^2`.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenheads.datasets import SingleLocation
    >>> risk = location_bayes_risk(SingleLocation(d=400, noise=0.1), n_samples=1000,
    ...                            rng=np.random.default_rng(0))
    >>> round(risk.estimate, 6)
    0.01
    """
    check_law(law, (SingleLocation,))
    if law.n_tokens > _BLOCK_ENTRIES:
        contract = f"a law with n_tokens <= {_BLOCK_ENTRIES}"
        fail("law", contract, law.n_tokens)
    n_samples = check_count("n_samples", n_samples, minimum=2, maximum=MAX_RECORDED)
    rng = check_generator(rng)
    variances = _posterior_variances(law, n_samples, rng)
    error = float(np.std(variances, ddof=1)) / math.sqrt(n_samples)
    estimate = law.noise**2 + float(np.mean(variances))
    return BayesRisk(estimate=estimate, standard_error=error)


def _posterior_variances(
    law: SingleLocation, n_samples: int, rng: np.random.Generator
) -> FloatArray:
    """Draw prompts whose first token decides, and return Var(X_J·v* | X) of each."""
    rows = max(1, _BLOCK_ENTRIES // law.n_tokens)
    variances = np.empty(n_samples)
    for first in range(0, n_samples, rows):
        block = variances[first : first + rows]
        log_odds, values = _draw_statistics(law, (len(block), law.n_tokens), rng)
        weights = softmax(log_odds, axis=1)
        mean = (weights * values).sum(axis=1, keepdims=True)
        block[:] = (weights * (values - mean) ** 2).sum(axis=1)
    return variances


def _draw_statistics(
    law: SingleLocation, shape: tuple[int, int], rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    r"""Return :math:`\log p_l` up to a constant, and :math:`X_l \cdot v^*`."""
    gamma, m = law.gamma, math.sqrt(law.d / 2)
    along_key, along_value = rng.standard_normal((2, *shape))
    squares = rng.chisquare(law.d - 2.0, shape) if law.d > 2 else np.zeros(shape)
    along_key[:, 0] = m + gamma * along_key[:, 0]
    along_value[:, 0] *= gamma
    squares[:, 0] *= gamma**2
    # |x|²/2 - |x - m k*|²/(2 gamma²), times gamma²: the large parts cancel first.
    shrink = (gamma - 1) * (gamma + 1) / 2
    square = along_key**2 + along_value**2 + squares
    log_odds = (shrink * square + m * along_key) / gamma**2
    return log_odds, along_value
