"""Baselines of the erf head: null, linear, oracle and Bayes risk."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from eigenheads._checks import check_count, fail
from eigenheads._limits import MAX_RECORDED
from eigenheads._rng import check_generator
from eigenheads._typing import FloatArray
from eigenheads.theory._location_checks import (
    Law,
    check_broadcast,
    check_gamma,
    check_noise,
    check_scalar_law,
    check_whole,
)
from eigenheads.theory._location_risk import checked_risk

# Numbers a block of the Monte Carlo holds per statistic: a few tens of megabytes.
_BLOCK_ENTRIES = 1_000_000


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


def location_null_risk(*, gamma: ArrayLike, noise: ArrayLike = 0.0) -> FloatArray:
    r"""Risk :math:`\gamma^2 + \varepsilon^2` of predicting 0.

    Parameters
    ----------
    gamma, noise
        Of the law.

    Returns
    -------
    risk
        Of the shape to which the arguments broadcast.

    Examples
    --------
    >>> float(location_null_risk(gamma=2.0, noise=1.0))
    5.0
    """
    owner = "location_null_risk"
    scale, sigma = check_gamma(gamma, owner=owner), check_noise(noise, owner=owner)
    check_broadcast({"gamma": scale, "noise": sigma}, owner=owner)
    return np.asarray(scale**2 + sigma**2)


def location_linear_risk(
    *, n_tokens: ArrayLike, gamma: ArrayLike, noise: ArrayLike = 0.0
) -> FloatArray:
    r"""Risk of the best linear predictor in all :math:`L d` coordinates.

    .. math::

        \varepsilon^2 + \gamma^2 - \frac{\gamma^4}{\gamma^2 + L - 1}

    reached by :math:`\frac{\gamma^2}{\gamma^2+L-1} \sum_l X_l \cdot v^*`: a linear
    predictor cannot find the token, so it pays for all of them.

    Parameters
    ----------
    n_tokens, gamma, noise
        Of the law.

    Returns
    -------
    risk
        Of the shape to which the arguments broadcast.

    Examples
    --------
    >>> float(location_linear_risk(n_tokens=2, gamma=1.0))
    0.5
    """
    owner = "location_linear_risk"
    count = check_whole("n_tokens", n_tokens, minimum=1, owner=owner)
    scale, sigma = check_gamma(gamma, owner=owner), check_noise(noise, owner=owner)
    named = {"n_tokens": count, "gamma": scale, "noise": sigma}
    check_broadcast(named, owner=owner)
    # One token is known exactly, however small gamma is.
    share = np.where(
        count == 1, 0.0, (count - 1) / (scale**2 + np.maximum(count - 1, 1))
    )
    return np.asarray(sigma**2 + scale**2 * share)


def location_oracle_risk(
    *,
    d: ArrayLike,
    n_tokens: ArrayLike,
    gamma: ArrayLike,
    inverse_temperature: ArrayLike,
    noise: ArrayLike = 0.0,
) -> FloatArray:
    r"""Risk of the erf head that knows the answer, :math:`k = k^*`, :math:`v = v^*`.

    Its excess over the noise goes to 0 when :math:`L = o(d)`,
    :math:`\lambda\sqrt d \to \infty` and :math:`\lambda\sqrt L \to 0`, and not
    otherwise: the other :math:`L - 1` tokens cost about
    :math:`\tfrac4\pi \lambda^2` each.

    Parameters
    ----------
    d, n_tokens, gamma, inverse_temperature, noise
        As in :func:`location_risk`.

    Returns
    -------
    risk
        Of the shape to which the arguments broadcast.

    Examples
    --------
    >>> float(location_oracle_risk(d=400, n_tokens=10, gamma=0.5**0.5,
    ...                            inverse_temperature=0.1).round(4))
    0.1135
    """
    law = d, n_tokens, gamma, inverse_temperature
    planted = (1.0, 1.0, 0.0, 0.0, 0.0)
    return checked_risk(planted, law, noise, owner="location_oracle_risk")


def location_bayes_risk(
    *,
    d: int,
    n_tokens: int,
    gamma: float,
    noise: float = 0.0,
    n_samples: int,
    rng: np.random.Generator,
) -> BayesRisk:
    r"""Risk of the best of all predictors, the posterior mean, by Monte Carlo.

    .. math::

        \mathbb E[Y \mid X] = \sum_l p_l \, X_l \cdot v^*, \qquad
        \log p_l = \text{const} + \tfrac12 \lVert X_l \rVert^2
        - \tfrac1{2\gamma^2} \lVert X_l - \sqrt{d/2}\, k^* \rVert^2

    whose risk is :math:`\varepsilon^2 + \mathbb E \operatorname{Var}_p(X_l\cdot v^*)`:
    the posterior variance is averaged, which has less variance than a squared error.

    Parameters
    ----------
    d, n_tokens, gamma, noise
        Of the law.
    n_samples
        Prompts to draw, at least 2.
    rng
        Source of randomness.

    Returns
    -------
    risk
        ``estimate`` and ``standard_error``.

    Notes
    -----
    A token meets the posterior through :math:`X\cdot k^*`, :math:`X\cdot v^*` and
    the squared length of the rest, a chi-square with :math:`d - 2` degrees of
    freedom: three numbers per token, whatever `d` is. The limit as :math:`L = o(d)`
    and :math:`d \to \infty` is :math:`\varepsilon^2`.

    Examples
    --------
    >>> import numpy as np
    >>> risk = location_bayes_risk(d=400, n_tokens=10, gamma=0.5**0.5, noise=0.1,
    ...                            n_samples=1000, rng=np.random.default_rng(0))
    >>> round(risk.estimate, 6)
    0.01
    """
    owner = "location_bayes_risk"
    law = check_scalar_law(d, n_tokens, gamma, 0.0, owner=owner)
    sigma = check_noise(noise, owner=owner)
    if sigma.ndim:
        fail("noise", "one number", sigma, owner=owner)
    n_samples = check_count(
        "n_samples", n_samples, owner=owner, minimum=2, maximum=MAX_RECORDED
    )
    rng = check_generator(rng, owner=owner)
    variances = _posterior_variances(law, n_samples, rng, owner=owner)
    error = float(np.std(variances, ddof=1)) / math.sqrt(n_samples)
    estimate = float(sigma) ** 2 + float(np.mean(variances))
    return BayesRisk(estimate=estimate, standard_error=error)


def _posterior_variances(
    law: Law, n_samples: int, rng: np.random.Generator, *, owner: str
) -> FloatArray:
    """Draw prompts whose first token decides, and return Var(X_J·v* | X) of each."""
    count = int(law.n_tokens)
    if count > _BLOCK_ENTRIES:
        fail("n_tokens", f"an integer <= {_BLOCK_ENTRIES}", count, owner=owner)
    rows = max(1, _BLOCK_ENTRIES // count)
    variances = np.empty(n_samples)
    for first in range(0, n_samples, rows):
        block = variances[first : first + rows]
        log_odds, values = _draw_statistics(law, (len(block), count), rng)
        weights = np.exp(log_odds - log_odds.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        mean = (weights * values).sum(axis=1, keepdims=True)
        block[:] = (weights * (values - mean) ** 2).sum(axis=1)
    return variances


def _draw_statistics(
    law: Law, shape: tuple[int, int], rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    r"""Return :math:`\log p_l` up to a constant, and :math:`X_l \cdot v^*`."""
    gamma, m = float(law.gamma), math.sqrt(float(law.d) / 2)
    along_key, along_value = rng.standard_normal((2, *shape))
    rest = rng.chisquare(float(law.d) - 2, shape) if law.d > 2 else np.zeros(shape)
    along_key[:, 0] = m + gamma * along_key[:, 0]
    along_value[:, 0] *= gamma
    rest[:, 0] *= gamma**2
    # |x|²/2 - |x - m k*|²/(2 gamma²), times gamma²: the large parts cancel first.
    shrink = (gamma - 1) * (gamma + 1) / 2
    square = along_key**2 + along_value**2 + rest
    log_odds = (shrink * square + m * along_key) / gamma**2
    return log_odds, along_value
