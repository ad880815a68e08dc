"""Training of single-location regression, simulated exactly in any dimension."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erf

from eigenheads._checks import Got, check_choice, check_count, fail
from eigenheads._compile import njit
from eigenheads._limits import MAX_DIMENSION, MAX_RUNS, MAX_WORK
from eigenheads._location_order import ORDER_PARAMETERS, check_order_parameters
from eigenheads._rng import gaussian_length, run_generators
from eigenheads._run_blocks import check_run_counts, check_schedule, run_blocks
from eigenheads._trajectories import Trajectories
from eigenheads._typing import FloatArray, Schedule
from eigenheads.datasets import SingleLocation
from eigenheads.models._engine import REORDER, sphere_step
from eigenheads.models._model import Model
from eigenheads.models._simulate import NO_EXTRAS, exact_kernel
from eigenheads.models._tokens import Token

# --- On real vectors -----------------------------------------------------------------


_ERF_SLOPE = 2.0 / math.sqrt(math.pi)


class LocationProblem(NamedTuple):
    """Constants of a run."""

    d: float
    n_tokens: int
    gamma: float
    noise: float
    batch_size: int


@njit(fastmath=REORDER)
def gradient_weights(
    on_key: Any,
    on_value: Any,
    target: float,
    inverse_temperature: float,
    share: float,
    key_weights: Any,
    value_weights: Any,
) -> None:
    r"""Write the weights of a prompt's tokens in the two gradients.

    The gradients of ``share`` times :math:`(T - y)^2`, with
    :math:`T = \sum_l \mathrm{erf}(\lambda X_l \cdot k)(X_l \cdot v)`, are sums
    :math:`\sum_l a_l X_l` (for k) and :math:`\sum_l c_l X_l` (for v):

    .. math::

        a_l = 2 (T - y) \lambda\, \mathrm{erf}'(\lambda X_l \cdot k)(X_l \cdot v),
        \qquad c_l = 2 (T - y)\, \mathrm{erf}(\lambda X_l \cdot k)
    """
    n_tokens = on_key.shape[0]
    error = -target
    for token in range(n_tokens):
        argument = inverse_temperature * on_key[token]
        attention = math.erf(argument)
        value_weights[token] = attention
        # The slope of erf up to a constant, which is part of for_key.
        key_weights[token] = math.exp(-argument * argument) * on_value[token]
        error += attention * on_value[token]
    for_value = 2.0 * share * error
    for_key = for_value * inverse_temperature * _ERF_SLOPE
    for token in range(n_tokens):
        value_weights[token] *= for_value
        key_weights[token] *= for_key


@njit()
def location_full_block(
    rng: np.random.Generator,
    state: Any,
    inverse_temperatures: Any,
    step_sizes: Any,
    problem: LocationProblem,
    first: int,
    record_every: int,
    records: Any,
) -> int:
    """Advance one run by a block of updates, drawing every coordinate.

    ``state`` (2, d) holds k and v; k* and v* are the first two basis vectors.

    Returns
    -------
    broken
        Index of the update that overflowed, or -1.
    """
    _, n_tokens, gamma, noise, batch_size = problem
    d = state.shape[1]
    shift, share = math.sqrt(0.5 * d), 1.0 / batch_size
    tokens, gradient = np.empty((n_tokens, d)), np.empty((2, d))
    scratch = np.empty((4, n_tokens))
    for index in range(len(step_sizes)):
        gradient[:] = 0.0
        for _ in range(batch_size):
            decides = rng.integers(0, n_tokens)
            for token in range(n_tokens):
                for axis in range(d):
                    tokens[token, axis] = rng.standard_normal()
            for axis in range(d):
                tokens[decides, axis] *= gamma
            tokens[decides, 0] += shift
            target = tokens[decides, 1] + noise * rng.standard_normal()
            add_location_gradient(
                tokens,
                target,
                state,
                inverse_temperatures[index],
                share,
                scratch,
                gradient,
            )
        finite = sphere_step(state[0], gradient[0], step_sizes[index])
        finite &= sphere_step(state[1], gradient[1], step_sizes[index])
        if not finite:
            return first + index
        record_state(state, first + index + 1, record_every, records)
    return -1


@njit(fastmath=REORDER)
def add_location_gradient(
    tokens: Any,
    target: float,
    state: Any,
    inverse_temperature: float,
    share: float,
    scratch: Any,
    gradient: Any,
) -> None:
    """Add the gradient of ``share`` times one prompt's squared error.

    ``tokens`` (n_tokens, d), ``state`` and ``gradient`` (2, d): k and v;
    ``scratch`` (4, n_tokens) is overwritten.
    """
    n_tokens, d = tokens.shape
    for token in range(n_tokens):
        on_key, on_value = 0.0, 0.0
        for axis in range(d):
            on_key += tokens[token, axis] * state[0, axis]
            on_value += tokens[token, axis] * state[1, axis]
        scratch[0, token] = on_key
        scratch[1, token] = on_value
    gradient_weights(
        scratch[0],
        scratch[1],
        target,
        inverse_temperature,
        share,
        scratch[2],
        scratch[3],
    )
    for token in range(n_tokens):
        for_key, for_value = scratch[2, token], scratch[3, token]
        for axis in range(d):
            gradient[0, axis] += for_key * tokens[token, axis]
            gradient[1, axis] += for_value * tokens[token, axis]


@njit()
def record_state(state: Any, step: int, record_every: int, records: Any) -> None:
    """Write kappa, nu, theta, eta, rho if this step is to be recorded."""
    if step % record_every != 0:
        return
    row = step // record_every
    rho = 0.0
    for axis in range(state.shape[1]):
        rho += state[0, axis] * state[1, axis]
    records[row, 0] = state[0, 0]
    records[row, 1] = state[1, 1]
    records[row, 2] = state[1, 0]
    records[row, 3] = state[0, 1]
    records[row, 4] = rho


# --- In any dimension ----------------------------------------------------------------


_METHODS = ["exact", "full"]
# Rows of k and v, 0 and 1, and the planted directions k* and v*, -1 and -2, behind the
# order parameters.
_PAIRS = np.array([[0, -1], [1, -2], [1, -1], [0, -2], [0, 1]])


def simulate_location(
    law: SingleLocation,
    *,
    inverse_temperature: Schedule,
    step_size: Schedule,
    batch_size: int,
    n_steps: int,
    n_runs: int = 1,
    record_every: int | None = None,
    seed: int = 0,
    method: str = "exact",
    start: ArrayLike | None = None,
) -> Trajectories:
    r"""Simulate online SGD of the erf-attention head on single-location regression.

    The head predicts
    :math:`T(X) = \sum_l \mathrm{erf}(\lambda X_l \cdot k)(X_l \cdot v)` with k and v
    on the unit sphere. Each update draws a new batch, computes the gradients
    :math:`g_k, g_v` of the mean of :math:`(T(X) - Y)^2` over it, and updates both:

    .. math::

        k \leftarrow \frac{k - \alpha (I - k k^\top) g_k}{\lVert\cdot\rVert}, \qquad
        v \leftarrow \frac{v - \alpha (I - v v^\top) g_v}{\lVert\cdot\rVert}

    Parameters
    ----------
    law
        Law of the prompts.
    inverse_temperature
        :math:`\lambda`, a number or a schedule: a callable of the 0-based index of
        the update.
    step_size
        :math:`\alpha`, a number or a schedule.
    batch_size
        Prompts per update.
    n_steps
        Updates per run.
    n_runs
        Number of independent runs.
    record_every
        Record the state after each multiple of this many updates; None: about a
        hundred records.
    seed
        Run r depends on ``(seed, r)`` only, not on the number of runs or threads.
    method
        ``"exact"`` simulates only the order parameters, exactly in distribution, at a
        cost that does not depend on d (d >= 5); ``"full"`` draws every coordinate.
    start
        Order parameters at which to start, (5,) or (n_runs, 5), as
        :func:`location_start` returns them. Default: k and v uniform on the sphere.

    Returns
    -------
    trajectories
        ``kappa`` :math:`= k \cdot k^*`, ``nu`` :math:`= v \cdot v^*`, ``theta``
        :math:`= v \cdot k^*`, ``eta`` :math:`= k \cdot v^*`, ``rho``
        :math:`= k \cdot v`, after ``.steps`` updates; record 0 is the start.

    Notes
    -----
    An exact update draws four normals per token: its coordinates along k*, v* and the
    residuals of k and v. The parts of the two gradients outside these four directions
    have a 2 × 2 Gram matrix with a Wishart distribution. The exact method is a declared
    model (:class:`eigenheads.models.Model`); the full one has a gradient written by
    hand. They have the same distribution; with the same seed they draw different
    numbers.

    References
    ----------
    .. [1] marion2025.

    Examples
    --------
    >>> from eigenheads.datasets import SingleLocation
    >>> paths = simulate_location(
    ...     SingleLocation(d=10**9), inverse_temperature=1e-3, step_size=1e-12,
    ...     batch_size=5, n_steps=100, n_runs=3, record_every=50, seed=0)
    >>> paths["kappa"].shape
    (3, 3)
    """
    if not isinstance(law, SingleLocation):
        hint = "Import it from eigenheads.datasets."
        fail("law", "a SingleLocation", law, hint=hint, error=TypeError)
    method = check_choice("method", method, _METHODS)
    _check_dimension(law, method)
    attention = check_schedule("inverse_temperature", inverse_temperature)
    steps = check_schedule("step_size", step_size)
    batch_size = _check_batch(batch_size, law, method)
    counts = check_run_counts(
        n_steps, n_runs, record_every, n_curves=len(ORDER_PARAMETERS)
    )
    _check_memory(counts.n_runs, law, method)
    generators = run_generators(seed, counts.n_runs)
    # Starts are drawn even if they are given, so that a given start changes no batch.
    starts = draw_starts(law.d, generators)
    if start is not None:
        starts = check_order_parameters(start, d=law.d, n_runs=counts.n_runs)
    kernel: Callable[..., int]
    if method == "exact":
        kernel = exact_kernel(
            location_model(law.n_tokens, law.gamma),
            d=law.d,
            batch_size=batch_size,
            parameters={"inverse_temperature": attention, "noise": law.noise},
            pairs=_PAIRS,
            least=0.0,
        )
        schedules = {"step_size": steps, **NO_EXTRAS}
        constants: tuple[LocationProblem, ...] = ()
    else:
        kernel = location_full_block
        schedules = {"inverse_temperature": attention, "step_size": steps}
        constants = (
            LocationProblem(
                float(law.d), law.n_tokens, law.gamma, law.noise, batch_size
            ),
        )
    return run_blocks(
        kernel,
        _initial_states(starts, law.d, method),
        curves=ORDER_PARAMETERS,
        start=starts,
        schedules=schedules,
        constants=constants,
        generators=generators,
        n_steps=counts.n_steps,
        record_every=counts.record_every,
        nanoseconds=_update_nanoseconds(law, batch_size, method),
    )


def _squared_error(X: Any, w: Any, u: Any, g: Any, p: Any) -> Any:
    """Return the loss of one prompt; the deciding token stands first."""
    prediction = np.sum(erf(p.inverse_temperature * (X @ w.k)) * (X @ w.v))
    return (prediction - X[0] @ u.value - p.noise * g[0]) ** 2


@lru_cache(maxsize=16)
def location_model(n_tokens: int, gamma: float) -> Model:
    """Return single-location regression as a declared model."""
    return Model(
        _squared_error,
        weights={"k": "sphere", "v": "sphere"},
        planted=("key", "value"),
        tokens=[Token(mean={"key": _amplitude}, scale=gamma), Token(n_tokens - 1)],
        normals=1,
    )


def _amplitude(d: int) -> float:
    return math.sqrt(d / 2)


def _initial_states(starts: FloatArray, d: int, method: str) -> list[FloatArray]:
    """Return k and v of each run in the coordinates that the method's kernel uses.

    In full, k and v lie in the first four basis vectors: the law is rotation
    invariant, so this is no restriction.
    """
    size = d if method == "full" else 6
    states = []
    for row in starts:
        state = np.zeros((2, size))
        used = min(4, size)
        state[:, :used] = frame_coordinates(row)[:, :used]
        state /= np.linalg.norm(state, axis=1, keepdims=True)
        states.append(state)
    return states


def _update_nanoseconds(law: SingleLocation, batch_size: int, method: str) -> float:
    """Estimate: 4 ns per normal, 20 ns per token for erf and exp."""
    normals = 4.0 if method == "exact" else law.d
    return law.n_tokens * batch_size * (4.0 * normals + 20.0)


def _check_dimension(law: SingleLocation, method: str) -> None:
    if method == "full":
        if law.d * law.n_tokens <= MAX_WORK:
            return
        contract = f"a law with d * n_tokens <= {MAX_WORK} for method='full'"
        got = Got(f"d={law.d}, n_tokens={law.n_tokens}")
        fail("law", contract, got, hint="Use method='exact'.")
    if law.d < 5:
        hint = "Use method='full'."
        contract = "a law with d >= 5 for method='exact'"
        fail("law", contract, Got(f"d={law.d}"), hint=hint)
    if law.d > MAX_DIMENSION:
        fail("law", f"a law with d <= {MAX_DIMENSION}", Got(f"d={law.d}"))


def _check_batch(batch_size: int, law: SingleLocation, method: str) -> int:
    if method == "full":  # works prompt by prompt
        return check_count("batch_size", batch_size, maximum=MAX_WORK)
    most = MAX_WORK // (8 * law.n_tokens)
    if most < 1:
        contract = f"a law with n_tokens <= {MAX_WORK // 8}"
        fail("law", contract, Got(f"n_tokens={law.n_tokens}"))
    return check_count("batch_size", batch_size, maximum=most)


def _check_memory(n_runs: int, law: SingleLocation, method: str) -> None:
    if method == "full" and law.d * n_runs > MAX_WORK:
        contract = f"so small that d * n_runs <= {MAX_WORK} for method='full'"
        fail("n_runs", contract, n_runs, hint="Use method='exact'.")


def location_start(
    d: int, *, n_runs: int, seed: int, on_manifold: bool = False
) -> FloatArray:
    r"""Draw initial order parameters of single-location regression.

    On the sphere, :math:`k` and :math:`v` are independent and uniform. On the
    invariant manifold they are uniform given :math:`k \perp v^*`,
    :math:`v \perp k^*` and :math:`v \perp k`. In both cases at most seven numbers are
    drawn in any dimension: Gaussian coordinates along the relevant directions, and one
    :math:`\chi` for the length of the remainder.

    Parameters
    ----------
    d
        Dimension; at least 2, on the manifold at least 3.
    n_runs
        Number of starts.
    seed
        Start r depends on ``(seed, r)`` only. On the sphere it is the start that
        :func:`simulate_location` uses for this seed.
    on_manifold
        Whether to start on the invariant manifold.

    Returns
    -------
    start
        Rows :math:`\kappa = k \cdot k^*`, :math:`\nu = v \cdot v^*`,
        :math:`\theta = v \cdot k^*`, :math:`\eta = k \cdot v^*`,
        :math:`\rho = k \cdot v`, shape (n_runs, 5).

    References
    ----------
    .. [1] marion2025.

    Examples
    --------
    >>> location_start(10**9, n_runs=2, seed=0, on_manifold=True).round(5)[:, 2:]
    array([[0., 0., 0.],
           [0., 0., 0.]])
    """
    if not isinstance(on_manifold, bool | np.bool_):
        fail("on_manifold", "True or False", on_manifold)
    least = 3 if on_manifold else 2
    d = check_count("d", d, minimum=least, maximum=MAX_DIMENSION)
    n_runs = check_count("n_runs", n_runs, maximum=MAX_RUNS)
    generators = run_generators(seed, n_runs)
    return draw_starts(d, generators, on_manifold=on_manifold)


def draw_starts(
    d: int, generators: Iterable[np.random.Generator], *, on_manifold: bool = False
) -> FloatArray:
    """Draw one start from each generator (see :func:`location_start`)."""
    draw = _on_manifold if on_manifold else _on_sphere
    return np.array([draw(float(d), rng) for rng in generators])


def _on_sphere(d: float, rng: np.random.Generator) -> list[float]:
    """Draw k and v along k*, v*, the residual of k, and the length of the rest."""
    k = np.array([*rng.standard_normal(2), gaussian_length(rng, d - 2), 0.0])
    along = rng.standard_normal() if d > 2 else 0.0
    v = np.array([*rng.standard_normal(2), along, gaussian_length(rng, d - 3)])
    k /= np.linalg.norm(k)
    v /= np.linalg.norm(v)
    return [float(number) for number in (k[0], v[1], v[0], k[1], k @ v)]


def _on_manifold(d: float, rng: np.random.Generator) -> list[float]:
    """Draw (κ, ν) given θ = η = ρ = 0.

    k is uniform on the sphere of v*'s complement, of dimension d - 1. Given k, v is
    uniform on the sphere of the complement of k* and k, of dimension d - 2, in which
    v* lies (it is orthogonal to both).
    """
    first, second = rng.standard_normal(2)
    kappa = first / math.hypot(first, gaussian_length(rng, d - 2))
    nu = second / math.hypot(second, gaussian_length(rng, d - 3))
    return [float(kappa), float(nu), 0.0, 0.0, 0.0]


def frame_coordinates(row: FloatArray) -> FloatArray:
    """Return k and v (2, 4) along k*, v*, the residual of k, the residual of v."""
    kappa, nu, theta, eta, rho = row
    k_left = math.sqrt(max(0.0, 1 - kappa**2 - eta**2))
    v_left = max(0.0, 1 - theta**2 - nu**2)
    cross = (rho - kappa * theta - eta * nu) / k_left if k_left > 0 else 0.0
    cross = math.copysign(min(abs(cross), math.sqrt(v_left)), cross)
    outside = math.sqrt(max(0.0, v_left - cross**2))
    vectors = np.array([[kappa, eta, k_left, 0.0], [theta, nu, cross, outside]])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
