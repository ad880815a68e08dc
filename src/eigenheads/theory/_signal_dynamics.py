"""Signal among nuisance tokens: mean dynamics, and rules to compare with."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import betaincinv

from eigenheads._checks import Got, check_count, check_number, fail
from eigenheads._limits import LARGEST, MAX_RECORDED
from eigenheads._run_blocks import check_run_counts, check_schedule, schedule_values
from eigenheads._trajectories import Trajectories, record_steps
from eigenheads._typing import FloatArray, Schedule
from eigenheads.datasets import SignalTokens
from eigenheads.theory._ranges import (
    check_alignments,
    check_broadcast,
    check_integers,
    check_law,
    check_range,
)
from eigenheads.theory._signal_landscape import SignalLandscape

# A step moves an unstable alignment, or a stable error, by at most half of itself;
# and stays a factor 4 below the size at which noise outweighs the drift.
_HALF = 0.5
# Time is given twice over, from a start e² times closer to 0 than a typical one.
_SAFETY, _MARGIN = 2.0, 2.0


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
        Number of updates.
    power
        :math:`p \ge 0`; it may violate the conditions.
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
        """True if the sum of the steps diverges and that of their squares converges."""
        return math.isfinite(self.decay_steps) and 0.5 < self.power <= 1


def signal_mean_dynamics(
    law: SignalTokens,
    start: ArrayLike,
    *,
    step_size: Schedule,
    n_steps: int,
    record_every: int = 1,
    batch_size: int = 1,
) -> Trajectories:
    r"""Return the mean path of projected stochastic gradient ascent with its noise.

    .. math::

        t \leftarrow \frac{t + a (1 - t^2) J_n'(t)}
        {\sqrt{1 + a^2 (1 - t^2) J_n'(t)^2 + a^2 G(t) / B}}

    with :math:`J_n'` and :math:`G` of :class:`SignalLandscape`. The numerator is the
    mean step. The noise has mean zero, but it increases the length of the query before
    the normalisation, which reduces the alignment: for small constant steps the path
    ends at
    :math:`1 - t \approx a\, G(1) / (4 B J_n'(1))` instead of 0.

    Parameters
    ----------
    law
        Law of the prompts.
    start
        Alignment at which to start: one number, or one per run.
    step_size
        :math:`a`, a number or a callable of the 0-based index of the update.
    n_steps
        Number of updates.
    record_every
        Updates between two records.
    batch_size
        :math:`B`, prompts per update.

    Returns
    -------
    trajectories
        ``alignment``; a record is the state after that many updates.

    Examples
    --------
    >>> from eigenheads.datasets import SignalTokens
    >>> law = SignalTokens(d=100, n_informative=100, n_nuisance=10_000, strength=0.25)
    >>> path = signal_mean_dynamics(law, 0.1, n_steps=2500, record_every=2500,
    ...                             step_size=lambda t: 0.05 / (1 + t / 200))
    >>> path.final("alignment").round(3)
    array([0.997])
    """
    check_law(law, (SignalTokens,))
    landscape = SignalLandscape(law)
    rate = check_schedule("step_size", step_size)
    batch = check_count("batch_size", batch_size)
    t = check_alignments("start", start)
    counts = check_run_counts(
        n_steps, len(t), record_every, n_curves=1, max_runs=MAX_RECORDED
    )
    rates = schedule_values("step_size", rate, 0, counts.n_steps)
    steps = record_steps(counts.n_steps, counts.record_every)
    path = np.empty((len(t), len(steps)))
    path[:, 0] = t
    for index, a in enumerate(rates, start=1):
        # The product of both factors is accurate near 1, where 1 - t² would cancel.
        tangent = np.sqrt((1 - t) * (1 + t))
        climb = a * tangent * landscape.slope(t)
        noise = a * a * landscape.squared_noise(t) / batch
        # The divisor is the length of the moved query: the tangent step and the noise
        # are orthogonal to the query.
        t = (t + tangent * climb) / np.sqrt(1 + climb**2 + noise)
        if index % counts.record_every == 0:
            path[:, index // counts.record_every] = t
    return Trajectories(steps, {"alignment": path})


def signal_steps(
    law: SignalTokens, *, error: float = 1e-3, n_steps: int | None = None
) -> SignalSteps:
    r"""Choose step sizes for a law: :math:`a_0`, :math:`t_0` and their number T.

    With the escape rate r, the return rate :math:`\lambda` and the noise :math:`G` of
    :class:`SignalLandscape`, and the wanted error :math:`\delta` = 1 - alignment:

    1. the first step is half of the largest useful one:
       :math:`a_0 = \frac12 \min(1/r,\ r/G(0))`;
    2. the noise of the last step leaves the error :math:`\delta`:
       :math:`a_T = \min(4 \lambda \delta / G(1), \frac{1}{2 \lambda})`;
    3. in between, :math:`a_t = a_0 / (1 + t / t_0)`, for a total time of twice the time
       of the mean path from a start at :math:`1/(e^2 \sqrt d)`:
       :math:`S = 2\,[(\tfrac12 \log d + 2)/r + \log(1/\delta)/(2\lambda)]`.

    With :math:`\rho = a_0/a_T` the third condition gives
    :math:`T = S (\rho - 1)/(a_0 \log \rho)` and :math:`t_0 = T/(\rho - 1)`.

    Parameters
    ----------
    law
        Law of the prompts.
    error
        :math:`\delta`.
    n_steps
        T; None computes it. If it is given, :math:`\rho` follows from the total time S;
        if T is too small for S, the step is constant.

    Returns
    -------
    steps
        A schedule with its number of updates; :math:`t_0` is infinite if the step is
        constant.

    Examples
    --------
    >>> from eigenheads.datasets import SignalTokens
    >>> law = SignalTokens(d=100, n_informative=100, n_nuisance=10_000, strength=0.25)
    >>> steps = signal_steps(law)
    >>> steps.n_steps, round(steps(0), 2), round(steps(steps.n_steps) / steps(0), 4)
    (5279, 0.23, 0.0065)
    """
    check_law(law, (SignalTokens,))
    delta = check_number("error", error, minimum=1e-12, maximum=0.5)
    if law.fraction * law.amplitude == 0:
        hint = "Without a signal there is nothing to find."
        got = Got(f"{law.strength} with {law.n_informative} informative tokens")
        contract = "a law with strength > 0 and informative tokens"
        fail("law", contract, got, hint=hint)
    if law.d < 3:
        fail("law", "a law with d >= 3", Got(f"d={law.d}"))
    landscape = SignalLandscape(law)
    rate, back = landscape.escape_rate, landscape.return_rate
    first = _HALF * min(1 / rate, rate / float(landscape.noise(0.0)))
    way = (math.log(law.d) / 2 + _MARGIN) / rate + math.log(1 / delta) / (2 * back)
    time = _SAFETY * way
    if n_steps is not None:
        n_steps = check_count("n_steps", n_steps)
        return SignalSteps(first, _decay_steps(first, time, n_steps), n_steps)
    last = min(4 * back * delta / float(landscape.noise(1.0)), _HALF / back)
    # The fastest stable step leaves a small enough error, so it need not decay.
    if first <= last:
        return SignalSteps(first, math.inf, math.ceil(time / first))
    ratio = first / last
    length = time * (ratio - 1) / (first * math.log(ratio))
    return SignalSteps(first, length / (ratio - 1), math.ceil(length))


def _decay_steps(first: float, time: float, n_steps: int) -> float:
    """Return t_0 for which the steps sum to `time`, or infinity if they cannot."""

    def missing(log_ratio: float) -> float:
        # The steps, of which the first is e^log_ratio times the last, sum to about the
        # first term. For small arguments `expm1` avoids cancellation.
        return n_steps * first * log_ratio / math.expm1(log_ratio) - time

    # Even constant steps do not sum to more than the time.
    if missing(1e-9) <= 0:
        return math.inf
    return n_steps / math.expm1(brentq(missing, 1e-9, 700.0))


# --- Rules to compare with -----------------------------------------------------------


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
    named = {
        "fraction": check_range("fraction", fraction, 0.0, 1.0),
        "amplitude": check_range("amplitude", amplitude, 0.0, LARGEST),
        "d": check_integers("d", d, minimum=1),
        "n_samples": check_integers("n_samples", n_samples, minimum=1),
    }
    shape = check_broadcast(named)
    gamma = named["d"] / named["n_samples"]
    spike = named["fraction"] * named["amplitude"] ** 2 + np.zeros(shape)
    is_visible = spike > np.sqrt(gamma)
    spike = np.where(is_visible, spike, 1.0)
    squared = np.where(is_visible, (1 - gamma / spike**2) / (1 + gamma / spike), 0.0)
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
    named = {
        "fraction": check_range("fraction", fraction, 0.0, 1.0),
        "d": check_integers("d", d, minimum=1),
        "n_samples": check_integers("n_samples", n_samples, minimum=1),
    }
    check_broadcast(named)
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
    d = check_count("d", d, minimum=2)
    share = check_number("quantile", quantile, minimum=0.0, maximum=1.0)
    return math.sqrt(float(betaincinv(0.5, (d - 1) / 2, share)))
