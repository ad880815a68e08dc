"""Signal among nuisance tokens: tilted laws, and the landscape of the query."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import quad, solve_ivp
from scipy.special import expit, logit

from eigenheads._checks import Got, check_finite_array, check_number, fail
from eigenheads._limits import LARGEST
from eigenheads._trajectories import Trajectories
from eigenheads._typing import FloatArray
from eigenheads.datasets import SignalTokens
from eigenheads.theory._ranges import check_alignments, check_inner_product, check_law

# --- Tilted laws ---------------------------------------------------------------------


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


# --- The landscape -------------------------------------------------------------------


# e^{6 β²} and squared logits occur below: both stay far inside float64.
_LARGEST_INVERSE_TEMPERATURE, _LARGEST_AMPLITUDE = 5.0, 1e30
# Relative and absolute tolerance of the integrator, far below what a figure or a claim
# resolves: with infinitely many tokens, where the objective is exact, and without.
_EXACT_TOLERANCE, _EXPANDED_TOLERANCE = (1e-10, 1e-14), (1e-8, 1e-12)
# Durations below this are integrated in units of themselves.
_TINY_DURATION = 1e-6


@dataclass(frozen=True, kw_only=True)
class SignalFixedPoint:
    """A fixed point of the flow.

    Attributes
    ----------
    alignment
        Position.
    kind
        ``"sink"`` attracts, ``"source"`` repels, ``"neutral"`` does neither.
    rate
        Derivative of the velocity, the growth rate of a small distance.
    """

    alignment: float
    kind: Literal["sink", "source", "neutral"]
    rate: float


class SignalLandscape:
    r"""Mean squared norm of the attention output as a function of the alignment.

    A query q on the sphere maximises :math:`J = \mathbb E \lVert o \rVert^2`,
    :math:`o = \sum_i p_i x_i`, :math:`p = \operatorname{softmax}(\beta X q)`, which
    depends on the alignment :math:`t = q \cdot u` only. With infinitely many tokens
    the softmax average is a Gaussian tilt, :math:`o = \beta q + m(t)\, u`, and with n
    tokens there is a correction of order 1/n:

    .. math::

        J_n(t) = \beta^2 + 2 \beta t m + m^2 + (d - 2)\, \mathbb E \lVert p \rVert^2,
        \qquad
        m(t) = \frac{\pi A \sinh(\beta At)}{1 - \pi + \pi \cosh(\beta At)}

    .. math::

        \mathbb E \lVert p \rVert^2 \approx \frac{e^{\beta^2}}{n} \cdot
        \frac{1 - \pi + \pi \cosh(2 \beta A t)}{(1 - \pi + \pi \cosh(\beta A t))^2}

    for random signs, with the share :math:`\pi` of informative tokens and
    :math:`A = \theta \sqrt d`. For fixed signs, exponentials replace the hyperbolic
    functions. The last term is the squared length of the output in the d - 2 directions
    outside q and u. It is relevant if d/n is of order one.

    Parameters
    ----------
    law
        Law of the prompts, with the inverse temperature :math:`\beta`.
    infinite
        Whether to take the limit of infinitely many tokens with the shares of `law`.
    fraction
        :math:`\pi`, if it is not ``law.fraction``: for instance the mean over prompts
        of different composition.

    Notes
    -----
    The mean of a ratio is replaced by the ratio of means: relative errors are of
    order :math:`e^{4 \beta^2} / n`, with the number of informative tokens in place of n
    if these receive all the attention.

    References
    ----------
    .. [1] truong2026; the constants of the law are ours.

    Examples
    --------
    >>> from eigenheads.datasets import SignalTokens
    >>> law = SignalTokens(d=100, n_informative=100, n_nuisance=10_000, strength=0.25)
    >>> landscape = SignalLandscape(law)
    >>> landscape.noise([0.0, 1.0]).round(2)
    array([0.57, 3.1 ])
    >>> landscape.flow([0.1, -0.1], times=[0.0, 10.0, 30.0]).final("alignment").round(3)
    array([ 1., -1.])
    """

    def __init__(
        self,
        law: SignalTokens,
        *,
        infinite: bool = False,
        fraction: float | None = None,
    ) -> None:
        check_law(law, (SignalTokens,))
        if not isinstance(infinite, bool | np.bool_):
            fail("infinite", "True or False", infinite)
        largest = _LARGEST_INVERSE_TEMPERATURE
        if not infinite and law.inverse_temperature > largest:
            contract = (
                f"a law with inverse_temperature <= {largest:g}: the expansion needs "
                "e^(4β²) << n"
            )
            fail("law", contract, law.inverse_temperature)
        most = LARGEST if infinite else _LARGEST_AMPLITUDE
        if law.amplitude > most:
            contract = f"a law with strength·√d <= {most:g}"
            fail("law", contract, law.amplitude)
        share = law.fraction if fraction is None else fraction
        self.law = law
        self.infinite = bool(infinite)
        self.fraction = check_number("fraction", share, minimum=0.0, maximum=1.0)

    def objective(self, alignment: ArrayLike) -> FloatArray:
        """Return :math:`J_n(t)`, of the shape of `alignment`."""
        t = _check_alignment(alignment)
        beta, tilt = self.law.inverse_temperature, self._tilt(t)
        value = beta**2 + (2 * beta * t + tilt.shift) * tilt.shift
        return np.asarray(value + self._outside * tilt.spread)

    def gradient(self, alignment: ArrayLike) -> FloatArray:
        r"""Return the derivative :math:`J_n'(t)`, of the shape of `alignment`.

        The gradient in the query is :math:`J_n'(t)\, u`. With infinitely many tokens

        .. math::

            J' = 2 \beta m + 2 (\beta t + m) m'
        """
        return np.asarray(self.slope(alignment))

    def noise(self, alignment: ArrayLike) -> FloatArray:
        r"""Return the mean squared length of a prompt's gradient outside q and u.

        The gradient is :math:`\sum_i c_i x_i` with
        :math:`c_i = 2 \beta p_i (x_i \cdot o - \lVert o \rVert^2)`. To order 1/n,

        .. math::

            G(t) = (d - 2)\, \mathbb E \sum_i c_i^2
                 + 4 \beta^2\, d\, \mathbb E \lVert p \rVert^2 (1 + 2 M), \qquad
            x \cdot o = x_\parallel \cdot o_\parallel + \frac{d\, w}{n \mathbb E w}
                      + \mathcal N\bigl(0, d\, \mathbb E \lVert p \rVert^2\bigr)

        with the weight :math:`w = e^{\beta q \cdot x}` of a token and its Gaussian
        coordinates :math:`x_\parallel` in the plane of q and u. The other two terms are
        the products of the token with itself and with all others outside this plane.
        The second term of G is the noise along the part of the output outside the
        plane, where the contributions of the tokens add up; M is the mean of
        :math:`x \cdot o - \lVert o \rVert^2` under the weights :math:`w^2`. Under these
        the coordinates are still Gaussian, so all means are closed forms.

        Returns
        -------
        noise
            Of the shape of `alignment`. A batch of B prompts divides it by B.
        """
        return np.asarray(self.squared_noise(alignment))

    @property
    def escape_rate(self) -> float:
        r"""Rate r at which a small alignment grows: like :math:`e^{rs}` with time s.

        For random signs it is :math:`J_n''(0)`, with :math:`\ell = \pi A^2`:

        .. math::

            r = \beta^2 \Bigl(4 \ell + 2 \ell^2
              + 2 \ell\, (d - 2) \frac{e^{\beta^2}}{n}\Bigr)

        With fixed signs 0 is not a fixed point, and the rate is the drift
        :math:`J_n'(0)` if that is larger.
        """
        pi, a, beta = self.fraction, self.law.amplitude, self.law.inverse_temperature
        spike = pi * a * a
        if self.law.signs == "random":
            return beta**2 * spike * (4 + 2 * spike + 2 * self._outside)
        # All three derivatives of log(1 - π + π e^y) at 0 come in.
        first, second = pi, pi * (1 - pi)
        third = second * (1 - 2 * pi)
        m, m1, m2 = a * first, a * a * beta * second, a**3 * beta**2 * third
        bend = (beta * a) ** 2 * (4 * second - 2 * second)
        curve = 4 * beta * m1 + 2 * m1 * m1 + 2 * m * m2
        return max(curve + self._outside * bend, float(self.slope(0.0)))

    @property
    def return_rate(self) -> float:
        r""":math:`J_n'(1)`: a small angle to u decays like :math:`e^{-J_n'(1) s}`."""
        return float(self.slope(1.0))

    @property
    def largest_start(self) -> float:
        r"""Largest step size that leaves 0: :math:`2 r / G(0)`; above it noise wins."""
        noise = float(self.noise(0.0))
        return 2 * self.escape_rate / noise if noise > 0 else math.inf

    def escape_steps(self) -> float:
        r"""Return the minimal number of updates to escape from :math:`1/\sqrt d`.

        A step size a multiplies a small alignment by about
        :math:`1 + a r - \tfrac12 a^2 G(0)`, which is largest at :math:`a = r/G(0)`;
        steps above 1/r are not considered:

        .. math::

            T = \frac{\tfrac12 \log d}{a r - \tfrac12 a^2 G(0)}, \qquad
            a = \min(r / G(0),\ 1 / r)
        """
        rate, noise = self.escape_rate, float(self.noise(0.0))
        if rate == 0:
            return math.inf
        # Without noise only the bound 1/r limits the step.
        a = min(rate / noise, 1 / rate) if noise > 0 else 1 / rate
        gain = a * rate - a * a * noise / 2
        return math.log(self.law.d) / 2 / gain

    def error(self, step_size: float) -> float:
        r"""Return the final error :math:`1 - t` of a small constant step size.

        .. math::

            1 - t = \frac{a\, G(1)}{4 J_n'(1)}
        """
        step = check_number("step_size", step_size, minimum=0.0)
        return step * float(self.noise(1.0)) / (4 * self.return_rate)

    def flow(self, start: ArrayLike, *, times: ArrayLike) -> Trajectories:
        r"""Integrate the gradient flow on the sphere, :math:`\dot t = (1-t^2) J_n'(t)`.

        Stochastic ascent follows it at the times :math:`s = \sum_t a_t`, up to the
        noise of its gradients (:func:`signal_mean_dynamics`).

        Parameters
        ----------
        start
            Alignment at which to start: one number, or one per run.
        times
            Times of the records: increasing, the first 0.

        Returns
        -------
        trajectories
            ``alignment``; ``steps`` are the times.
        """
        when = check_finite_array("times", times)
        ordered = when.ndim == 1 and len(when) > 1 and when[0] == 0
        if not ordered or not np.all(np.diff(when) > 0):
            contract = "at least two increasing times, the first 0"
            fail("times", contract, when)
        starts = check_alignments("start", start)
        paths = [self._integrate(float(t), when) for t in starts]
        return Trajectories(when, {"alignment": np.array(paths)})

    def fixed_points(self) -> tuple[SignalFixedPoint, ...]:
        r"""Return all fixed points of the flow, for random signs and infinite prompts.

        :math:`J' > 0` on :math:`(0, 1]` and J is even, so for :math:`\pi A > 0` there
        are three: 0 is unstable with the escape rate, and :math:`\pm 1` are stable with
        the rate :math:`2 J'(1)`.

        Returns
        -------
        points
            In increasing order of the alignment. Without a signal every alignment is
            a fixed point; the same three are returned, as neutral.
        """
        self._check_random_signs()
        if not self.infinite:
            fail("infinite", "True", self.infinite)
        if self.fraction * self.law.amplitude == 0:
            return tuple(
                SignalFixedPoint(alignment=t, kind="neutral", rate=0.0)
                for t in (-1.0, 0.0, 1.0)
            )
        away = -2 * self.return_rate
        return (
            SignalFixedPoint(alignment=-1.0, kind="sink", rate=away),
            SignalFixedPoint(alignment=0.0, kind="source", rate=self.escape_rate),
            SignalFixedPoint(alignment=1.0, kind="sink", rate=away),
        )

    def escape_time(self, start: ArrayLike, *, level: float = 0.5) -> FloatArray:
        r"""Return the time that the flow takes from one alignment to another.

        .. math::

            s = \int_{t_0}^{t_1} \frac{dt}{(1 - t^2) J'(t)}

        Parameters
        ----------
        start
            :math:`t_0 = |q \cdot u|`; for a random start see :func:`random_alignment`.
        level
            :math:`t_1`, below 1.

        Returns
        -------
        times
            0 where the start is beyond the level; infinite where it is 0, or where
            there is no signal. Signs must be random.
        """
        self._check_random_signs()
        starts = np.abs(check_inner_product("start", start))
        level = check_number("level", level, minimum=0.0, maximum=1.0)
        if level == 1:
            fail("level", "below 1, which is never reached", level)
        times = [self._passage(float(t), level) for t in starts.ravel()]
        return np.array(times).reshape(starts.shape)

    def slope(self, t: ArrayLike) -> FloatArray:
        """Return J_n′ at alignments of any shape."""
        t = _check_alignment(t)
        tilt = self._tilt(t)
        output = self.law.inverse_temperature * t + tilt.shift
        population = 2 * (
            self.law.inverse_temperature * tilt.shift + output * tilt.shift_slope
        )
        total: FloatArray = population + self._outside * tilt.spread_slope
        return total

    def squared_noise(self, t: ArrayLike) -> FloatArray:
        """Return G at alignments of any shape."""
        t = _check_alignment(t)
        d, pi, a = self.law.d, self.fraction, self.law.amplitude
        beta, per_token = self.law.inverse_temperature, self._per_token
        tilt = self._tilt(t)
        # The output's coordinates along u and along the rest of q, and its lengths.
        tangent = np.sqrt((1 - t) * (1 + t))
        along, across = beta * t + tilt.shift, beta * tangent
        inside = along**2 + across**2
        outside = d * per_token * tilt.spread
        with_query = along * t + across * tangent
        kinds = {0.0: 1 - pi, 1.0: pi}
        if self.law.signs == "random":
            kinds = {0.0: 1 - pi, 1.0: pi / 2, -1.0: pi / 2}
        logits = {sign: sign * beta * a * t for sign in kinds}
        far = np.abs(beta * a * t)
        mean = sum(share * np.exp(logits[sign] - far) for sign, share in kinds.items())
        squares, products, weight = (np.zeros_like(inside) for _ in range(3))
        # A sum over the kinds of tokens: nuisance, and informative with each sign.
        for sign, share in kinds.items():
            # Weights of this kind over the mean weight, before the Gaussian factors.
            w = np.exp(logits[sign] - far) / mean
            centre = (
                along * (sign * a + 2 * beta * t) + across * 2 * beta * tangent
            ) - (inside + outside)
            itself = self._ratio * w * math.exp(2 * beta**2)
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
        apart = (d - 2) * per_token * squares
        together = outside * (1 + 2 * products / weight)
        result: FloatArray = 4 * beta**2 * (apart + together)
        return result

    @property
    def _ratio(self) -> float:
        """Dimension over the number of tokens."""
        return 0.0 if self.infinite else self.law.d / self.law.n_tokens

    @property
    def _per_token(self) -> float:
        r"""Mean of :math:`\|p\|^2` for pure noise, :math:`e^{\beta^2} / n`."""
        if self.infinite:
            return 0.0
        return math.exp(self.law.inverse_temperature**2) / self.law.n_tokens

    @property
    def _outside(self) -> float:
        return (self.law.d - 2) * self._per_token

    def _tilt(self, t: FloatArray) -> Tilt:
        law = self.law
        return tilted(
            t, self.fraction, law.amplitude, law.inverse_temperature, law.signs
        )

    def _integrate(self, start: float, times: FloatArray) -> FloatArray:
        # The integrator never ends on a tiny interval: there, time counts in units of
        # the whole duration. Elsewhere the unit is 1, which changes no digit.
        unit = float(times[-1]) if times[-1] < _TINY_DURATION else 1.0

        def velocity(_: float, t: FloatArray) -> FloatArray:
            t = np.clip(t, -1.0, 1.0)
            moved: FloatArray = unit * (1 - t) * (1 + t) * self.slope(t)
            return moved

        rtol, atol = _EXACT_TOLERANCE if self.infinite else _EXPANDED_TOLERANCE
        # A large amplitude is stiff: its rates differ by factors like A.
        solution = solve_ivp(
            velocity,
            (0.0, times[-1] / unit),
            [start],
            method="LSODA",
            t_eval=times / unit,
            rtol=rtol,
            atol=atol,
        )
        if not solution.success or not np.isfinite(solution.y).all():
            got = Got(f"{float(times[-1])!r} ({solution.message})")
            fail("times", "within what the integrator can reach", got)
        path: FloatArray = np.clip(solution.y[0], -1.0, 1.0)
        path[0] = start
        return path

    def _passage(self, start: float, level: float) -> float:
        if start >= level:
            return 0.0
        if start == 0 or self.fraction * self.law.amplitude == 0:
            return math.inf

        def integrand(log_t: float) -> float:
            t = math.exp(log_t)
            return t / ((1 - t * t) * float(self.slope(t)))

        # On a logarithmic axis the integrand is almost constant, 1 / J''(0), near 0.
        return float(quad(integrand, math.log(start), math.log(level), limit=200)[0])

    def _check_random_signs(self) -> None:
        if self.law.signs != "random":
            got = Got(f"signs={self.law.signs!r}")
            fail("law", "a law with random signs", got)


def _check_alignment(alignment: ArrayLike) -> FloatArray:
    return np.clip(check_inner_product("alignment", alignment), -1.0, 1.0)
