"""Projected gradient descent on the population risk, closed on five numbers."""

import math
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from eigenheads._checks import Got, fail
from eigenheads._limits import LARGEST
from eigenheads._location_order import ORDER_PARAMETERS, check_order_parameters
from eigenheads._parallel import RunPool, advance, blocks
from eigenheads._schedules import check_schedule, schedule_values
from eigenheads._trajectories import (
    Trajectories,
    check_n_steps,
    check_record_every,
    record_steps,
)
from eigenheads._typing import FloatArray, Schedule
from eigenheads.theory._location_checks import check_scalar_law
from eigenheads.theory._location_formulas import descend

_OWNER = "location_descent"

# About ten milliseconds a run: Ctrl-C and the progress bar stay prompt.
_BLOCK = 20_000


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
        One row a run: :math:`\kappa, \nu, \theta, \eta, \rho`, the inner products
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
    n_steps = check_n_steps(n_steps, owner=_OWNER)
    sharpness = check_schedule("inverse_temperature", inverse_temperature, owner=_OWNER)
    rate = check_schedule("step_size", step_size, owner=_OWNER)
    law = check_scalar_law(d, n_tokens, gamma, 0.0, owner=_OWNER)
    constants = (
        math.sqrt(float(law.d) / 2),
        float(law.gamma) ** 2,
        float(law.n_tokens) - 1,
    )
    state = check_order_parameters(start, d=int(law.d), owner=_OWNER)
    record_every = check_record_every(
        record_every,
        n_steps=n_steps,
        n_runs=len(state),
        n_curves=len(ORDER_PARAMETERS),
        owner=_OWNER,
    )
    steps = record_steps(n_steps, record_every)
    records = np.empty((len(state), len(steps), 5))
    records[:, 0] = state

    with RunPool(len(state)) as pool:
        for first, last in blocks(n_steps, size=_BLOCK):
            lambdas = schedule_values(
                "inverse_temperature",
                sharpness,
                first,
                last,
                owner=_OWNER,
                maximum=LARGEST,
            )
            rates = schedule_values("step_size", rate, first, last, owner=_OWNER)
            block = (lambdas, rates, first, record_every)
            pool.each(partial(_descend_run, state, records, block, constants))
            _check_finite(state, last)
            advance((last - first) * len(state))
    curves = np.moveaxis(records, 2, 0)
    return Trajectories(steps, dict(zip(ORDER_PARAMETERS, curves, strict=True)))


def _descend_run(
    state: FloatArray,
    records: FloatArray,
    block: tuple[FloatArray, FloatArray, int, int],
    constants: tuple[float, float, float],
    run: int,
) -> None:
    descend(state[run], *block, records[run], constants)


def _check_finite(state: FloatArray, n_updates: int) -> None:
    bad = ~np.isfinite(state).all(axis=1)
    if bad.any():
        got = Got(f"a value that is not finite within update {n_updates - 1}")
        contract = f"small enough for run {int(np.argmax(bad))} to stay in float64"
        fail("step_size", contract, got, owner=_OWNER)
