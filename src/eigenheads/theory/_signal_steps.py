"""Step sizes for signal recovery: what theory asks of them, and one rule that obeys."""

import math
from dataclasses import dataclass

from scipy.optimize import brentq

from eigenheads._checks import Got, check_count, check_number, fail
from eigenheads.theory._signal_finite import Prompt, check_prompt, noise, slope

# A step moves an unstable alignment, or a stable error, by at most half of itself;
# and stays a factor 4 below the size at which noise outweighs the drift.
_HALF = 0.5
# Time is given twice over, from a start e² times closer to 0 than a typical one.
_SAFETY, _MARGIN = 2.0, 2.0


@dataclass(frozen=True, kw_only=True)
class SignalConditions:
    r"""The four numbers that decide which step sizes find the signal.

    Attributes
    ----------
    escape_rate
        :math:`r = J_n''(0)`: a small alignment grows like :math:`e^{rs}`. With fixed
        signs 0 is no fixed point; there it is the drift :math:`J_n'(0)` if larger.
    return_rate
        :math:`\lambda = J_n'(1)`: a small angle to u shrinks like
        :math:`e^{-\lambda s}`.
    start_noise, end_noise
        :math:`G(0), G(1)`: squared length of one prompt's gradient outside the plane
        of q and u.
    """

    escape_rate: float
    return_rate: float
    start_noise: float
    end_noise: float

    @property
    def largest_start(self) -> float:
        r"""Step above which noise outweighs the drift near 0: :math:`2 r / G(0)`."""
        return 2 * self.escape_rate / self.start_noise

    def escape_steps(self, d: int) -> float:
        r"""Return the updates that escape from :math:`1/\sqrt d` takes at least.

        A step a multiplies a small alignment by about
        :math:`1 + a r - \tfrac12 a^2 G(0)`, which is largest at :math:`a = r/G(0)`;
        steps above 1/r are not considered:

        .. math::

            T = \frac{\tfrac12 \log d}{a r - \tfrac12 a^2 G(0)}, \qquad
            a = \min(r / G(0),\ 1 / r)
        """
        a = min(self.escape_rate / self.start_noise, 1 / self.escape_rate)
        gain = a * self.escape_rate - a * a * self.start_noise / 2
        return math.log(d) / 2 / gain

    def error(self, step_size: float) -> float:
        r"""Return :math:`1 - t` at which a small constant step ends.

        .. math::

            1 - t = \frac{a\, G(1)}{4 \lambda}
        """
        return step_size * self.end_noise / (4 * self.return_rate)


@dataclass(frozen=True)
class SignalSteps:
    r"""A Robbins–Monro schedule: a callable of the index of the update.

    .. math::

        a_t = \frac{a_0}{(1 + t / t_0)^p}, \qquad
        \sum_t a_t = \infty,\ \sum_t a_t^2 < \infty
        \iff \tfrac12 < p \le 1

    Attributes
    ----------
    first
        :math:`a_0`.
    decay_steps
        :math:`t_0`; infinite for a constant step.
    n_steps
        Updates it is made for.
    power
        :math:`p`. Any number >= 0: also one that breaks the conditions.
    """

    first: float
    decay_steps: float
    n_steps: int
    power: float = 1.0

    def __call__(self, index: int) -> float:
        """Return the step size of an update."""
        return self.first / (1 + index / self.decay_steps) ** self.power

    @property
    def obeys_robbins_monro(self) -> bool:
        """True if the sum of steps diverges and that of their squares does not."""
        return math.isfinite(self.decay_steps) and 0.5 < self.power <= 1


def signal_conditions(
    *,
    d: int,
    n_informative: float,
    n_nuisance: float,
    strength: float,
    signs: str = "random",
    inverse_temperature: float = 1.0,
) -> SignalConditions:
    r"""Rates and noise of projected stochastic gradient ascent, to order 1/n.

    For random signs the escape rate is, with :math:`\ell = \pi A^2`,

    .. math::

        r = \beta^2 \Bigl(4 \ell + 2 \ell^2
          + 2 \ell\, (d - 2) \frac{e^{\beta^2}}{n}\Bigr)

    Parameters
    ----------
    d, n_informative, n_nuisance, strength, signs, inverse_temperature
        Of the law: the fields of ``SignalTokens``.

    Returns
    -------
    conditions
        The four numbers.

    Examples
    --------
    >>> signal_conditions(d=400, n_informative=200, n_nuisance=1800,
    ...                   strength=0.1).escape_rate.__round__(2)
    2.35
    """
    owner = "signal_conditions"
    return _conditions(
        check_prompt(
            d,
            n_informative,
            n_nuisance,
            strength,
            signs,
            inverse_temperature,
            owner=owner,
        )
    )


