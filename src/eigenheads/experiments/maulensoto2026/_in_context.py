"""Figures 2, 7a and 7b: one simulation in context, shown three ways."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from eigenheads._plotting._pca import draw_pca_curves
from eigenheads._rng import drawn_seed
from eigenheads.datasets import SpikedWishartPrompts
from eigenheads.dynamics import simulate_pca
from eigenheads.experiments._claims import Claim, about, at_least, at_most
from eigenheads.experiments._core import Run, Table
from eigenheads.experiments.maulensoto2026._method import (
    descend_to_the_end,
    limit_claims,
    mode_rates,
    shared,
    starts,
    table_of,
)
from eigenheads.theory import PCALandscape, descend, in_context_landscape

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class InContext:
    """Each prompt has a spiked Wishart covariance; defaults are the paper's."""

    d: int = 5
    n_tokens: int = 100
    degrees_of_freedom: int = 10
    spike: float = 2.0
    scale: float = 1.0
    inverse_temperature: float = 1e-3
    step_size: float = 5e-3
    n_steps: int = 1000
    record_every: int = 10
    n_covariances: int = 100
    prompts_per_covariance: int = 100
    n_runs: int = 10
    n_starts: int = 100


def law(params: InContext, n_tokens: int | None = None) -> SpikedWishartPrompts:
    """Return the law of the prompts."""
    return SpikedWishartPrompts(
        d=params.d,
        n_tokens=n_tokens or params.n_tokens,
        degrees_of_freedom=params.degrees_of_freedom,
        spike=params.spike,
        scale=params.scale,
        prompts_per_covariance=params.prompts_per_covariance,
    )


def landscape(params: InContext) -> PCALandscape:
    """Return the population risk."""
    return in_context_landscape(
        law(params).scale_matrix,
        degrees_of_freedom=params.degrees_of_freedom,
        inverse_temperature=params.inverse_temperature,
    )


def work(params: InContext) -> float:
    """Return the updates over all runs."""
    return 2.0 * params.n_steps * params.n_runs


def simulate(params: InContext, rng: np.random.Generator) -> Table:
    """Return the table of figures 2, 7a and 7b."""
    return shared("in_context", _simulate, params, rng, work(params))


def _simulate(params: InContext, rng: np.random.Generator) -> Table:
    risk = landscape(params)
    schedule: dict[str, Any] = {
        "step_size": params.step_size,
        "n_steps": params.n_steps,
        "record_every": params.record_every,
    }
    begin = starts(rng, params.d, params.n_runs, None)
    population = descend(risk, begin, **schedule)
    finite = simulate_pca(
        law(params),
        inverse_temperature=params.inverse_temperature,
        batch_size=params.n_covariances * params.prompts_per_covariance,
        n_runs=params.n_runs,
        seed=drawn_seed(rng),
        start=begin,
        **schedule,
    )
    measured, rates = mode_rates(risk)
    return {
        "steps": finite.steps.astype(np.float64),
        **table_of("population", population),
        **table_of("finite", finite),
        **table_of("theory", population),
        "eigenvalues": risk.subspace.eigenvalues,
        "population_minimum": np.array([risk.minimum]),
        "population_best_norm": np.array([np.linalg.norm(risk.minimiser())]),
        "end_gaps": descend_to_the_end(
            risk, starts(rng, params.d, params.n_starts, None)
        ),
        "mode_rates": measured,
        "theory_mode_rates": rates,
    }


def check_population(run: Run[InContext]) -> list[Claim]:
    """Return the claims on infinite prompts."""
    table = run.table
    norms = table["population_norm"][:, -1] / table["population_best_norm"][0]
    return [
        *limit_claims(table),
        at_least(
            "infinite prompts: median final alignment with the spike",
            np.median(table["population_alignment"][:, -1]),
            0.999,
            "V is fixed, so only the starts vary: three to ten of them",
            slack=0.005,
            source="maulensoto2026, Figures 2 and 7a",
        ),
        about(
            "infinite prompts: final norm over the minimiser's, the run farthest off",
            norms[np.argmax(np.abs(norms - 1))],
            1.0,
            0.05,
            "the length converges first; what is left of the other modes adds",
            source="ours: the minimiser in closed form",
        ),
    ]


def check_finite(run: Run[InContext]) -> list[Claim]:
    """Return the claims on finite prompts."""
    params, table = run.params, run.table
    gap = table["finite_alignment"] - table["theory_alignment"]
    return [
        about(
            "finite prompts: median final alignment with the spike",
            np.median(table["finite_alignment"][:, -1]),
            0.998,
            0.004,
            "noise of the batch's covariances, and prompts of finite length",
            source="maulensoto2026, Figures 2 and 7b",
        ),
        at_most(
            f"L = {params.n_tokens}: gap of the mean alignment to theory for "
            "L → ∞, averaged along the path",
            np.abs(gap.mean(axis=0)).mean(),
            0.05,
            "order 1/L: the time axis moves by a few per cent",
            source="maulensoto2026, Figure 2",
        ),
    ]


def check_both(run: Run[InContext]) -> list[Claim]:
    """Return the claims of both curves."""
    return [*check_population(run), *check_finite(run)]


def draw(figure: "Figure", run: Run[InContext], parts: tuple[str, ...]) -> None:
    """Draw some of the parts: ``population``, ``finite``, ``loss``, ``norm``."""
    table = run.table
    draw_pca_curves(figure, table, parts)


ABOUT = (
    "In context: each prompt draws Σ ~ Wishart(V, 10), V = I + 2vvᵀ, d = 5, then its "
    "tokens; alignment is with v. λ = 1e-3, step 5e-3, unit starts, the same for all "
    "curves. Infinite prompts: descent of the exact risk. Finite prompts: SGD with "
    "L = 100; a step uses several Σ with several prompts each (paper: 100 × 100)."
)
PRESETS = {
    "smoke": InContext(
        n_runs=3, n_covariances=50, prompts_per_covariance=4, n_starts=30
    ),
    "demo": InContext(n_runs=4, n_covariances=100, prompts_per_covariance=5),
    "paper": InContext(n_starts=1000),
}
