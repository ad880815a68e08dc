"""Online SGD of attention-based PCA: softmax and linear heads of any rank."""

from __future__ import annotations

import math
from functools import partial
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike

from eigenheads._checks import (
    Got,
    check_choice,
    check_count,
    check_finite_array,
    check_positive,
    fail,
)
from eigenheads._limits import MAX_RUNS, MAX_WORK, check_run_memory
from eigenheads._rng import run_generators
from eigenheads._run_blocks import check_run_counts, check_schedule, run_blocks
from eigenheads._trajectories import Trajectories
from eigenheads._typing import FloatArray, Schedule
from eigenheads.datasets import GaussianPrompts, SpikedWishartPrompts
from eigenheads.functional import PrincipalSubspace, principal_subspace
from eigenheads.models._pca_prompts import PCAProblem, pca_block

_HEADS, _METHODS = ("softmax", "linear"), ("exact", "full")
_CURVES = ("alignment", "norm", "loss")
# A head longer than this many times its start and its minimiser has diverged.
_FAR = 20.0


def pca_start(
    d: int, *, n_runs: int, seed: int, rank: int = 1, scale: float | None = None
) -> FloatArray:
    r"""Draw initial directions of attention-based PCA.

    Parameters
    ----------
    d
        Dimension.
    n_runs
        Number of starts.
    seed
        Start r depends on ``(seed, r)`` only. Without a scale it is the start that
        :func:`simulate_pca` uses for this seed.
    rank
        Number of directions per start.
    scale
        Standard deviation of independent Gaussian entries. By default the directions
        are independent and uniform on the unit sphere.

    Returns
    -------
    start
        (n_runs, d), or (n_runs, d, rank) for a rank above 1.

    Examples
    --------
    >>> import numpy as np
    >>> np.linalg.norm(pca_start(5, n_runs=2, seed=0), axis=1).round(6)
    array([1., 1.])
    """
    d = check_count("d", d)
    rank = check_count("rank", rank, maximum=d)
    n_runs = check_count("n_runs", n_runs, maximum=MAX_RUNS)
    check_run_memory(n_runs, d * rank)
    generators = run_generators(seed, n_runs)
    starts = np.array([rng.standard_normal((d, rank)) for rng in generators])
    if scale is None:
        starts /= np.linalg.norm(starts, axis=1, keepdims=True)
    else:
        starts *= check_positive("scale", scale)
    return starts[:, :, 0] if rank == 1 else starts


