"""Finitely many tokens: what they add to the objective, and the noise they leave."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from eigenheads._checks import (
    check_choice,
    check_count,
    check_number,
    check_positive,
    fail,
)
from eigenheads._typing import FloatArray
from eigenheads.theory._location_checks import check_order
from eigenheads.theory._signal_objective import Tilt, population_slope, tilted

# e^{6 β²} is met below, and squared logits: both stay far inside float64.
_LARGEST_SHARPNESS, _LARGEST_AMPLITUDE, _MOST_TOKENS = 5.0, 1e30, 1e30


class Prompt(NamedTuple):
    """The checked parameters of a law of prompts."""

    d: int
    n_tokens: float
    fraction: float
    amplitude: float
    signs: str
    beta: float

    def tilt(self, t: ArrayLike) -> Tilt:
        """Return the moments of the weights at alignment `t`."""
        return tilted(t, self.fraction, self.amplitude, self.beta, self.signs)

    @property
    def per_token(self) -> float:
        r""":math:`e^{\beta^2} / n`, what :math:`\|p\|^2` is for pure noise."""
        return math.exp(self.beta**2) / self.n_tokens


def finite_signal_objective(
    alignment: ArrayLike,
    *,
    d: int,
    n_informative: float,
    n_nuisance: float,
    strength: float,
    signs: str = "random",
    inverse_temperature: float = 1.0,
) -> FloatArray:
    r"""Return the mean squared norm of the attention output on n tokens, to order 1/n.

    .. math::

        J_n(t) = \beta^2 + 2 \beta t m + m^2 + (d - 2)\, \mathbb E \lVert p \rVert^2,
        \qquad
        \mathbb E \lVert p \rVert^2 \approx \frac{e^{\beta^2}}{n} \cdot
        \frac{1 - \pi + \pi \cosh(2 \beta A t)}{(1 - \pi + \pi \cosh(\beta A t))^2}

    for random signs, with :math:`\pi = n_1 / n` and :math:`A = \theta \sqrt d`;
    exponentials take the place of the hyperbolic cosines for fixed ones. The last term
    is the length of the output in the d - 2 directions outside q and u. It matters
    once d/n is of order one.

    Parameters
    ----------
    alignment
        :math:`t = q \cdot u`.
    d, n_informative, n_nuisance, strength, signs, inverse_temperature
        Of the law: the fields of ``SignalTokens``. Here the counts need not be whole:
        means over prompts do as well.

    Returns
    -------
    objective
        Of the shape of `alignment`.

    See Also
    --------
    signal_objective : the limit of infinitely many tokens, random signs, β = 1.

    Notes
    -----
    The mean of the ratio is replaced by the ratio of means: relative errors are of
    order :math:`e^{4 \beta^2} / n`, with the number of informative tokens in the place
    of n once they take all the attention.

    Examples
    --------
    >>> law = {"d": 402, "n_informative": 0, "n_nuisance": 2000, "strength": 0.0}
    >>> float(finite_signal_objective(0.0, **law).round(4))
    1.5437
    """
    owner = "finite_signal_objective"
    prompt = check_prompt(
        d, n_informative, n_nuisance, strength, signs, inverse_temperature, owner=owner
    )
    t = np.clip(check_order("alignment", alignment, owner=owner), -1.0, 1.0)
    return np.asarray(objective(t, prompt))


def finite_signal_gradient(
    alignment: ArrayLike,
    *,
    d: int,
    n_informative: float,
    n_nuisance: float,
    strength: float,
    signs: str = "random",
    inverse_temperature: float = 1.0,
) -> FloatArray:
    r"""Return the derivative :math:`J_n'(t)` of :func:`finite_signal_objective`.

    Parameters
    ----------
    alignment, d, n_informative, n_nuisance, strength, signs, inverse_temperature
        As in :func:`finite_signal_objective`.

    Returns
    -------
    slope
        Of the shape of `alignment`.

    Examples
    --------
    >>> law = {"d": 400, "n_informative": 20, "n_nuisance": 1980, "strength": 0.3}
    >>> finite_signal_gradient(0.0, **law)
    array(0.)
    """
    owner = "finite_signal_gradient"
    prompt = check_prompt(
        d, n_informative, n_nuisance, strength, signs, inverse_temperature, owner=owner
    )
    t = np.clip(check_order("alignment", alignment, owner=owner), -1.0, 1.0)
    return np.asarray(slope(t, prompt))


def finite_signal_noise(
    alignment: ArrayLike,
    *,
    d: int,
    n_informative: float,
    n_nuisance: float,
    strength: float,
    signs: str = "random",
    inverse_temperature: float = 1.0,
) -> FloatArray:
    r"""Mean squared length of one prompt's gradient outside q and u, to order 1/n.

    The gradient is :math:`\sum_i c_i x_i` with
    :math:`c_i = 2 \beta p_i (x_i \cdot o - \lVert o \rVert^2)`, so this is

    .. math::

        G(t) = (d - 2)\, \mathbb E \sum_i c_i^2
             + 4 \beta^2\, d\, \mathbb E \lVert p \rVert^2 (1 + 2 M), \qquad
        x \cdot o = x_\parallel \cdot o_\parallel + \frac{d\, w}{n \mathbb E w}
                  + \mathcal N\bigl(0, d\, \mathbb E \lVert p \rVert^2\bigr)

    with the token's weight :math:`w = e^{\beta q \cdot x}`, its Gaussian coordinates
    :math:`x_\parallel` in the plane of q and u, and what it meets of itself and of all
    others outside this plane. The second term is along the output's own direction
    outside the plane, where the tokens add up; M is the mean of
    :math:`x \cdot o - \lVert o \rVert^2` under the weights :math:`w^2`. Under these
    the coordinates stay Gaussian, and all means are closed forms.

    Parameters
    ----------
    alignment, d, n_informative, n_nuisance, strength, signs, inverse_temperature
        As in :func:`finite_signal_objective`.

    Returns
    -------
    noise
        Of the shape of `alignment`. A batch of B prompts divides it by B.

    Examples
    --------
    >>> law = {"d": 100, "n_informative": 100, "n_nuisance": 10_000, "strength": 0.25}
    >>> finite_signal_noise([0.0, 1.0], **law).round(2)
    array([0.57, 3.1 ])
    """
    owner = "finite_signal_noise"
    prompt = check_prompt(
        d, n_informative, n_nuisance, strength, signs, inverse_temperature, owner=owner
    )
    t = np.clip(check_order("alignment", alignment, owner=owner), -1.0, 1.0)
    return np.asarray(noise(t, prompt))


def objective(t: ArrayLike, prompt: Prompt) -> FloatArray:
    """Return J_n."""
    beta, tilt = prompt.beta, prompt.tilt(t)
    outside = (prompt.d - 2) * prompt.per_token * tilt.spread
    value: FloatArray = beta**2 + (2 * beta * np.asarray(t) + tilt.shift) * tilt.shift
    return value + outside


def slope(t: ArrayLike, prompt: Prompt) -> FloatArray:
    """Return J_n′."""
    tilt = prompt.tilt(t)
    outside = (prompt.d - 2) * prompt.per_token * tilt.spread_slope
    return population_slope(t, tilt, prompt.beta) + outside


def noise(t: ArrayLike, prompt: Prompt) -> FloatArray:
    """Return G."""
    t = np.asarray(t)
    d, n, pi, a, signs, beta = prompt
    tilt = prompt.tilt(t)
    # The output's coordinates along u and along the rest of q, and its lengths.
    tangent = np.sqrt((1 - t) * (1 + t))
    along, across = beta * t + tilt.shift, beta * tangent
    inside = along**2 + across**2
    outside = d * prompt.per_token * tilt.spread
    with_query = along * t + across * tangent
    kinds = {0.0: 1 - pi, 1.0: pi}
    if signs == "random":
        kinds = {0.0: 1 - pi, 1.0: pi / 2, -1.0: pi / 2}
    logits = {sign: sign * beta * a * t for sign in kinds}
    far = np.abs(beta * a * t)
    mean = sum(share * np.exp(logits[sign] - far) for sign, share in kinds.items())
    squares, products, weight = (np.zeros_like(inside) for _ in range(3))
    for sign, share in kinds.items():
        # Weights of this kind over the mean weight, before the Gaussian factors.
        w = np.exp(logits[sign] - far) / mean
        centre = (along * (sign * a + 2 * beta * t) + across * 2 * beta * tangent) - (
            inside + outside
        )
        itself = d / n * w * math.exp(2 * beta**2)
        square = (
            centre**2
            + inside
            + outside
            + 2 * itself * (centre + beta * with_query)
            + itself**2 * math.exp(beta**2)
        )
        squares = squares + share * w**2 * square
        products = products + share * w**2 * (centre + itself)
        weight = weight + share * w**2
    apart = (d - 2) * prompt.per_token * squares
    together = outside * (1 + 2 * products / weight)
    result: FloatArray = 4 * beta**2 * (apart + together)
    return result


def check_prompt(
    d: object,
    n_informative: object,
    n_nuisance: object,
    strength: object,
    signs: object,
    inverse_temperature: object,
    *,
    owner: str,
) -> Prompt:
    """Return the law's numbers, or raise."""
    size = check_count("d", d, owner=owner, minimum=2)
    informative, nuisance = (
        check_number(name, value, owner=owner, minimum=0.0, maximum=_MOST_TOKENS)
        for name, value in (
            ("n_informative", n_informative),
            ("n_nuisance", n_nuisance),
        )
    )
    theta = check_number("strength", strength, owner=owner, minimum=0.0)
    choice = check_choice("signs", signs, ("random", "fixed"), owner=owner)
    beta = check_positive("inverse_temperature", inverse_temperature, owner=owner)
    n = informative + nuisance
    if n < 1:
        contract = "such that there is at least one token"
        fail("n_nuisance", contract, nuisance, owner=owner)
    if beta > _LARGEST_SHARPNESS:
        contract = f"<= {_LARGEST_SHARPNESS:g}: the expansion needs e^(4β²) << n"
        fail("inverse_temperature", contract, beta, owner=owner)
    amplitude = theta * math.sqrt(size)
    if amplitude > _LARGEST_AMPLITUDE:
        contract = f"so small that strength·√d <= {_LARGEST_AMPLITUDE:g}"
        fail("strength", contract, theta, owner=owner)
    return Prompt(size, n, informative / n, amplitude, choice, beta)
