"""Figures 1, 3a and 3b: one simulation of the softmax head, shown three ways."""

from typing import TYPE_CHECKING, Any

import numpy as np

from eigenheads._plotting._pca import draw_pca_curves
from eigenheads._rng import drawn_seed
from eigenheads.datasets import GaussianPrompts, random_covariance
from eigenheads.dynamics import simulate_pca
from eigenheads.experiments._claims import Claim, about, at_most
from eigenheads.experiments._core import Run, Table
from eigenheads.experiments.maulensoto2026._method import (
    Curves,
    descend_to_the_end,
    limit_claims,
    mode_rates,
    quantiles_over_covariances,
    shared,
    starts,
    table_of,
)
from eigenheads.theory import descend, softmax_landscape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = "maulensoto2026, Figure 1"


def work(params: Curves) -> float:
    """Return the updates over all runs: SGD's and those of two descents."""
    return float(params.n_steps * (3 * params.n_runs + params.n_covariances))


def simulate(params: Curves, rng: np.random.Generator) -> Table:
    """Return the table of figures 1, 3a and 3b."""
    return shared("fixed", _simulate, params, rng, work(params))


def _simulate(params: Curves, rng: np.random.Generator) -> Table:
    covariance = random_covariance(params.d, rng)
    schedule: dict[str, Any] = {
        "n_steps": params.n_steps,
        "record_every": params.record_every,
    }
    wide = softmax_landscape(
        covariance, inverse_temperature=params.population_inverse_temperature
    )
    population = descend(
        wide,
        starts(rng, params.d, params.n_runs, None),
        step_size=params.population_step_size,
        **schedule,
    )
    begin = starts(rng, params.d, params.n_runs, params.start)
    finite = simulate_pca(
        GaussianPrompts(covariance, params.n_tokens),
        inverse_temperature=params.inverse_temperature,
        step_size=params.step_size,
        batch_size=params.batch_size,
        n_runs=params.n_runs,
        seed=drawn_seed(rng),
        start=begin,
        **schedule,
    )
    sharp = softmax_landscape(
        covariance, inverse_temperature=params.inverse_temperature
    )
    theory = descend(sharp, begin, step_size=params.step_size, **schedule)
    finals, quantiles = quantiles_over_covariances(params, rng)
    measured, rates = mode_rates(wide)
    return {
        "steps": finite.steps.astype(np.float64),
        **table_of("population", population),
        **table_of("finite", finite),
        **table_of("theory", theory),
        "eigenvalues": wide.subspace.eigenvalues,
        "population_minimum": np.array([wide.minimum]),
        "population_best_norm": np.array([np.linalg.norm(wide.minimiser())]),
        "finite_best_norm": np.array([np.linalg.norm(sharp.minimiser())]),
        "covariance_alignments": finals,
        "covariance_quantiles": quantiles,
        "end_gaps": descend_to_the_end(
            wide, starts(rng, params.d, params.n_starts, None)
        ),
        "mode_rates": measured,
        "theory_mode_rates": rates,
    }


def check_population(run: Run[Curves]) -> list[Claim]:
    """Return the claims on the infinite prompt."""
    params, table = run.params, run.table
    low, _, median, _, _ = table["covariance_quantiles"]
    draws = params.n_covariances
    return [
        *limit_claims(table),
        about(
            f"median over {draws} random Σ of the alignment when descent stops",
            median,
            0.983,
            0.001 + 0.08 / np.sqrt(draws),
            "0.983 over 20 000 draws of ours; about four standard errors",
            source="ours: the paper's figure is one draw of Σ",
        ),
        about(
            f"5 % quantile over {draws} random Σ of that alignment",
            low,
            0.876,
            0.02 + 4 / np.sqrt(draws),
            "0.876 over 20 000 draws of ours; about four standard errors",
            source="ours: some Σ stay far from aligned",
        ),
    ]


def check_finite(run: Run[Curves]) -> list[Claim]:
    """Return the claims on finite prompts: theory on the same Σ, the same starts."""
    params, table = run.params, run.table
    gap = table["finite_alignment"] - table["theory_alignment"]
    norms = table["finite_norm"][:, -1] / table["theory_norm"][:, -1]
    return [
        at_most(
            f"L = {params.n_tokens}: gap of the mean alignment to theory for "
            "L → ∞, averaged along the path",
            np.abs(gap.mean(axis=0)).mean(),
            0.05,
            "order 1/L in the risk's gradient moves the time axis by a few "
            "per cent, and the noise of SGD",
            source=f"{SOURCE}: finite prompts follow the infinite one",
        ),
        about(
            f"L = {params.n_tokens}: final norm over theory's for L → ∞, "
            "mean over runs",
            norms.mean(),
            1.0,
            0.1,
            "order 1/L: 0.001 to 0.025 in 40 draws of ours",
        ),
    ]


def check_both(run: Run[Curves]) -> list[Claim]:
    """Return the claims of both curves."""
    return [*check_population(run), *check_finite(run)]


def draw(figure: "Figure", run: Run[Curves], parts: tuple[str, ...]) -> None:
    """Draw some of the parts: ``population``, ``finite``, ``covariances``."""
    table = run.table
    draw_pca_curves(figure, table, parts)


ABOUT = (
    "Softmax head on Gaussian tokens, d = 5, Σ = AAᵀ + 0.1 I: one draw of Σ for this "
    "figure. Infinite prompts: descent of the exact risk, λ = 0.01, step 1e-3, unit "
    "starts. Finite prompts: SGD with L = 100, λ = 0.1, step 1e-4, 256 prompts a step, "
    "starts 0.1·N(0, I), simulated by the exact fast path. Dashed: theory for L → ∞ on "
    "the same Σ from the same starts."
)
PRESETS = {
    "smoke": Curves(n_runs=4, batch_size=64, n_covariances=100, n_starts=30),
    "demo": Curves(n_runs=6, batch_size=128),
    "paper": Curves(n_covariances=2000, n_starts=1000),
}
