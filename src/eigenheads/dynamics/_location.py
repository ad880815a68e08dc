"""Online SGD of single-location regression, in any dimension."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from eigenheads._checks import Got, check_choice, check_count, fail
from eigenheads._limits import LARGEST, MAX_WORK
from eigenheads._location_order import ORDER_PARAMETERS, check_order_parameters
from eigenheads._parallel import RunPool, advance, blocks
from eigenheads._rng import run_generators
from eigenheads._schedules import check_schedule, schedule_values
from eigenheads._trajectories import (
    Trajectories,
    check_n_steps,
    check_record_every,
    record_steps,
)
from eigenheads._typing import FloatArray, Schedule
from eigenheads.datasets import SingleLocation
from eigenheads.dynamics._location_kernels import Problem, exact_block, full_block
from eigenheads.dynamics._location_start import (
    MAX_DIMENSION,
    MAX_RUNS,
    draw_starts,
    frame_coordinates,
)
from eigenheads.dynamics._runs import advance_runs

_OWNER = "simulate_location"
_KERNELS: dict[str, Callable[..., int]] = {"exact": exact_block, "full": full_block}
# A block lasts about 20 ms a run: a normal takes about 4 ns, erf and exp 20 ns a token.
_BLOCK_NANOSECONDS = 20e6


def simulate_location(
    law: SingleLocation,
    *,
    inverse_temperature: Schedule,
    step_size: Schedule,
    batch_size: int,
    n_steps: int,
    n_runs: int,
    record_every: int,
    seed: int,
    method: str = "exact",
    start: ArrayLike | None = None,
) -> Trajectories:
    r"""Simulate online SGD of the erf-attention head on single-location regression.

    The head predicts
    :math:`T(X) = \sum_l \mathrm{erf}(\lambda X_l \cdot k)(X_l \cdot v)` with k and v
    on the unit sphere. Each update draws a fresh batch, takes the gradients
    :math:`g_k, g_v` of the mean of :math:`(T(X) - Y)^2` over it, and moves both at
    once:

    .. math::

        k \leftarrow \frac{k - \alpha (I - k k^\top) g_k}{\lVert\cdot\rVert}, \qquad
        v \leftarrow \frac{v - \alpha (I - v v^\top) g_v}{\lVert\cdot\rVert}

    Parameters
    ----------
    law
        What the prompts are drawn from.
    inverse_temperature
        :math:`\lambda`, a number or a schedule: a callable of the 0-based index of
        the update.
    step_size
        :math:`\alpha`, a number or a schedule.
    batch_size
        Prompts an update.
    n_steps
        Updates a run.
    n_runs
        Number of independent runs.
    record_every
        Record the state after each multiple of this many updates.
    seed
        Run r depends on ``(seed, r)`` alone: not on how many runs stand beside it,
        nor on the number of threads.
    method
        ``"exact"`` simulates the order parameters alone, exactly in law, at a cost
        that does not depend on d (d >= 5); ``"full"`` draws every coordinate.
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
    An exact update draws four normals a token: its coordinates along k*, v* and the
    residuals of k and v. The parts of the two gradients outside these four directions
    have a 2 × 2 Gram matrix with a Wishart law (:func:`combine`). The two methods
    agree in law; for one seed they draw different numbers.

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
        fail("law", "a SingleLocation", law, owner=_OWNER, hint=hint, error=TypeError)
    method = check_choice("method", method, list(_KERNELS), owner=_OWNER)
    _check_dimension(law, method)
    inverse_temperature = check_schedule(
        "inverse_temperature", inverse_temperature, owner=_OWNER
    )
    step_size = check_schedule("step_size", step_size, owner=_OWNER)
    batch_size = _check_batch(batch_size, law, method)
    n_steps = check_n_steps(n_steps, owner=_OWNER)
    n_runs = _check_n_runs(n_runs, law, method)
    record_every = check_record_every(
        record_every,
        n_steps=n_steps,
        n_runs=n_runs,
        n_curves=len(ORDER_PARAMETERS),
        owner=_OWNER,
    )
    generators = run_generators(seed, n_runs, owner=_OWNER)
    # Drawn also when a start is given: then the batches do not depend on whether.
    starts = draw_starts(law.d, generators)
    if start is not None:
        starts = check_order_parameters(start, d=law.d, owner=_OWNER, n_runs=n_runs)
    states = _initial_states(starts, law.d, method)
    steps = record_steps(n_steps, record_every)
    records = np.empty((n_runs, len(steps), 5))
    records[:, 0] = starts

    problem = Problem(float(law.d), law.n_tokens, law.gamma, law.noise, batch_size)
    with RunPool(n_runs) as pool:
        for first, stop in blocks(n_steps, size=_block_size(problem, method)):
            temperatures = schedule_values(
                "inverse_temperature",
                inverse_temperature,
                first,
                stop,
                owner=_OWNER,
                maximum=LARGEST,
            )
            step_sizes = schedule_values(
                "step_size", step_size, first, stop, owner=_OWNER
            )
            block = (temperatures, step_sizes, problem, first, record_every)
            broken = advance_runs(
                pool, _KERNELS[method], generators, states, records, block
            )
            _check_finite(broken, step_sizes, first)
            advance((stop - first) * n_runs)
    curves = np.ascontiguousarray(np.moveaxis(records, 2, 0))
    return Trajectories(steps, dict(zip(ORDER_PARAMETERS, curves, strict=True)))


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


