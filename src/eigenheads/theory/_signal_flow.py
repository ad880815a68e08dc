"""The flow of the population objective: fixed points, and how long escape takes."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import quad
from scipy.special import betaincinv

from eigenheads._checks import check_count, check_finite_array, check_number, fail
from eigenheads._limits import LARGEST
from eigenheads._trajectories import Trajectories
from eigenheads._typing import FloatArray
from eigenheads.theory._location_checks import ROUNDING, check_duration
from eigenheads.theory._signal_objective import population_slope, tilted
from eigenheads.theory._signal_sphere import alignment_path

# Far below what a figure or a claim resolves.
_PRECISION = 1e-10, 1e-14  # relative, absolute
_N_RECORDS = 201


@dataclass(frozen=True, kw_only=True)
class SignalFixedPoint:
    """An alignment at which the flow rests.

    Attributes
    ----------
    alignment
        Where it is.
    kind
        ``"sink"`` attracts, ``"source"`` repels, ``"neutral"`` does neither.
    rate
        Derivative of the velocity there: how fast a distance to it grows.
    """

    alignment: float
    kind: Literal["sink", "source", "neutral"]
    rate: float


def signal_flow(
    start: ArrayLike, *, fraction: float, amplitude: float, duration: float
) -> Trajectories:
    r"""Gradient flow of :func:`signal_objective` on the sphere.

    .. math::

        \dot t = (1 - t^2)\, J'(t), \qquad t = q \cdot u

    It is the limit of projected stochastic gradient ascent as the number of tokens
    grows and the steps shrink, with time :math:`s = \sum_t a_t`.

    Parameters
    ----------
    start
        Alignment at which to start: one number, or one a run.
    fraction
        :math:`\pi`, the share of informative tokens.
    amplitude
        :math:`A = \theta \sqrt d \ge 0`.
    duration
        Time to integrate over.

    Returns
    -------
    trajectories
        ``alignment`` at 201 equally spaced times, which are ``.steps``.

    References
    ----------
    .. [1] truong2026; the law's constants are ours.

    Examples
    --------
    >>> path = signal_flow([0.1, -0.1], fraction=0.01, amplitude=2.5, duration=30.0)
    >>> path.final("alignment").round(3)
    array([ 1., -1.])
    """
    owner = "signal_flow"
    pi, a = _check_law(fraction, amplitude, owner=owner)
    end = check_duration(duration, owner=owner)
    starts = _check_start(start, owner=owner)
    times = np.linspace(0.0, end, _N_RECORDS)
    paths = [
        alignment_path(
            float(t),
            lambda t: _slope(t, pi, a),
            times,
            name="duration",
            owner=owner,
            precision=_PRECISION,
        )
        for t in starts
    ]
    return Trajectories(times, {"alignment": np.array(paths)})


def signal_fixed_points(
    *, fraction: float, amplitude: float
) -> tuple[SignalFixedPoint, ...]:
    r"""All fixed points of :func:`signal_flow`, with their kinds.

    :math:`J' > 0` on :math:`(0, 1]` and J is even, so for :math:`\pi A > 0` there are
    three: 0 repels at the escape rate :math:`J''(0)`, and :math:`\pm 1` attract at
    the rate :math:`2 J'(1)`.

    Parameters
    ----------
    fraction
        :math:`\pi`, the share of informative tokens.
    amplitude
        :math:`A \ge 0`.

    Returns
    -------
    points
        In increasing order of the alignment. Without a signal every alignment is a
        fixed point; the same three are returned, as neutral.

    Examples
    --------
    >>> [point.kind for point in signal_fixed_points(fraction=0.1, amplitude=2.0)]
    ['sink', 'source', 'sink']
    """
    owner = "signal_fixed_points"
    pi, a = _check_law(fraction, amplitude, owner=owner)
    if pi * a == 0:
        return tuple(
            SignalFixedPoint(alignment=t, kind="neutral", rate=0.0)
            for t in (-1.0, 0.0, 1.0)
        )
    away = float(-2 * _slope(1.0, pi, a))
    escape = signal_escape_rate(fraction=pi, amplitude=a)
    return (
        SignalFixedPoint(alignment=-1.0, kind="sink", rate=away),
        SignalFixedPoint(alignment=0.0, kind="source", rate=escape),
        SignalFixedPoint(alignment=1.0, kind="sink", rate=away),
    )


def signal_escape_rate(*, fraction: float, amplitude: float) -> float:
    r"""Rate at which a small alignment grows under :func:`signal_flow`.

    .. math::

        J''(0) = 4 \pi A^2 + 2 \pi^2 A^4

    Parameters
    ----------
    fraction
        :math:`\pi`, the share of informative tokens.
    amplitude
        :math:`A \ge 0`.

    Returns
    -------
    rate
        A small alignment grows like :math:`e^{J''(0) s}`.

    Examples
    --------
    >>> signal_escape_rate(fraction=0.5, amplitude=1.0)
    2.5
    """
    pi, a = _check_law(fraction, amplitude, owner="signal_escape_rate")
    spike = pi * a * a
    return 4 * spike + 2 * spike * spike


def signal_escape_time(
    start: ArrayLike, *, fraction: float, amplitude: float, level: float = 0.5
) -> FloatArray:
    r"""Time that :func:`signal_flow` takes from one alignment to another.

    .. math::

        s = \int_{t_0}^{t_1} \frac{dt}{(1 - t^2) J'(t)}

    Parameters
    ----------
    start
        :math:`t_0 = |q \cdot u|`; for a random start see :func:`random_alignment`.
    fraction
        :math:`\pi`, the share of informative tokens.
    amplitude
        :math:`A`.
    level
        :math:`t_1`, below 1.

    Returns
    -------
    times
        0 where the start is beyond the level; infinite where it is 0, or where
        there is no signal.

    Examples
    --------
    >>> median = random_alignment(10_000)
    >>> float(signal_escape_time(median, fraction=0.01, amplitude=25.0).round(3))
    0.019
    """
    owner = "signal_escape_time"
    pi, a = _check_law(fraction, amplitude, owner=owner)
    starts = np.abs(check_finite_array("start", start, owner=owner))
    if np.any(starts > 1 + ROUNDING):
        fail("start", "alignments from -1 to 1", float(starts.max()), owner=owner)
    level = check_number("level", level, owner=owner, minimum=0.0, maximum=1.0)
    if level == 1:
        fail("level", "below 1, which is never reached", level, owner=owner)
    times = [_passage(float(t), level, pi, a) for t in starts.ravel()]
    return np.array(times).reshape(starts.shape)


def random_alignment(d: int, *, quantile: float = 0.5) -> float:
    r"""Quantile of :math:`|q \cdot u|` for q uniform on the sphere.

    :math:`(q \cdot u)^2` has the law Beta(1/2, (d - 1)/2): about 1/√d.

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


def _slope(t: ArrayLike, pi: float, a: float) -> FloatArray:
    return population_slope(t, tilted(t, pi, a, 1.0, "random"), 1.0)


def _passage(start: float, level: float, pi: float, a: float) -> float:
    if start >= level:
        return 0.0
    if start == 0 or pi * a == 0:
        return math.inf

    def integrand(log_t: float) -> float:
        t = math.exp(log_t)
        return t / ((1 - t * t) * float(_slope(t, pi, a)))

    # On a logarithmic axis the integrand is almost constant, 1 / J''(0), near 0.
    return float(quad(integrand, math.log(start), math.log(level), limit=200)[0])


def _check_law(
    fraction: object, amplitude: object, *, owner: str
) -> tuple[float, float]:
    pi = check_number("fraction", fraction, owner=owner, minimum=0.0, maximum=1.0)
    # Fourth powers stay within float64.
    a = check_number("amplitude", amplitude, owner=owner, minimum=0.0, maximum=LARGEST)
    return pi, a


def _check_start(start: object, *, owner: str) -> FloatArray:
    array = np.atleast_1d(check_finite_array("start", start, owner=owner))
    if array.ndim != 1 or not len(array):
        fail("start", "one number or of shape (n_runs,)", array, owner=owner)
    if np.any(np.abs(array) > 1 + ROUNDING):
        worst = float(array.flat[np.argmax(np.abs(array))])
        fail("start", "alignments from -1 to 1", worst, owner=owner)
    return np.clip(array, -1.0, 1.0)
