"""Training of a query among nuisance tokens, simulated exactly in any dimension."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from eigenheads._checks import Got, check_choice, check_count, check_finite_array, fail
from eigenheads._compile import njit
from eigenheads._limits import MAX_DIMENSION, MAX_WORK, check_run_memory
from eigenheads._rng import gaussian_length, run_generators
from eigenheads._run_blocks import check_run_counts, check_schedule, run_blocks
from eigenheads._trajectories import Trajectories
from eigenheads._typing import FloatArray, Schedule
from eigenheads.datasets import SignalTokens
from eigenheads.models._emit import fast_softmax
from eigenheads.models._engine import REORDER, sphere_step
from eigenheads.models._model import Model
from eigenheads.models._program import softmax
from eigenheads.models._simulate import NO_EXTRAS, exact_kernel
from eigenheads.models._tokens import Token, signs

# --- On real vectors -----------------------------------------------------------------


# The average's weights grow like t³ (see simulate_signal).
_AVERAGE_POWER = 3.0


def average_rate(index: int) -> float:
    """Return how far update `index` moves the average towards the query."""
    return (_AVERAGE_POWER + 1.0) / (_AVERAGE_POWER + index + 1.0)


class SignalProblem(NamedTuple):
    """Constants of a run."""

    d: float
    n_informative: int
    n_nuisance: int
    amplitude: float
    random_signs: bool
    inverse_temperature: float
    batch_size: int


@njit()
def draw_shifts(rng: np.random.Generator, problem: SignalProblem, out: Any) -> None:
    """Write what each informative token is shifted by along u."""
    for token in range(problem.n_informative):
        out[token] = problem.amplitude
        if problem.random_signs and rng.random() < 0.5:
            out[token] = -problem.amplitude


@njit(fastmath=REORDER)
def ascent_weights(weights: Any, meetings: Any, scale: float, out: Any) -> None:
    r"""Write the tokens' weights :math:`c_i` in the ascent direction of one prompt.

    .. math::

        c_i = \text{scale} \cdot p_i (x_i \cdot o - \lVert o \rVert^2), \qquad
        \lVert o \rVert^2 = \textstyle\sum_i p_i\, x_i \cdot o
    """
    n = weights.shape[0]
    squared_norm = 0.0
    for token in range(n):
        squared_norm += weights[token] * meetings[token]
    for token in range(n):
        out[token] = scale * weights[token] * (meetings[token] - squared_norm)


@njit()
def signal_full_block(
    rng: np.random.Generator,
    state: Any,
    step_sizes: Any,
    problem: SignalProblem,
    first: int,
    record_every: int,
    records: Any,
) -> int:
    """Advance one run by a block of updates, drawing every coordinate.

    ``state`` (1 or 2, d) holds q and, if asked for, the average; u is the first basis
    vector.

    Returns
    -------
    broken
        Index of the update that overflowed, or -1.
    """
    _, n_informative, n_nuisance, _, _, _, batch_size = problem
    n, d = n_informative + n_nuisance, state.shape[1]
    tokens, gradient = np.empty((n, d)), np.empty(d)
    shifts, scratch = np.empty(n_informative), np.empty((3, n))
    output = np.empty(d)
    scale = 2.0 * problem.inverse_temperature / batch_size
    for index in range(len(step_sizes)):
        gradient[:] = 0.0
        for _ in range(batch_size):
            draw_shifts(rng, problem, shifts)
            for token in range(n):
                for axis in range(d):
                    tokens[token, axis] = rng.standard_normal()
            for token in range(n_informative):
                tokens[token, 0] += shifts[token]
            add_signal_gradient(
                tokens,
                state[0],
                problem.inverse_temperature,
                scale,
                scratch,
                output,
                gradient,
            )
        if not sphere_step(state[0], gradient, -step_sizes[index]):
            return first + index
        _average(state, first + index + 1)
        _record(state, first + index + 1, record_every, records)
    return -1


@njit(fastmath=REORDER)
def add_signal_gradient(
    tokens: Any,
    query: Any,
    inverse_temperature: float,
    scale: float,
    scratch: Any,
    output: Any,
    gradient: Any,
) -> None:
    r"""Add scale :math:`\sum_i p_i (x_i \cdot o - \lVert o \rVert^2) x_i`.

    ``tokens`` (n, d); ``scratch`` (3, n) and ``output`` (d,) are overwritten.
    """
    n, d = tokens.shape
    for token in range(n):
        product = 0.0
        for axis in range(d):
            product += tokens[token, axis] * query[axis]
        scratch[0, token] = inverse_temperature * product
    fast_softmax(scratch[0], scratch[1], scratch[2])
    output[:] = 0.0
    for token in range(n):
        weight = scratch[1, token]
        for axis in range(d):
            output[axis] += weight * tokens[token, axis]
    for token in range(n):
        product = 0.0
        for axis in range(d):
            product += tokens[token, axis] * output[axis]
        scratch[0, token] = product
    ascent_weights(scratch[1], scratch[0], scale, scratch[2])
    for token in range(n):
        weight = scratch[2, token]
        for axis in range(d):
            gradient[axis] += weight * tokens[token, axis]


@njit()
def _average(state: Any, step: int) -> None:
    """Move the average, if there is one, towards the new query."""
    if state.shape[0] < 2:
        return
    share = (_AVERAGE_POWER + 1.0) / (_AVERAGE_POWER + step)
    for axis in range(state.shape[1]):
        state[1, axis] += share * (state[0, axis] - state[1, axis])


@njit()
def _record(state: Any, step: int, record_every: int, records: Any) -> None:
    """Write the alignments of the query and the average, if this step is recorded."""
    if step % record_every != 0:
        return
    row = step // record_every
    records[row, 0] = state[0, 0]
    if state.shape[0] > 1:
        squared = 0.0
        for axis in range(state.shape[1]):
            squared += state[1, axis] ** 2
        records[row, 1] = state[1, 0] / math.sqrt(squared) if squared > 0.0 else 0.0


# --- In any dimension ----------------------------------------------------------------


_METHODS = ["exact", "full"]
# Rows of q and its average, 0 and 1, and the planted direction u, -1.
_PAIRS = np.array([[0, -1], [1, -1], [1, 1]])
# Slack for rounded input.
_ROUNDING = 1e-9


def simulate_signal(
    law: SignalTokens,
    *,
    step_size: Schedule,
    n_steps: int,
    n_runs: int = 1,
    record_every: int | None = None,
    seed: int = 0,
    batch_size: int = 1,
    averaging: bool = False,
    method: str = "exact",
    start: ArrayLike | None = None,
) -> Trajectories:
    r"""Simulate a query on the sphere that maximises the norm of its attention output.

    Each update draws a new batch of prompts, computes the mean :math:`g` of the
    gradients of :math:`\lVert o \rVert^2`, and moves the query:

    .. math::

        o = \sum_i p_i x_i, \quad p = \operatorname{softmax}(\beta X q), \qquad
        g = 2 \beta \sum_i p_i (x_i \cdot o - \lVert o \rVert^2)\, x_i, \qquad
        q \leftarrow \frac{q + a_t (I - q q^\top) g}{\lVert\cdot\rVert}

    Parameters
    ----------
    law
        Law of the prompts; its ``inverse_temperature`` is :math:`\beta`.
    step_size
        :math:`a_t`, a number or a schedule: a callable of the 0-based index of the
        update.
    n_steps
        Updates per run.
    n_runs
        Number of independent runs.
    record_every
        Record the state after each multiple of this many updates; None: about a
        hundred records.
    seed
        Run r depends on ``(seed, r)`` only, not on the number of runs or threads.
    batch_size
        Prompts per update.
    averaging
        Whether to compute the average of the iterates as well (Polyak–Ruppert).
    method
        ``"exact"`` simulates only the alignment, exactly in distribution, at a cost
        that does not depend on d (d >= 3); ``"full"`` draws every coordinate.
    start
        Alignments :math:`q \cdot u` at which to start, one number or (n_runs,).
        Default: q uniform on the sphere.

    Returns
    -------
    trajectories
        ``alignment`` :math:`= q \cdot u` with its sign, after ``.steps`` updates;
        record 0 is the start. With ``averaging`` also ``averaged_alignment``, the
        alignment :math:`\bar q \cdot u / \lVert \bar q \rVert` of the average
        :math:`\bar q`.

    Notes
    -----
    An exact update draws three normals per token: its coordinates along u, along the
    residual of q, and along the part of o outside both.

    The average gives the iterate after t updates a weight that grows like
    :math:`t^3`: :math:`\bar q_t = \bar q_{t-1} + \frac{4}{t+3}(q_t - \bar q_{t-1})`.
    With equal weights, the iterates before the escape from a random start would keep a
    large share of the average; here their share is :math:`(\text{escape} / t)^4`.

    References
    ----------
    .. [1] truong2026.
    .. [2] O. Shamir and T. Zhang (2013). Stochastic gradient descent for non-smooth
       optimization: convergence results and optimal averaging schemes.

    Examples
    --------
    >>> from eigenheads.datasets import SignalTokens
    >>> law = SignalTokens(d=10**9, n_informative=20, n_nuisance=180, strength=3e-4,
    ...                    inverse_temperature=0.5)
    >>> paths = simulate_signal(law, step_size=1e-9, n_steps=100, n_runs=3,
    ...                         record_every=50, seed=0)
    >>> paths["alignment"].shape
    (3, 3)
    """
    if not isinstance(law, SignalTokens):
        hint = "Import it from eigenheads.datasets."
        fail("law", "a SignalTokens", law, hint=hint, error=TypeError)
    method = check_choice("method", method, _METHODS)
    _check_law(law, method)
    schedule = check_schedule("step_size", step_size)
    batch_size = check_count("batch_size", batch_size)
    if not isinstance(averaging, bool | np.bool_):
        fail("averaging", "True or False", averaging)
    names = ("alignment", "averaged_alignment") if averaging else ("alignment",)
    counts = check_run_counts(n_steps, n_runs, record_every, n_curves=len(names))
    check_run_memory(
        counts.n_runs,
        len(names) * (law.d if method == "full" else len(names) + 2),
        hint="Use method='exact'." if method == "full" else "",
    )
    generators = run_generators(seed, counts.n_runs)
    # Starts are drawn even if they are given, so that a given start changes no batch.
    starts = _draw_starts(law.d, generators)
    if start is not None:
        starts = _check_start(start, counts.n_runs)
    kernel: Callable[..., int]
    if method == "exact":
        kernel = exact_kernel(
            signal_model(
                law.n_informative, law.n_nuisance, law.amplitude, law.signs == "random"
            ),
            d=law.d,
            batch_size=batch_size,
            parameters={"inverse_temperature": law.inverse_temperature},
            pairs=_PAIRS[: 3 if averaging else 1],
            flags=(True, False, bool(averaging)),
        )
        schedules = {"step_size": schedule, **NO_EXTRAS}
        if averaging:
            schedules["average"] = average_rate
        constants: tuple[SignalProblem, ...] = ()
        curves = ("alignment", "along", "squared")[: 3 if averaging else 1]
    else:
        kernel, schedules, curves = signal_full_block, {"step_size": schedule}, names
        problem = SignalProblem(
            float(law.d),
            law.n_informative,
            law.n_nuisance,
            law.amplitude,
            law.signs == "random",
            law.inverse_temperature,
            batch_size,
        )
        constants = (problem,)
    states = _initial_states(starts, len(names), law.d, method)
    paths = run_blocks(
        kernel,
        states,
        curves=curves,
        start=np.array([_first_record(state, len(curves)) for state in states]),
        schedules=schedules,
        constants=constants,
        generators=generators,
        n_steps=counts.n_steps,
        record_every=counts.record_every,
        nanoseconds=_update_nanoseconds(law, batch_size, method),
    )
    if "squared" not in curves:
        return paths
    # The average of unit vectors is 0 only by accident: then its direction is none.
    lengths = np.sqrt(paths["squared"])
    averaged = np.divide(
        paths["along"], lengths, out=np.zeros_like(lengths), where=lengths > 0
    )
    table = {"alignment": paths["alignment"], "averaged_alignment": averaged}
    return Trajectories(paths.steps, table)


def _negative_energy(X: Any, w: Any, u: Any, g: Any, p: Any) -> Any:
    """Return minus the squared norm of the attention output: descent climbs it."""
    output = softmax(p.inverse_temperature * (X @ w.q)) @ X
    return -(output @ output)


@lru_cache(maxsize=16)
def signal_model(
    n_informative: int, n_nuisance: int, amplitude: float, random_signs: bool
) -> Model:
    """Return signal recovery as a declared model."""
    shift = signs(amplitude) if random_signs else amplitude
    return Model(
        _negative_energy,
        weights={"q": "sphere"},
        planted=("u",),
        tokens=[Token(n_informative, mean={"u": shift}), Token(n_nuisance)],
    )


def _first_record(state: FloatArray, n_curves: int) -> list[float]:
    """Return the alignments of the start and its average, and the squared length."""
    return [float(state[0, 0]), float(state[-1, 0]), 1.0][:n_curves]


def _draw_starts(d: int, generators: Iterable[np.random.Generator]) -> FloatArray:
    """Draw q·u of a uniform q from each generator: a normal, and the others' length."""
    starts = []
    for rng in generators:
        along = rng.standard_normal()
        starts.append(along / math.hypot(along, gaussian_length(rng, d - 1)))
    return np.array(starts)


