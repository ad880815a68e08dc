"""Attention-based PCA: descent of the population risk, and prompts of finite length."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from eigenheads._checks import Got, check_finite_array, check_positive, fail
from eigenheads._compile import njit
from eigenheads._limits import MAX_RECORDED
from eigenheads._run_blocks import check_run_counts, check_schedule, run_blocks
from eigenheads._trajectories import Trajectories
from eigenheads._typing import FloatArray, Schedule
from eigenheads.datasets import GaussianPrompts
from eigenheads.functional import PrincipalSubspace
from eigenheads.theory._ranges import check_law

_CURVES = ("alignment", "norm", "risk")


def descend_pca_risk(
    starts: FloatArray,
    subspace: PrincipalSubspace,
    constants: tuple[float, ...],
    largest_step: float,
    *,
    step_size: Schedule,
    n_steps: int,
    record_every: int,
) -> Trajectories:
    """Run `PCALandscape.descend` from checked starts (n_runs, d, rank)."""
    schedule = check_schedule("step_size", step_size)
    # In the eigenbasis the covariance is diagonal.
    states = subspace.eigenvectors.T @ starts
    n_runs, d, rank = states.shape
    counts = check_run_counts(
        n_steps, n_runs, record_every, n_curves=len(_CURVES), max_runs=MAX_RECORDED
    )
    return run_blocks(
        pca_descent_block,
        states,
        curves=_CURVES,
        start=None,
        schedules={"step_size": schedule},
        constants=(
            subspace.eigenvalues,
            constants,
            (subspace.n_certain, subspace.n_candidates),
        ),
        n_steps=counts.n_steps,
        record_every=counts.record_every,
        nanoseconds=2.0 * d * rank * (rank + 6),
        diverged=partial(_fail_divergence, largest_step),
    )


@njit()
def pca_descent_block(
    state: Any,
    rates: Any,
    sigma: Any,
    constants: Any,
    counted: Any,
    first: int,
    record_every: int,
    records: Any,
) -> int:
    """Advance one run by a block of updates; a kernel that records before an update.

    ``state`` (d, k) is in the eigenbasis, ``sigma`` are the eigenvalues, ``constants``
    the coefficients of the risk and the inverse temperature, ``counted`` the numbers
    of certain and candidate principal directions.
    """
    null, on_a, on_b, on_aa, on_f, on_ab, on_g, scale = constants
    d, rank = state.shape
    gram, moved = np.empty((rank, rank)), np.empty((rank, rank))
    move = np.empty(rank)
    for index in range(len(rates)):
        _grams(state, sigma, gram, moved)
        # The risk depends on the state through these four traces only.
        a, b, f, g = 0.0, 0.0, 0.0, 0.0
        for i in range(rank):
            a += gram[i, i]
            b += moved[i, i]
            for j in range(rank):
                f += gram[i, j] * gram[i, j]
                g += gram[i, j] * moved[i, j]
        risk = null - 2.0 * scale * (on_a * a + on_b * b)
        risk += scale * scale * (on_aa * a * a + on_f * f + on_ab * a * b + on_g * g)
        if not math.isfinite(risk):
            return first + index
        if (first + index) % record_every == 0:
            record = records[(first + index) // record_every]
            record[0] = alignment(state, counted)
            record[1] = math.sqrt(np.sum(state * state))
            record[2] = risk
        # Coefficients of ΣM and Σ²M in the gradient; the products of Gram matrices
        # follow.
        for_one = -4.0 * scale * on_a + 2.0 * scale**2 * (2.0 * on_aa * a + on_ab * b)
        for_two = -4.0 * scale * on_b + 2.0 * scale**2 * on_ab * a
        square = 2.0 * scale**2
        for row in range(d):
            s = sigma[row]
            for i in range(rank):
                total = (for_one + for_two * s) * state[row, i]
                mixed = 0.0
                for j in range(rank):
                    weight = 2.0 * on_f * gram[j, i] + on_g * moved[j, i]
                    mixed += state[row, j] * (weight + s * on_g * gram[j, i])
                move[i] = s * (total + square * mixed)
            # All moves of a row use its old entries, so it is changed only now.
            for i in range(rank):
                state[row, i] -= rates[index] * move[i]
    return -1


@njit()
def _grams(state: Any, sigma: Any, gram: Any, moved: Any) -> None:
    """Write M'ΣM and M'Σ²M."""
    d, rank = state.shape
    for i in range(rank):
        for j in range(rank):
            first, second = 0.0, 0.0
            for row in range(d):
                product = sigma[row] * state[row, i] * state[row, j]
                first += product
                second += sigma[row] * product
            gram[i, j] = first
            moved[i, j] = second


@njit()
def alignment(state: Any, counted: Any) -> float:
    """Return the alignment with the leading basis vectors, ties included."""
    d, rank = state.shape
    basis = state.copy()
    certain, tied = 0.0, 0.0
    for i in range(rank):
        for _ in range(2):  # twice is enough for rounding
            for j in range(i):
                product = 0.0
                for row in range(d):
                    product += basis[row, i] * basis[row, j]
                for row in range(d):
                    basis[row, i] -= product * basis[row, j]
        squared = 0.0
        for row in range(d):
            squared += basis[row, i] ** 2
        inverse = 1.0 / math.sqrt(squared) if squared > 0.0 else 0.0
        for row in range(d):
            basis[row, i] *= inverse
        for row in range(counted[0]):
            certain += basis[row, i] ** 2
        for row in range(counted[0], counted[1]):
            tied += basis[row, i] ** 2
    share = (certain + min(tied, float(rank - counted[0]))) / rank
    return math.sqrt(min(1.0, share))


def _fail_divergence(
    largest_step: float, run: int, update: int, step_size: float
) -> NoReturn:
    got = Got(f"{step_size:.6g}; run {run} diverged at update {update}")
    hint = (
        f"At the minimum steps below {largest_step:.3g} are stable; distant "
        "starts need smaller ones. The bound falls like 1/inverse_temperature."
    )
    contract = "so small that descent converges"
    fail("step_size", contract, got, hint=hint)


# --- Prompts of finite length --------------------------------------------------------


class PromptError(NamedTuple):
    """Leading order of the squared distance to the limit, ``coefficient · L^exponent``.

    Attributes
    ----------
    exponent
        Power of the number of tokens L, up to logarithms.
    coefficient
        Factor; NaN where it is not known.
    """

    exponent: float
    coefficient: float


def pca_prompt_error(
    law: GaussianPrompts, direction: ArrayLike, *, inverse_temperature: float
) -> PromptError:
    r"""Squared distance of a softmax head on L tokens to its limit of long prompts.

    For the head :math:`T_L(X) = \sum_j p_j x_j`,
    :math:`p = \operatorname{softmax}(\lambda\, (\mu \cdot x_1)\, X\mu)`, and its limit
    :math:`T_\infty = \lambda \Sigma \mu\, (\mu \cdot x_1)`, with
    :math:`c = \lambda\, \mu^\top \Sigma \mu`,

    .. math::

        \mathbb E \lVert T_L - T_\infty \rVert^2 \simeq \frac1L \Bigl(
        \frac{\operatorname{tr}\Sigma}{(1 - 2c^2)^{1/2}}
        + \frac{\lambda^2\, \mu^\top\Sigma\mu\, \lVert\Sigma\mu\rVert^2}
        {(1 - 2c^2)^{3/2}} \Bigr), \qquad c < \tfrac1{\sqrt 2}

    Beyond :math:`c = 1/\sqrt2` the variance of the softmax's normaliser, averaged over
    the query, is infinite, and the distance falls like :math:`L^{-2/(1 + 2c^2)}`. At
    the minimiser of the limiting risk c = 1, so there it falls like
    :math:`L^{-2/3}`.

    Parameters
    ----------
    law
        Law of the prompts; its number of tokens does not count.
    direction
        :math:`\mu`, (d,).
    inverse_temperature
        :math:`\lambda > 0`.

    Returns
    -------
    error
        ``exponent`` and ``coefficient``.

    Notes
    -----
    The coefficient is the delta method: given the query, the tokens are tilted by
    :math:`e^{a \cdot x}`, :math:`a = \lambda\mu\,(\mu \cdot x_1)`, and
    :math:`L\, \mathbb E \lVert T_L - T_\infty \rVert^2 \to e^{a^\top\Sigma a}
    (\operatorname{tr}\Sigma + \lVert\Sigma a\rVert^2)`. Its mean over the query is a
    Gaussian integral. The exponent beyond :math:`1/\sqrt2` is a heuristic of extreme
    values, not a proof: for a query of size h, with :math:`b = ch/\sqrt{\log L}`
    between :math:`1/\sqrt2` and :math:`\sqrt2`, the largest weight alone makes a
    relative error of :math:`L^{-(\sqrt2 - b)^2}`, and such a query has the probability
    :math:`L^{-b^2/(2c^2)}`; the largest product of both over b is the rate. The
    experiment ``maulensoto2026/finite_prompts`` measures both.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenheads.datasets import GaussianPrompts
    >>> law = GaussianPrompts(np.diag([2.0, 1.0]))
    >>> small = pca_prompt_error(law, [0.1, 0.0], inverse_temperature=1.0)
    >>> small.exponent, round(small.coefficient, 3)
    (-1.0, 3.002)
    >>> round(pca_prompt_error(law, [0.5**0.5, 0.0], inverse_temperature=1.0)[0], 3)
    -0.667
    """
    check_law(law, (GaussianPrompts,))
    scale = check_positive("inverse_temperature", inverse_temperature)
    mu = check_finite_array("direction", direction)
    if mu.shape != (len(law.covariance),):
        fail("direction", f"of shape ({len(law.covariance)},)", mu)
    pulled = law.covariance @ mu
    variance = float(mu @ pulled)
    c = scale * variance
    if 2 * c * c >= 1:
        return PromptError(-2 / (1 + 2 * c * c), math.nan)
    room = 1 - 2 * c * c
    trace = float(np.trace(law.covariance))
    moved = scale**2 * variance * float(pulled @ pulled)
    return PromptError(-1.0, trace / room**0.5 + moved / room**1.5)
