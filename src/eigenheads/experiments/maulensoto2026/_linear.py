"""Figures 4a and 4b: one simulation of the linear head, shown two ways."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from eigenheads._plotting._pca import draw_pca_curves
from eigenheads._rng import drawn_seed
from eigenheads.datasets import GaussianPrompts, random_covariance
from eigenheads.dynamics import simulate_pca
from eigenheads.experiments._claims import Claim, about, at_most
from eigenheads.experiments._core import Run, Table
from eigenheads.experiments.maulensoto2026._method import (
    descend_to_the_end,
    limit_claims,
    mode_rates,
    shared,
    starts,
    table_of,
)
from eigenheads.theory import descend, linear_landscape

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Linear:
    """The linear head on one covariance; defaults are the paper's."""

    d: int = 5
    n_tokens: int = 6
    inverse_temperature: float = 0.01
    step_size: float = 1e-4
    start: float = 0.01
    n_steps: int = 5000
    record_every: int = 50
    batch_size: int = 256
    n_runs: int = 10
    n_starts: int = 100


def work(params: Linear) -> float:
    """Return the updates over all runs."""
    return 2.0 * params.n_steps * params.n_runs


def simulate(params: Linear, rng: np.random.Generator) -> Table:
    """Return the table of figures 4a and 4b."""
    return shared("linear", _simulate, params, rng, work(params))


def _simulate(params: Linear, rng: np.random.Generator) -> Table:
    covariance = random_covariance(params.d, rng)
    risk = linear_landscape(
        covariance,
        n_tokens=params.n_tokens,
        inverse_temperature=params.inverse_temperature,
    )
    schedule: dict[str, Any] = {
        "step_size": params.step_size,
        "n_steps": params.n_steps,
        "record_every": params.record_every,
    }
    begin = starts(rng, params.d, params.n_runs, params.start)
    population = descend(risk, begin, **schedule)
    finite = simulate_pca(
        GaussianPrompts(covariance, params.n_tokens),
        head="linear",
        inverse_temperature=params.inverse_temperature,
        batch_size=params.batch_size,
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
            risk, starts(rng, params.d, params.n_starts, params.start)
        ),
        "mode_rates": measured,
        "theory_mode_rates": rates,
    }


def check_population(run: Run[Linear]) -> list[Claim]:
    """Return the claims on the exact risk."""
    table = run.table
    norms = table["population_norm"][:, -1] / table["population_best_norm"][0]
    return [
        *limit_claims(table),
        about(
            "final norm over the minimiser's, mean over runs",
            norms.mean(),
            1.0,
            0.06,
            "the length has converged; modes of small eigenvalues are left over",
            source="ours: the minimiser in closed form",
        ),
    ]


def check_finite(run: Run[Linear]) -> list[Claim]:
    """Return the claims on SGD, which has exactly this risk."""
    table = run.table
    gap = table["finite_alignment"] - table["theory_alignment"]
    norm = table["finite_norm"][:, -1] / table["theory_norm"][:, -1]
    growth = np.log(table["finite_norm"] / table["theory_norm"]).mean(axis=0)
    return [
        at_most(
            "gap of the mean alignment to descent of the exact risk, "
            "averaged along the path",
            np.abs(gap.mean(axis=0)).mean(),
            0.06,
            "the same risk: only the noise of SGD, largest while the head is "
            "still small",
            source="maulensoto2026, Figures 4a and 4b",
        ),
        at_most(
            "largest gap of the mean logarithm of the norm to it, along the path",
            np.abs(growth).max(),
            0.2,
            "the noise of SGD while the norm grows a hundredfold",
            source="ours: the rate at which a small head grows",
        ),
        about(
            "final norm over that of descent of the exact risk, mean",
            norm.mean(),
            1.0,
            0.03,
            "the noise of SGD, which is of order 0.001",
            source="maulensoto2026, Figures 4a and 4b",
        ),
    ]


def draw(figure: "Figure", run: Run[Linear], parts: tuple[str, ...]) -> None:
    """Draw some of the parts: ``population``, ``finite``, ``loss``, ``norm``."""
    table = run.table
    draw_pca_curves(figure, table, parts)


ABOUT = (
    "Linear head on prompts of six Gaussian tokens, d = 5, Σ = AAᵀ + 0.1 I: one draw "
    "of Σ for this figure. λ = 0.01, step 1e-4, starts 0.01·N(0, I), the same for SGD "
    "and for descent. For the linear head the risk is exact at every L."
)
PRESETS = {
    "smoke": Linear(n_runs=4, batch_size=64, n_starts=30),
    "demo": Linear(n_runs=6, batch_size=128),
    "paper": Linear(n_starts=1000),
}
