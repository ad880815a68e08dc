"""Projected gradient descent on the population risk, closed on five numbers."""

import math

from numpy.typing import ArrayLike

from eigenheads._limits import MAX_RECORDED
from eigenheads._location_order import ORDER_PARAMETERS, check_order_parameters
from eigenheads._run_blocks import check_run_counts, run_blocks
from eigenheads._schedules import check_schedule
from eigenheads._trajectories import Trajectories
from eigenheads._typing import Schedule
from eigenheads.theory._location_checks import check_scalar_law
from eigenheads.theory._location_formulas import location_descent_block

_OWNER = "location_descent"
_UPDATE_NANOSECONDS = 1000.0


def location_descent(
    start: ArrayLike,
    *,
    d: int,
    n_tokens: int,
    gamma: float,
    inverse_temperature: Schedule,
    step_size: Schedule,
    n_steps: int,
    record_every: int = 1,
) -> Trajectories:
    r"""Projected gradient descent on the population risk, whatever `d` is.

    .. math::

        k \leftarrow \frac{k - \alpha_t (I - kk^\top) \nabla_k R}{\lVert\cdot\rVert},
        \qquad
        v \leftarrow \frac{v - \alpha_t (I - vv^\top) \nabla_v R}{\lVert\cdot\rVert}

    at once, both gradients at :math:`(k_t, v_t, \lambda_t)`. They lie in the span of
    :math:`k, v, k^*, v^*`, so the Gram matrix of these four, which is five numbers,
    is a dynamical system of its own: a step costs the same for every `d`.

    Parameters
    ----------
    start
        One row per run: :math:`\kappa, \nu, \theta, \eta, \rho`, the inner products
        :math:`k\cdot k^*, v\cdot v^*, v\cdot k^*, k\cdot v^*, k\cdot v` of unit
        vectors. A single row is one run.
    d, n_tokens, gamma
        Of the law.
    inverse_temperature
        :math:`\lambda_t`, a number or a callable of the index of the update.
    step_size
        :math:`\alpha_t`, likewise.
    n_steps
        Number of updates.
    record_every
        Updates between two records.

    Returns
    -------
    trajectories
        ``kappa``, ``nu``, ``theta``, ``eta``, ``rho``; a record is the state after
        that many updates.

    Notes
    -----
    The number of threads changes the time and never the result. A step size that is
    too large for the curvature (:math:`\lambda` near 1 at the paper's
    :math:`\alpha`) does not diverge on the sphere: it oscillates with period 2, and
    amplifies rounding.

    References
    ----------
    .. [1] marion2025.

    Examples
    --------
    >>> path = location_descent([0.1, 0.1, 0, 0, 0], d=400, n_tokens=10,
    ...     gamma=0.5**0.5, inverse_temperature=0.1, step_size=4e-3, n_steps=20_000,
    ...     record_every=20_000)
    >>> path.final("kappa").round(2), path.final("nu").round(2)
    (array([0.98]), array([1.]))
    """
    schedules = {
        "inverse_temperature": check_schedule(
            "inverse_temperature", inverse_temperature, owner=_OWNER
        ),
        "step_size": check_schedule("step_size", step_size, owner=_OWNER),
    }
    law = check_scalar_law(d, n_tokens, gamma, 0.0, owner=_OWNER)
    constants = (
        math.sqrt(float(law.d) / 2),
        float(law.gamma) ** 2,
        float(law.n_tokens) - 1,
    )
    states = check_order_parameters(start, d=int(law.d), owner=_OWNER)
    counts = check_run_counts(
        n_steps,
        len(states),
        record_every,
        n_curves=len(ORDER_PARAMETERS),
        owner=_OWNER,
        max_runs=MAX_RECORDED,
    )
    return run_blocks(
        location_descent_block,
        states,
        curves=ORDER_PARAMETERS,
        start=states,
        schedules=schedules,
        constants=(constants,),
        n_steps=counts.n_steps,
        record_every=counts.record_every,
        nanoseconds=_UPDATE_NANOSECONDS,
        owner=_OWNER,
    )