def signal_steps(
    *,
    d: int,
    n_informative: float,
    n_nuisance: float,
    strength: float,
    signs: str = "random",
    inverse_temperature: float = 1.0,
    error: float = 1e-3,
    n_steps: int | None = None,
) -> SignalSteps:
    r"""One rule for the step sizes: from the law to :math:`a_0`, :math:`t_0` and T.

    With the rates :math:`r, \lambda` and the noise :math:`G` of
    :func:`signal_conditions` and the wanted error :math:`\delta` = 1 - alignment:

    1. start as fast as is stable: :math:`a_0 = \frac12 \min(1/r,\ r/G(0))`;
    2. end where the noise leaves the error: :math:`a_T = \min(4 \lambda \delta / G(1),
       \frac{1}{2 \lambda})`;
    3. in between, :math:`a_t = a_0 / (1 + t / t_0)` for a total time of twice what the
       way takes from a start at :math:`1/(e^2 \sqrt d)`:
       :math:`S = 2\,[(\tfrac12 \log d + 2)/r + \log(1/\delta)/(2\lambda)]`.

    With :math:`\rho = a_0/a_T` the third gives
    :math:`T = S (\rho - 1)/(a_0 \log \rho)` and :math:`t_0 = T/(\rho - 1)`.

    Parameters
    ----------
    d, n_informative, n_nuisance, strength, signs, inverse_temperature
        Of the law: the fields of ``SignalTokens``.
    error
        :math:`\delta`.
    n_steps
        T if it is given and not computed: then :math:`\rho` follows from the total
        time S, and where there are not enough updates for it the step is constant.

    Returns
    -------
    steps
        A schedule that knows its number of updates.

    Examples
    --------
    >>> steps = signal_steps(d=100, n_informative=100, n_nuisance=10_000, strength=0.25)
    >>> steps.n_steps, round(steps(0), 2), round(steps(steps.n_steps) / steps(0), 4)
    (5279, 0.23, 0.0065)
    """
    owner = "signal_steps"
    prompt = check_prompt(
        d, n_informative, n_nuisance, strength, signs, inverse_temperature, owner=owner
    )
    delta = check_number("error", error, owner=owner, minimum=1e-12, maximum=0.5)
    if prompt.fraction * prompt.amplitude == 0:
        hint = "Without a signal there is nothing to find."
        got = Got(f"{strength} with {n_informative} informative tokens")
        fail("strength", "> 0, with informative tokens", got, owner=owner, hint=hint)
    if d < 3:
        fail("d", "an integer >= 3", d, owner=owner)
    c = _conditions(prompt)
    r, lam = c.escape_rate, c.return_rate
    first = _HALF * min(1 / r, r / c.start_noise)
    time = _SAFETY * ((math.log(d) / 2 + _MARGIN) / r + math.log(1 / delta) / (2 * lam))
    if n_steps is not None:
        n_steps = check_count("n_steps", n_steps, owner=owner)
        return SignalSteps(first, _decay_steps(first, time, n_steps), n_steps)
    last = min(4 * lam * delta / c.end_noise, _HALF / lam)
    if first <= last:
        return SignalSteps(first, math.inf, math.ceil(time / first))
    ratio = first / last
    length = time * (ratio - 1) / (first * math.log(ratio))
    return SignalSteps(first, length / (ratio - 1), math.ceil(length))


def _decay_steps(first: float, time: float, n_steps: int) -> float:
    """Return t_0 for which the steps sum to `time`, or infinity if they cannot."""

    def missing(log_ratio: float) -> float:
        return n_steps * first * log_ratio / math.expm1(log_ratio) - time

    if missing(1e-9) <= 0:
        return math.inf
    return n_steps / math.expm1(brentq(missing, 1e-9, 700.0))


def _conditions(prompt: Prompt) -> SignalConditions:
    return SignalConditions(
        escape_rate=_escape_rate(prompt),
        return_rate=float(slope(1.0, prompt)),
        start_noise=float(noise(0.0, prompt)),
        end_noise=float(noise(1.0, prompt)),
    )


def _escape_rate(prompt: Prompt) -> float:
    """Return J_n″(0)."""
    d, _, pi, a, signs, beta = prompt
    spike = pi * a * a
    outside = (d - 2) * prompt.per_token
    if signs == "random":
        return beta**2 * spike * (4 + 2 * spike + 2 * outside)
    # All three derivatives of log(1 - π + π e^y) at 0 come in.
    first, second = pi, pi * (1 - pi)
    third = second * (1 - 2 * pi)
    m, m1, m2 = a * first, a * a * beta * second, a**3 * beta**2 * third
    bend = (beta * a) ** 2 * (4 * second - 2 * second)
    curve = 4 * beta * m1 + 2 * m1 * m1 + 2 * m * m2
    return max(curve + outside * bend, float(slope(0.0, prompt)))
