"""Mean dynamics of single-location regression: with the noise of SGD, and without."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import solve_continuous_lyapunov
from scipy.special import erf

from eigenheads._checks import check_count, check_positive
from eigenheads._limits import LARGEST, MAX_RECORDED
from eigenheads._location_order import ORDER_PARAMETERS, check_order_parameters
from eigenheads._run_blocks import check_run_counts, run_blocks
from eigenheads._schedules import check_schedule
from eigenheads._trajectories import Trajectories
from eigenheads._typing import FloatArray, Schedule
from eigenheads.datasets import SingleLocation
from eigenheads.theory._location_formulas import TWO_OVER_ROOT_PI
from eigenheads.theory._location_noise import location_mean_block
from eigenheads.theory._ranges import (
    check_broadcast,
    check_inner_product,
    check_law,
    check_range,
)

# Durations of one update without and with the moments of the noise.
_DESCENT_NANOSECONDS, _NOISE_NANOSECONDS = 1000.0, 5000.0
# Tokens that a Monte Carlo estimate of the noise draws, and prompts at most.
_BAND_TOKENS, _BAND_PROMPTS = 2**19, 2**16
_DIFFERENCE = 1e-4


def location_descent(
    law: SingleLocation,
    start: ArrayLike,
    *,
    inverse_temperature: Schedule,
    step_size: Schedule,
    n_steps: int,
    record_every: int = 1,
) -> Trajectories:
    r"""Run projected gradient descent on the population risk, in any dimension.

    .. math::

        k \leftarrow \frac{k - \alpha_t (I - kk^\top) \nabla_k R}{\lVert\cdot\rVert},
        \qquad
        v \leftarrow \frac{v - \alpha_t (I - vv^\top) \nabla_v R}{\lVert\cdot\rVert}

    with both gradients at :math:`(k_t, v_t, \lambda_t)`. They lie in the span of
    :math:`k, v, k^*, v^*`, so the five inner products of these vectors determine those
    of the next step: the cost of a step does not depend on `d`.

    Parameters
    ----------
    law
        Law of the prompts.
    start
        One row per run: :math:`\kappa, \nu, \theta, \eta, \rho`, the inner products
        :math:`k\cdot k^*, v\cdot v^*, v\cdot k^*, k\cdot v^*, k\cdot v` of unit
        vectors. A single row is one run.
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
    The number of threads does not change the result. With a step size that is too large
    for the curvature (:math:`\lambda` near 1 at the :math:`\alpha` of the paper) the
    path does not diverge, because it is on the sphere: it oscillates with period 2 and
    amplifies rounding errors.

    References
    ----------
    .. [1] marion2025.

    Examples
    --------
    >>> from eigenheads.datasets import SingleLocation
    >>> path = location_descent(SingleLocation(d=400), [0.1, 0.1, 0, 0, 0],
    ...     inverse_temperature=0.1, step_size=4e-3, n_steps=20_000,
    ...     record_every=20_000)
    >>> path.final("kappa").round(2), path.final("nu").round(2)
    (array([0.98]), array([1.]))
    """
    return _mean_path(
        law,
        start,
        0,
        inverse_temperature=inverse_temperature,
        step_size=step_size,
        n_steps=n_steps,
        record_every=record_every,
        owner="location_descent",
    )


def location_mean_dynamics(
    law: SingleLocation,
    start: ArrayLike,
    *,
    inverse_temperature: Schedule,
    step_size: Schedule,
    batch_size: int,
    n_steps: int,
    record_every: int = 1,
) -> Trajectories:
    r"""Return the mean path of online SGD with its noise, in any dimension.

    A step of :func:`~eigenheads.dynamics.simulate_location` moves along the gradient
    of a batch of B prompts. Its mean is the gradient of the risk; its noise increases
    the lengths of k and v before the normalisation, which reduces their alignments:

    .. math::

        \kappa \leftarrow \frac{\kappa - \alpha\, k^* \cdot P_k \nabla_k R}
        {\sqrt{1 + \alpha^2\, \mathbb E \lVert P_k G_k \rVert^2}}, \qquad
        \mathbb E \lVert P_k G_k \rVert^2
        = \tfrac1B\, \mathbb E \lVert P_k g_k \rVert^2
        + \bigl(1 - \tfrac1B\bigr) \lVert P_k \nabla_k R \rVert^2

    with the gradient :math:`g_k` of one prompt, and likewise for the other order
    parameters. The second moments are one-dimensional integrals.

    Parameters
    ----------
    law
        Law of the prompts.
    start
        Order parameters of each run, (5,) or (n_runs, 5), as for
        :func:`location_descent`.
    inverse_temperature
        :math:`\lambda_t`, a number or a callable of the 0-based index of the update.
    step_size
        :math:`\alpha_t`, likewise.
    batch_size
        B, prompts per update.
    n_steps
        Number of updates.
    record_every
        Updates between two records.

    Returns
    -------
    trajectories
        ``kappa``, ``nu``, ``theta``, ``eta``, ``rho``; a record is the state after
        that many updates.

    See Also
    --------
    location_descent : the same without noise.
    location_band : the spread of runs around the mean path.

    Notes
    -----
    The path describes the mean of runs whose fluctuations are small. This does not hold
    at the beginning of runs from random starts: their overlaps of order
    :math:`1/\sqrt d` are smaller than the noise of a few hundred steps, so signs
    change, and the escape is a diffusion that no deterministic path describes. At the
    end the path is slightly below the mean of the runs, because it counts noise along
    :math:`k^*` as lost although :math:`\theta` relaxes.

    Examples
    --------
    >>> from eigenheads.datasets import SingleLocation
    >>> training = {"inverse_temperature": 2.0, "step_size": 1e-3, "n_steps": 4000,
    ...             "record_every": 4000}
    >>> law, start = SingleLocation(d=80, noise=0.1), [0.1, 0.1, 0, 0, 0]
    >>> path = location_mean_dynamics(law, start, batch_size=5, **training)
    >>> without = location_descent(law, start, **training)
    >>> path.final("nu").round(2), without.final("nu").round(2)
    (array([0.39]), array([1.]))
    """
    owner = "location_mean_dynamics"
    return _mean_path(
        law,
        start,
        check_count("batch_size", batch_size, owner=owner),
        inverse_temperature=inverse_temperature,
        step_size=step_size,
        n_steps=n_steps,
        record_every=record_every,
        owner=owner,
    )


def location_band(
    law: SingleLocation,
    kappa: ArrayLike,
    nu: ArrayLike,
    *,
    inverse_temperature: ArrayLike,
    step_size: float,
    batch_size: int,
) -> FloatArray:
    r"""Return the spread of runs around the invariant manifold, late in training.

    Near the manifold :math:`\theta, \eta, \rho` relax quickly while
    :math:`\kappa, \nu` change slowly. The three are then a stationary linear process,
    whose covariance solves the Lyapunov equation

    .. math::

        J \Sigma + \Sigma J^\top + D = 0, \qquad
        D = \frac{\alpha^2}{B} \operatorname{Cov}
        (k^* \cdot P_v g_v,\ v^* \cdot P_k g_k,\ v \cdot P_k g_k + k \cdot P_v g_v)

    with the Jacobian J of the mean step. D is estimated from prompts drawn with a
    fixed seed; its error is about one percent.

    Parameters
    ----------
    law
        Law of the prompts.
    kappa, nu
        Current alignments of key and value.
    inverse_temperature
        :math:`\lambda`.
    step_size
        :math:`\alpha`.
    batch_size
        B, prompts per update.

    Returns
    -------
    deviations
        Standard deviations of theta, eta, rho along the last axis. NaN where the
        manifold is unstable, because there is no stationary spread.

    Examples
    --------
    >>> from eigenheads.datasets import SingleLocation
    >>> law = SingleLocation(d=80, noise=0.1)
    >>> location_band(law, 0.9, 0.99, inverse_temperature=0.2, step_size=1e-3,
    ...               batch_size=5).shape
    (3,)
    """
    owner = "location_band"
    check_law(law, (SingleLocation,), owner=owner)
    named = {
        "kappa": check_inner_product("kappa", kappa, owner=owner),
        "nu": check_inner_product("nu", nu, owner=owner),
        "inverse_temperature": check_range(
            "inverse_temperature", inverse_temperature, 0.0, LARGEST, owner=owner
        ),
    }
    step = check_positive("step_size", step_size, owner=owner)
    batch = check_count("batch_size", batch_size, owner=owner)
    shape = check_broadcast(named, owner=owner)
    points = np.broadcast_arrays(*named.values())
    cases = zip(*(np.ravel(array) for array in points), strict=True)
    found = [
        _stationary_deviations(law, (float(k), float(v)), float(scale), step, batch)
        for k, v, scale in cases
    ]
    return np.array(found).reshape(*shape, 3)


def _mean_path(
    law: SingleLocation,
    start: ArrayLike,
    batch_size: int,
    *,
    inverse_temperature: Schedule,
    step_size: Schedule,
    n_steps: int,
    record_every: int,
    owner: str,
) -> Trajectories:
    """Run the mean dynamics; a batch size of 0 stands for no noise."""
    check_law(law, (SingleLocation,), owner=owner)
    schedules = {
        "inverse_temperature": check_schedule(
            "inverse_temperature", inverse_temperature, owner=owner
        ),
        "step_size": check_schedule("step_size", step_size, owner=owner),
    }
    states = check_order_parameters(start, d=law.d, owner=owner)
    counts = check_run_counts(
        n_steps,
        len(states),
        record_every,
        n_curves=len(ORDER_PARAMETERS),
        owner=owner,
        max_runs=MAX_RECORDED,
    )
    share = 1 / batch_size if batch_size else 0.0
    return run_blocks(
        location_mean_block,
        states,
        curves=ORDER_PARAMETERS,
        start=states,
        schedules=schedules,
        constants=(_constants(law), law.noise, share),
        n_steps=counts.n_steps,
        record_every=counts.record_every,
        nanoseconds=_NOISE_NANOSECONDS if batch_size else _DESCENT_NANOSECONDS,
        owner=owner,
    )


def _constants(law: SingleLocation) -> tuple[float, float, float]:
    return math.sqrt(law.d / 2), law.gamma**2, law.n_tokens - 1.0


def _stationary_deviations(
    law: SingleLocation,
    point: tuple[float, float],
    inverse_temperature: float,
    step_size: float,
    batch_size: int,
) -> FloatArray:
    centre = np.array([*point, 0.0, 0.0, 0.0])
    scales, steps = np.array([inverse_temperature]), np.array([step_size])
    unused = np.empty((2, 5))

    def moved(state: FloatArray) -> FloatArray:
        after = state.copy()
        block = (scales, steps, _constants(law), law.noise, 1 / batch_size)
        location_mean_block(after, *block, 0, 2, unused)
        return (after - state)[2:]

    shifts = _DIFFERENCE * np.eye(5)[2:]
    columns = [moved(centre + e) - moved(centre - e) for e in shifts]
    jacobian = np.transpose(columns) / (2 * _DIFFERENCE)
    if np.linalg.eigvals(jacobian).real.max() >= 0:
        return np.full(3, np.nan)
    noise = _gradient_covariance(law, point, inverse_temperature)
    diffusion = step_size**2 / batch_size * noise
    spread = np.diag(solve_continuous_lyapunov(jacobian, -diffusion))
    return np.sqrt(np.maximum(spread, 0.0))


def _gradient_covariance(
    law: SingleLocation, point: tuple[float, float], inverse_temperature: float
) -> FloatArray:
    """Estimate the covariance of what one prompt adds to theta, eta and rho.

    On the manifold k*, v* and the residuals of k and v are an orthonormal frame. The
    prompts are drawn in these four coordinates, which is exact: nothing else of them
    enters.
    """
    (kappa, nu), n_tokens = point, law.n_tokens
    n = max(2, min(_BAND_PROMPTS, _BAND_TOKENS // n_tokens))
    rng = np.random.default_rng(0)
    tokens = rng.standard_normal((n, n_tokens, 4))
    tokens[:, 0] *= law.gamma
    tokens[:, 0, 0] += math.sqrt(law.d / 2)
    k = np.array([kappa, 0.0, math.sqrt(max(0.0, 1 - kappa**2)), 0.0])
    v = np.array([0.0, nu, 0.0, math.sqrt(max(0.0, 1 - nu**2))])
    scores, values = inverse_temperature * (tokens @ k), tokens @ v
    attention = erf(scores)
    slopes = inverse_temperature * TWO_OVER_ROOT_PI * np.exp(-(scores**2))
    target = tokens[:, 0, 1] + law.noise * rng.standard_normal(n)
    error = 2 * (np.sum(attention * values, axis=1) - target)[:, None]
    for_k = error * np.einsum("nl,nlj->nj", slopes * values, tokens)
    for_v = error * np.einsum("nl,nlj->nj", attention, tokens)
    # Tangent parts: theta is v·k*, eta is k·v*, rho is k·v.
    tangent_k = for_k - np.outer(for_k @ k, k)
    tangent_v = for_v - np.outer(for_v @ v, v)
    moves = [tangent_v[:, 0], tangent_k[:, 1], tangent_k @ v + tangent_v @ k]
    return np.cov(moves)