def simulate_pca(
    law: GaussianPrompts | SpikedWishartPrompts,
    *,
    head: str = "softmax",
    rank: int = 1,
    inverse_temperature: float,
    step_size: Schedule,
    batch_size: int,
    n_steps: int,
    n_runs: int = 1,
    record_every: int | None = None,
    seed: int = 0,
    method: str = "exact",
    start: ArrayLike | None = None,
) -> Trajectories:
    r"""Simulate online SGD of a head that learns to reconstruct its query.

    The head has free directions :math:`M` (one vector :math:`\mu` for rank 1), scores
    :math:`\lambda x_1^\top MM^\top x_k`, and the loss
    :math:`\lVert x_1 - T(X) \rVert^2` (:func:`~eigenheads.functional.pca_head`). Each
    update draws a new batch and moves against the gradient of its mean loss:

    .. math::

        M \leftarrow M - \alpha_t \nabla_M \frac1B \sum_b \lVert x_1^b - T(X^b) \rVert^2

    Parameters
    ----------
    law
        :class:`~eigenheads.datasets.GaussianPrompts`, or for in-context PCA
        :class:`~eigenheads.datasets.SpikedWishartPrompts`.
    head
        ``"softmax"`` or ``"linear"``.
    rank
        :math:`k`, the number of directions of the head.
    inverse_temperature
        :math:`\lambda > 0`.
    step_size
        :math:`\alpha_t`, a number or a callable of the 0-based index of the update.
    batch_size
        :math:`B`, prompts per update.
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
        ``"exact"`` draws two normals per token (k + 1 for rank k > 1) and two or three
        vectors per prompt, for any d; ``"full"`` draws every coordinate.
    start
        (d,) or (n_runs, d); for rank k (d, k) or (n_runs, d, k). Default: directions
        uniform on the unit sphere (:func:`pca_start`).

    Returns
    -------
    trajectories
        ``alignment`` with the top eigenvector (of V for in-context PCA) or the
        principal subspace, from 0 to 1; ``norm`` of :math:`M` (Frobenius); and
        ``loss``, the mean loss at the recorded state on the prompts of the next update.

    Raises
    ------
    ValueError
        If a run diverges; the message names the largest stable step.

    Warns
    -----
    NotIdentifiedWarning
        If the law has several principal directions; alignment is then with their
        eigenspace.

    Notes
    -----
    The two methods have the same distribution; with the same seed they draw different
    numbers.

    References
    ----------
    .. [1] maulensoto2026.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenheads.datasets import GaussianPrompts
    >>> law = GaussianPrompts(np.diag([4.0, 1.0, 0.5]), n_tokens=50)
    >>> paths = simulate_pca(
    ...     law, inverse_temperature=0.2, step_size=0.02, batch_size=64, n_steps=300,
    ...     n_runs=3, record_every=100, seed=0)
    >>> bool(paths.final("alignment").min() > 0.98)
    True
    """
    spectrum = _spectrum(law, rank)
    rank = spectrum.rank
    spectrum.warn_if_not_identified()
    check_choice("head", head, _HEADS)
    check_choice("method", method, _METHODS)
    inverse_temperature = check_positive("inverse_temperature", inverse_temperature)
    schedule = check_schedule("step_size", step_size)
    batch_size = check_count("batch_size", batch_size, maximum=MAX_WORK)
    counts = check_run_counts(n_steps, n_runs, record_every, n_curves=len(_CURVES))
    _check_work(law, method)
    check_run_memory(counts.n_runs, _state_numbers(law, rank, method))
    generators = run_generators(seed, counts.n_runs)
    # Starts are drawn even if they are given, so that a given start changes no batch.
    starts = np.array([rng.standard_normal((law.d, rank)) for rng in generators])
    starts /= np.linalg.norm(starts, axis=1, keepdims=True)
    if start is not None:
        starts = _check_start(start, counts.n_runs, law.d, rank)
    # In the eigenbasis the covariance is diagonal.
    directions = np.ascontiguousarray(
        np.swapaxes(spectrum.eigenvectors.T @ starts, 1, 2)
    )
    problem = _problem(law, spectrum, head, inverse_temperature, batch_size)
    far = _far(directions, problem)
    return run_blocks(
        pca_block,
        [(direction, _factor(law, problem, method)) for direction in directions],
        curves=_CURVES,
        start=None,  # a record needs the loss of fresh prompts: the kernel writes it
        schedules={"step_size": schedule},
        constants=(problem, method == "exact"),
        generators=generators,
        n_steps=counts.n_steps,
        record_every=counts.record_every,
        nanoseconds=_update_nanoseconds(law, problem, method),
        is_lost=lambda state: _length(state[0]) > far,
        diverged=partial(_fail_divergence, law, problem),
    )


def _spectrum(law: object, rank: int) -> PrincipalSubspace:
    if isinstance(law, GaussianPrompts):
        matrix = law.covariance
    elif isinstance(law, SpikedWishartPrompts):
        matrix = law.scale_matrix
    else:
        hint = "Import it from eigenheads.datasets."
        contract = "a GaussianPrompts or a SpikedWishartPrompts"
        fail("law", contract, law, hint=hint, error=TypeError)
    return principal_subspace(matrix, rank)


def _problem(
    law: GaussianPrompts | SpikedWishartPrompts,
    spectrum: PrincipalSubspace,
    head: str,
    inverse_temperature: float,
    batch_size: int,
) -> PCAProblem:
    dof, shared = 0, 1
    if isinstance(law, SpikedWishartPrompts):
        dof, shared = law.degrees_of_freedom, law.prompts_per_covariance
    return PCAProblem(
        roots=np.sqrt(spectrum.eigenvalues),
        dof=dof,
        n_tokens=law.n_tokens,
        inverse_temperature=inverse_temperature,
        is_softmax=head == "softmax",
        batch_size=batch_size,
        prompts_per_covariance=shared,
        n_certain=spectrum.n_certain,
        n_candidates=spectrum.n_candidates,
    )


def _factor(
    law: GaussianPrompts | SpikedWishartPrompts, problem: PCAProblem, method: str
) -> FloatArray:
    if isinstance(law, GaussianPrompts):
        roots: FloatArray = problem.roots
        return roots
    columns = law.degrees_of_freedom
    return np.empty((law.d, min(law.d, columns) if method == "exact" else columns))