def _block_size(problem: Problem, method: str) -> int:
    normals = 4.0 if method == "exact" else problem.d
    tokens = problem.n_tokens * problem.batch_size
    return max(1, int(_BLOCK_NANOSECONDS / (tokens * (4.0 * normals + 20.0))))


def _check_dimension(law: SingleLocation, method: str) -> None:
    if method == "full":
        if law.d * law.n_tokens <= MAX_WORK:
            return
        contract = f"a law with d * n_tokens <= {MAX_WORK} for method='full'"
        got = Got(f"d={law.d}, n_tokens={law.n_tokens}")
        fail("law", contract, got, owner=_OWNER, hint="Use method='exact'.")
    if law.d < 5:
        hint = "Use method='full'."
        contract = "a law with d >= 5 for method='exact'"
        fail("law", contract, Got(f"d={law.d}"), owner=_OWNER, hint=hint)
    if law.d > MAX_DIMENSION:
        fail("law", f"a law with d <= {MAX_DIMENSION}", Got(f"d={law.d}"), owner=_OWNER)


def _check_batch(batch_size: int, law: SingleLocation, method: str) -> int:
    if method == "full":  # works prompt by prompt
        return check_count("batch_size", batch_size, owner=_OWNER, maximum=MAX_WORK)
    most = MAX_WORK // (8 * law.n_tokens)
    if most < 1:
        contract = f"a law with n_tokens <= {MAX_WORK // 8}"
        fail("law", contract, Got(f"n_tokens={law.n_tokens}"), owner=_OWNER)
    return check_count("batch_size", batch_size, owner=_OWNER, maximum=most)


def _check_n_runs(n_runs: int, law: SingleLocation, method: str) -> int:
    n_runs = check_count("n_runs", n_runs, owner=_OWNER, maximum=MAX_RUNS)
    if method == "full" and law.d * n_runs > MAX_WORK:
        contract = f"so small that d * n_runs <= {MAX_WORK} for method='full'"
        fail("n_runs", contract, n_runs, owner=_OWNER, hint="Use method='exact'.")
    return n_runs


def _check_finite(broken: list[int], step_sizes: FloatArray, first: int) -> None:
    for run, index in enumerate(broken):
        if index >= 0:
            value = float(step_sizes[index - first])
            contract = "so small that no update overflows"
            got = Got(f"{value!r} at update {index}, where run {run} overflowed")
            fail("step_size", contract, got, owner=_OWNER)
