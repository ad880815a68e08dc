r"""Single-location regression: descent, mean dynamics of SGD, and its noise.

One prompt has the error :math:`E = T(X) - Y = \sum_l W_l - \varepsilon\xi`, where
:math:`W_l = A_l b_l` (minus the target for the deciding token) with
:math:`A = \operatorname{erf}(\lambda X \cdot k)` and :math:`b = X \cdot v`. Its
gradients are :math:`g_k = 2E \sum_l A'_l b_l X_l` and :math:`g_v = 2E \sum_l A_l X_l`,
:math:`A' = \lambda \operatorname{erf}'(\lambda X \cdot k)`. Tokens are independent, so
the second moments need moments of one token at a time; given the coordinate g of a
token along k, everything else is Gaussian, and one integral over g is left.

Numba compiles the functions below when a kernel calls them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import solve_continuous_lyapunov
from scipy.special import erf

from eigenheads._checks import check_count, check_positive
from eigenheads._compile import njit
from eigenheads._limits import LARGEST, MAX_RECORDED
from eigenheads._location_order import ORDER_PARAMETERS, check_order_parameters
from eigenheads._rng import generator
from eigenheads._run_blocks import check_run_counts, check_schedule, run_blocks
from eigenheads._trajectories import Trajectories
from eigenheads._typing import FloatArray, Schedule
from eigenheads.datasets import SingleLocation
from eigenheads.theory._location_landscape import (
    TWO_OVER_ROOT_PI,
    erf_factors,
    owen_gap,
    projected_step,
    risk_slopes,
)
from eigenheads.theory._ranges import (
    check_broadcast,
    check_inner_product,
    check_law,
    check_range,
)

# --- Noise of one update -------------------------------------------------------------


# The integrals over g use the trapezoidal rule, which is exponentially accurate for
# smooth functions times a Gaussian. Gauss-Hermite rules are not: erf is too steep.
_REACH, _FEWEST_NODES, _MOST_NODES = 8.0, 61, 4001
_KK, _VV, _KV = 0, 1, 2


@njit()
def normal_rule(steepness: float) -> tuple[FloatArray, FloatArray]:
    """Return nodes and weights for means over a standard normal.

    `steepness` is the largest inverse temperature times the scale of a token; 61 nodes
    have an error of 3e-5 at 2 and less below.
    """
    count = _FEWEST_NODES
    if steepness > 2.0:
        count = int(min(_FEWEST_NODES * steepness / 2.0, float(_MOST_NODES)))
    nodes = np.linspace(-_REACH, _REACH, count)
    weights = np.exp(-0.5 * nodes * nodes)
    return nodes, weights / weights.sum()


@njit()
def _token_moments(
    means: tuple[float, float],
    scale: float,
    inverse_temperature: float,
    products: tuple[float, float, float],
    decides: bool,
    rule: tuple[FloatArray, FloatArray],
    out: Any,
) -> None:
    r"""Write :math:`\mathbb E[\varphi W^n]` of one token, n = 0, 1, 2, into `out`.

    The rows are :math:`\varphi = A'^2 b^2, A^2, A A' b, 1`. `means` are those of
    X·k and X·v; `products` are (nu, eta, rho).
    """
    nu, eta, rho = products
    out[:] = 0.0
    variance = scale * scale
    # Given g: the variance of b, and the covariance of b with the target.
    spread = variance * (1.0 - rho * rho)
    with_target = variance * (nu - rho * eta) if decides else 0.0
    nodes, weights = rule
    for i in range(len(nodes)):
        g, weight = nodes[i], weights[i]
        x = inverse_temperature * (means[0] + scale * g)
        a = math.erf(x)
        slope = inverse_temperature * TWO_OVER_ROOT_PI * math.exp(-x * x)
        b = means[1] + scale * rho * g
        w = a * b
        w_spread = a * a * spread
        if decides:
            w -= scale * eta * g
            w_spread += variance * (1.0 - eta * eta) - 2.0 * a * with_target
        cross = a * spread - with_target
        # Given g, the pair (b, w) is Gaussian: these are its moments up to order four.
        w2, b2 = w * w + w_spread, b * b + spread
        out[_KK, 0] += weight * slope * slope * b2
        out[_KK, 1] += weight * slope * slope * (w * b2 + 2.0 * b * cross)
        fourth = b2 * w2 + 4.0 * b * w * cross + 2.0 * cross * cross
        out[_KK, 2] += weight * slope * slope * fourth
        out[_VV, 0] += weight * a * a
        out[_VV, 1] += weight * a * a * w
        out[_VV, 2] += weight * a * a * w2
        out[_KV, 0] += weight * a * slope * b
        out[_KV, 1] += weight * a * slope * (b * w + cross)
        out[_KV, 2] += weight * a * slope * (b * w2 + 2.0 * w * cross)
        out[3, 0] += weight
        out[3, 1] += weight * w
        out[3, 2] += weight * w2


@njit()
def gradient_noise(
    order: tuple[float, float, float, float, float],
    law: tuple[float, float, float],
    target_noise: float,
    inverse_temperature: float,
    rule: tuple[FloatArray, FloatArray],
    scratch: Any,
) -> tuple[float, float, float]:
    r"""Return the mean squared tangent gradients of one prompt, and their product.

    .. math::

        \mathbb E \lVert P_k g_k \rVert^2, \qquad \mathbb E \lVert P_v g_v \rVert^2,
        \qquad \mathbb E\, P_k g_k \cdot P_v g_v, \qquad P_k = I - kk^\top

    up to terms of relative order 1/d. `law` is (m, gamma², L - 1); `scratch` (2, 4, 3)
    is overwritten.
    """
    kappa, nu, theta, eta, rho = order
    m, variance, n = law
    d = 2.0 * m * m
    first, second = scratch[0], scratch[1]
    _token_moments(
        (m * kappa, m * theta),
        math.sqrt(variance),
        inverse_temperature,
        (nu, eta, rho),
        True,
        rule,
        first,
    )
    _token_moments(
        (0.0, 0.0), 1.0, inverse_temperature, (0.0, 0.0, rho), False, rule, second
    )
    # Moments of the rest of the error, without the deciding token or without another.
    mean_0, square_0 = first[3, 1], first[3, 2]
    mean_1, square_1 = second[3, 1], second[3, 2]
    noise = target_noise * target_noise
    # Different tokens are independent, so their products have squared means.
    rest_0 = n * square_1 + n * (n - 1.0) * mean_1 * mean_1 + noise
    mean_rest = mean_0 + (n - 1.0) * mean_1
    rest_1 = square_0 + 2.0 * mean_0 * (n - 1.0) * mean_1 + (n - 1.0) * square_1
    rest_1 += (n - 1.0) * (n - 2.0) * mean_1 * mean_1 + noise
    isotropic, planted = np.empty(3), np.empty(3)
    for row in range(3):
        of_first = (
            first[row, 2] + 2.0 * first[row, 1] * n * mean_1 + first[row, 0] * rest_0
        )
        of_second = (
            second[row, 2] + 2.0 * second[row, 1] * mean_rest + second[row, 0] * rest_1
        )
        # The noise of the tokens points everywhere, the mean of the deciding token
        # along k* alone.
        isotropic[row] = 4.0 * (variance * of_first + n * of_second)
        planted[row] = 4.0 * of_first
    along_both = 1.0 - kappa * kappa - theta * theta + kappa * theta * rho
    half = 0.5 * d
    return (
        (d - 1.0) * isotropic[_KK] + half * planted[_KK] * (1.0 - kappa * kappa),
        (d - 1.0) * isotropic[_VV] + half * planted[_VV] * (1.0 - theta * theta),
        (d - 2.0 + rho * rho) * isotropic[_KV] + half * planted[_KV] * along_both,
    )


@njit()
def location_mean_block(
    order: FloatArray,
    inverse_temperatures: FloatArray,
    step_sizes: FloatArray,
    law: tuple[float, float, float],
    target_noise: float,
    share: float,
    first: int,
    record_every: int,
    records: FloatArray,
) -> int:
    """Advance one run by a block of mean updates; a kernel of `run_blocks`.

    `order` (5,) is the state, `law` is (m, gamma², L - 1), `share` is 1/B, or 0 for
    descent on the risk, which needs no moments of the noise.
    """
    m, variance, _ = law
    gamma = math.sqrt(variance)
    rule = normal_rule(np.max(inverse_temperatures) * max(gamma, 1.0))
    scratch = np.empty((2, 4, 3))
    noise = (0.0, 0.0, 0.0)
    state = (order[0], order[1], order[2], order[3], order[4])
    previous = -1.0
    for i in range(len(step_sizes)):
        # Constant schedules are common: do not compute the factors again.
        if inverse_temperatures[i] != previous:
            previous = inverse_temperatures[i]
            w, r, length = erf_factors(previous, gamma)
            w_0, r_0, _ = erf_factors(previous, 1.0)
        h = w * m * state[0]
        slopes = risk_slopes(
            state,
            law,
            (w, r, w_0, r_0),
            math.erf(h),
            math.erf(h * r),
            owen_gap(h, r, length),
        )
        if share > 0.0:
            noise = gradient_noise(state, law, target_noise, previous, rule, scratch)
        state = projected_step(state, slopes, step_sizes[i], share, noise)
        # The sum is not finite if one of the five numbers is not.
        if not math.isfinite(state[0] + state[1] + state[2] + state[3] + state[4]):
            return first + i
        n_updates = first + i + 1
        if n_updates % record_every == 0:
            for j in range(5):
                records[n_updates // record_every, j] = state[j]
    for j in range(5):
        order[j] = state[j]
    return -1


# --- Descent and mean dynamics -------------------------------------------------------


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

    A step of :func:`~eigenheads.models.simulate_location` moves along the gradient
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
    return _mean_path(
        law,
        start,
        check_count("batch_size", batch_size),
        inverse_temperature=inverse_temperature,
        step_size=step_size,
        n_steps=n_steps,
        record_every=record_every,
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
    check_law(law, (SingleLocation,))
    named = {
        "kappa": check_inner_product("kappa", kappa),
        "nu": check_inner_product("nu", nu),
        "inverse_temperature": check_range(
            "inverse_temperature", inverse_temperature, 0.0, LARGEST
        ),
    }
    step = check_positive("step_size", step_size)
    batch = check_count("batch_size", batch_size)
    shape = check_broadcast(named)
    points = np.broadcast_arrays(*named.values())
    cases = zip(*(np.ravel(array) for array in points), strict=True)
    bands = [
        _stationary_deviations(law, (float(k), float(v)), float(scale), step, batch)
        for k, v, scale in cases
    ]
    return np.array(bands).reshape(*shape, 3)


def _mean_path(
    law: SingleLocation,
    start: ArrayLike,
    batch_size: int,
    *,
    inverse_temperature: Schedule,
    step_size: Schedule,
    n_steps: int,
    record_every: int,
) -> Trajectories:
    """Run the mean dynamics; a batch size of 0 stands for no noise."""
    check_law(law, (SingleLocation,))
    schedules = {
        "inverse_temperature": check_schedule(
            "inverse_temperature", inverse_temperature
        ),
        "step_size": check_schedule("step_size", step_size),
    }
    states = check_order_parameters(start, d=law.d)
    counts = check_run_counts(
        n_steps,
        len(states),
        record_every,
        n_curves=len(ORDER_PARAMETERS),
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
    rng = generator(0)
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
