"""Paths with finitely many tokens: the flow, and the mean path, noise included."""

import numpy as np
from numpy.typing import ArrayLike

from eigenheads._checks import check_count, check_finite_array, fail
from eigenheads._schedules import check_schedule, schedule_values
from eigenheads._trajectories import Trajectories, record_steps
from eigenheads._typing import FloatArray, Schedule
from eigenheads.theory._location_checks import check_order
from eigenheads.theory._signal_finite import check_prompt, noise, slope
from eigenheads.theory._signal_sphere import alignment_path

# Far below what a figure or a claim resolves.
_PRECISION = 1e-8, 1e-12  # relative, absolute


def finite_signal_flow(
    start: ArrayLike,
    *,
    d: int,
    n_informative: float,
    n_nuisance: float,
    strength: float,
    signs: str = "random",
    inverse_temperature: float = 1.0,
    times: ArrayLike,
) -> Trajectories:
    r"""Gradient flow of :func:`finite_signal_objective` on the sphere.

    .. math::

        \dot t = (1 - t^2)\, J_n'(t)

    Stochastic ascent follows it at the times :math:`s = \sum_t a_t`, up to the noise
    of its gradients.

    Parameters
    ----------
    start
        Alignment at which to start: one number, or one a run.
    d, n_informative, n_nuisance, strength, signs, inverse_temperature
        Of the law: the fields of ``SignalTokens``.
    times
        When to record: increasing, from 0 on.

    Returns
    -------
    trajectories
        ``alignment``; ``steps`` are the times.

    Examples
    --------
    >>> law = {"d": 100, "n_informative": 100, "n_nuisance": 10_000, "strength": 0.25}
    >>> path = finite_signal_flow([0.1, -0.1], **law, times=[0.0, 10.0, 30.0])
    >>> path.final("alignment").round(3)
    array([ 1., -1.])
    """
    owner = "finite_signal_flow"
    prompt = check_prompt(
        d, n_informative, n_nuisance, strength, signs, inverse_temperature, owner=owner
    )
    when = check_finite_array("times", times, owner=owner)
    ordered = when.ndim == 1 and len(when) > 1 and when[0] == 0
    if not ordered or not np.all(np.diff(when) > 0):
        fail("times", "at least two increasing times, the first 0", when, owner=owner)
    starts = _check_start(start, owner=owner)
    paths = [
        alignment_path(
            float(t),
            lambda t: slope(t, prompt),
            when,
            name="times",
            owner=owner,
            precision=_PRECISION,
        )
        for t in starts
    ]
    return Trajectories(when, {"alignment": np.array(paths)})


def finite_signal_ascent(
    start: ArrayLike,
    *,
    d: int,
    n_informative: float,
    n_nuisance: float,
    strength: float,
    signs: str = "random",
    inverse_temperature: float = 1.0,
    step_size: Schedule,
    n_steps: int,
    record_every: int = 1,
    batch_size: int = 1,
) -> Trajectories:
    r"""Mean path of projected stochastic gradient ascent, noise included.

    .. math::

        t \leftarrow \frac{t + a (1 - t^2) J_n'(t)}
        {\sqrt{1 + a^2 (1 - t^2) J_n'(t)^2 + a^2 G(t) / B}}

    The numerator is the mean step. Noise has no mean, but it makes the query longer
    before it is normalised, and that costs alignment: for small constant steps the
    path ends at :math:`1 - t \approx a\, G(1) / (4 B J_n'(1))` instead of 0.

    Parameters
    ----------
    start
        Alignment at which to start: one number, or one a run.
    d, n_informative, n_nuisance, strength, signs, inverse_temperature
        Of the law: the fields of ``SignalTokens``.
    step_size
        :math:`a`, a number or a callable of the index of the update.
    n_steps
        Number of updates.
    record_every
        Updates between two records.
    batch_size
        :math:`B`, prompts an update.

    Returns
    -------
    trajectories
        ``alignment``; a record is the state after that many updates.

    Examples
    --------
    >>> law = {"d": 100, "n_informative": 100, "n_nuisance": 10_000, "strength": 0.25}
    >>> path = finite_signal_ascent(0.1, **law, n_steps=2500, record_every=2500,
    ...                             step_size=lambda t: 0.05 / (1 + t / 200))
    >>> path.final("alignment").round(3)
    array([0.997])
    """
    owner = "finite_signal_ascent"
    prompt = check_prompt(
        d, n_informative, n_nuisance, strength, signs, inverse_temperature, owner=owner
    )
    rate = check_schedule("step_size", step_size, owner=owner)
    n_steps = check_count("n_steps", n_steps, owner=owner)
    record_every = check_count(
        "record_every", record_every, owner=owner, maximum=n_steps
    )
    batch = check_count("batch_size", batch_size, owner=owner)
    t = _check_start(start, owner=owner)
    rates = schedule_values("step_size", rate, 0, n_steps, owner=owner)
    steps = record_steps(n_steps, record_every)
    path = np.empty((len(t), len(steps)))
    path[:, 0] = t
    for index, a in enumerate(rates, start=1):
        tangent = np.sqrt((1 - t) * (1 + t))
        climb = a * tangent * slope(t, prompt)
        t = (t + tangent * climb) / np.sqrt(
            1 + climb**2 + a * a * noise(t, prompt) / batch
        )
        if index % record_every == 0:
            path[:, index // record_every] = t
    return Trajectories(steps, {"alignment": path})


def _check_start(start: object, *, owner: str) -> FloatArray:
    t = np.atleast_1d(check_order("start", start, owner=owner))
    if t.ndim != 1 or not len(t):
        fail("start", "one number or of shape (n_runs,)", t, owner=owner)
    return np.clip(t, -1.0, 1.0)