def _state_numbers(
    law: GaussianPrompts | SpikedWishartPrompts, rank: int, method: str
) -> int:
    """Return how many numbers each run keeps: its directions and its factor."""
    numbers = law.d * rank
    if isinstance(law, SpikedWishartPrompts):
        columns = law.degrees_of_freedom
        numbers += law.d * (min(law.d, columns) if method == "exact" else columns)
    return numbers


def _update_nanoseconds(
    law: GaussianPrompts | SpikedWishartPrompts, problem: PCAProblem, method: str
) -> float:
    """Estimate: 4 ns per normal, 5 ns per exponential."""
    normals = 2 * (law.n_tokens + law.d)
    if method == "full":
        normals = law.n_tokens * max(law.d, problem.dof)
    return problem.batch_size * (4.0 * normals + 5.0 * law.n_tokens)


def _check_work(law: GaussianPrompts | SpikedWishartPrompts, method: str) -> None:
    numbers = 10 * law.n_tokens + 10 * law.d
    hint = ""
    if isinstance(law, SpikedWishartPrompts):
        numbers += law.d * law.degrees_of_freedom
    if method == "full":
        width = getattr(law, "degrees_of_freedom", law.d)
        numbers += law.n_tokens * width
        hint = "Use method='exact'."
    if numbers > MAX_WORK:
        contract = f"a law whose prompt needs at most {MAX_WORK} numbers"
        fail("law", contract, Got(f"{numbers} numbers"), hint=hint)


def _check_start(start: ArrayLike, n_runs: int, d: int, rank: int) -> FloatArray:
    array = check_finite_array("start", start)
    shape = (d,) if rank == 1 else (d, rank)
    if array.shape not in {shape, (n_runs, *shape)}:
        contract = f"of shape {shape} or {(n_runs, *shape)}"
        fail("start", contract, array)
    rows = np.broadcast_to(array, (n_runs, *shape)).reshape(n_runs, d, rank)
    return np.array(rows)


def _length(directions: FloatArray) -> float:
    with np.errstate(over="ignore"):
        return float(np.linalg.norm(directions))


def _far(states: FloatArray, problem: PCAProblem) -> float:
    """Return a length that only a diverging head reaches.

    In trials on two random Σ, runs that settled stayed below 6 times the longer of the
    start and the minimiser (squared length k/(λσ_k) at most), some that only jumped to
    and fro reached 11 times, and those that saturated passed 39 times.
    """
    rank = states.shape[1]
    smallest = float(problem.roots[rank - 1]) ** 2 * max(problem.dof, 1)
    start = float(np.linalg.norm(states, axis=(1, 2)).max())
    if smallest <= 0.0:
        return math.inf
    minimiser = math.sqrt(rank / (problem.inverse_temperature * smallest))
    return _FAR * max(start, minimiser)


def _fail_divergence(
    law: GaussianPrompts | SpikedWishartPrompts,
    problem: PCAProblem,
    run: int,
    update: int,
    step_size: float,
) -> NoReturn:
    got = Got(f"{step_size:.6g}; run {run} diverged at update {update}")
    hint = (
        f"At the minimum of the risk steps below {stable_step(law, problem):.3g} "
        "are stable; distant starts and small batches need smaller ones. "
        "The bound falls like 1/inverse_temperature."
    )
    contract = "so small that training converges"
    fail("step_size", contract, got, hint=hint)


def stable_step(
    law: GaussianPrompts | SpikedWishartPrompts, problem: PCAProblem
) -> float:
    r"""Return the largest step that is stable along the top eigenvector.

    There the risk is :math:`const - 2Pq + Q q^2` in the squared length q of
    :math:`\mu`, with curvature 8P in the length at its minimum: the step is 1/(4P).
    """
    values = problem.roots**2
    top, trace = float(values[0]), float(values.sum())
    pull = top * top
    if not problem.is_softmax:
        pull = top * (trace + (law.n_tokens + 1) * top)
    if isinstance(law, SpikedWishartPrompts):
        n = law.degrees_of_freedom
        pull = n * top * (trace + (n + 1) * top)
        if not problem.is_softmax:
            # E Σ₁₁ tr Σ + (L + 1) E (Σ²)₁₁ under the Wishart law.
            pull = n * top * (n * trace + 2 * top) + (law.n_tokens + 1) * pull
    return 1 / (4 * problem.inverse_temperature * pull) if pull > 0 else math.inf