def _initial_states(
    starts: FloatArray, n_rows: int, d: int, method: str
) -> list[FloatArray]:
    """Return q, and the average that starts there, in the kernel's coordinates.

    In full, q lies in the first two basis vectors: the law is rotation invariant, so
    this is no restriction.
    """
    size = d if method == "full" else n_rows + 2
    states = []
    for alignment in starts:
        state = np.zeros((n_rows, size))
        state[:, 0] = alignment
        state[:, 1] = math.sqrt((1 - alignment) * (1 + alignment))
        states.append(state)
    return states


def _update_nanoseconds(law: SignalTokens, batch_size: int, method: str) -> float:
    """Estimate: 4 ns per normal, 10 ns per token for exp and the sums."""
    normals = 3.0 if method == "exact" else law.d
    return law.n_tokens * batch_size * (4.0 * normals + 10.0)


def _check_law(law: SignalTokens, method: str) -> None:
    if method == "exact":
        contract, got = "a law with d >= 3 for method='exact'", Got(f"d={law.d}")
        if law.d < 3:
            fail("law", contract, got, hint="Use method='full'.")
        if law.d > MAX_DIMENSION:
            fail("law", f"a law with d <= {MAX_DIMENSION}", got)
    width = 8 if method == "exact" else law.d
    if width * law.n_tokens > MAX_WORK:
        hint = "" if method == "exact" else "Use method='exact'."
        contract = f"a law with at most {MAX_WORK // width} tokens at this d"
        got = Got(f"d={law.d}, {law.n_tokens} tokens")
        fail("law", contract, got, hint=hint)


def _check_start(start: object, n_runs: int) -> FloatArray:
    """Return alignments (n_runs,), or raise."""
    array = check_finite_array("start", start)
    if array.shape not in {(), (n_runs,)}:
        fail("start", f"one number or of shape ({n_runs},)", array)
    if np.any(np.abs(array) > 1 + _ROUNDING):
        worst = float(array.flat[np.argmax(np.abs(array))])
        fail("start", "alignments from -1 to 1", worst)
    return np.array(np.broadcast_to(np.clip(array, -1.0, 1.0), (n_runs,)))
