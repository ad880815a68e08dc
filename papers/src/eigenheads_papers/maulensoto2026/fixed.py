"""Softmax and linear heads on one covariance: Figures 1, 3 and 4."""

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from eigenheads.datasets import GaussianPrompts, random_covariance
from eigenheads.models import simulate_pca
from eigenheads_papers._claims import Claim, about, at_most
from eigenheads_papers._core import Cells, Experiment, Run, Table, drawn_seed, parameter
from eigenheads_papers.maulensoto2026._method import (
    descend_to_the_end,
    draw_curves,
    limit_claims,
    linear_landscape,
    mode_rates,
    shared,
    softmax_landscape,
    starts,
    table_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Descent of the population risk and SGD with finite prompts, on one covariance."""

    d: int = parameter(5, "dimension of the tokens")
    n_tokens: int = parameter(100, "tokens per sample or prompt")
    inverse_temperature: float = parameter(0.1, "inverse temperature λ of the head")
    step_size: float = parameter(1e-4, "step size")
    start: float = parameter(0.1, "size of weights or overlaps at the start")
    population_inverse_temperature: float = parameter(
        0.01, "inverse temperature of the descent"
    )
    population_step_size: float = parameter(1e-3, "step size of the descent")
    n_steps: int = parameter(3000, "training steps")
    record_every: int = parameter(30, "steps between records")
    batch_size: int = parameter(256, "samples per gradient step")
    n_runs: int = parameter(10, "independent runs")
    n_starts: int = parameter(100, "random starts")


@dataclass(frozen=True, kw_only=True)
class Linear:
    """The linear head on one covariance; defaults are the paper's."""

    d: int = parameter(5, "dimension of the tokens")
    n_tokens: int = parameter(6, "tokens per sample or prompt")
    inverse_temperature: float = parameter(0.01, "inverse temperature λ of the head")
    step_size: float = parameter(1e-4, "step size")
    start: float = parameter(0.01, "size of weights or overlaps at the start")
    n_steps: int = parameter(5000, "training steps")
    record_every: int = parameter(50, "steps between records")
    batch_size: int = parameter(256, "samples per gradient step")
    n_runs: int = parameter(10, "independent runs")
    n_starts: int = parameter(100, "random starts")


def _work(params: Curves) -> float:
    """Return the updates over all runs: SGD's and those of two descents."""
    return float(params.n_steps * 3 * params.n_runs)


def simulate(params: Curves, rng: np.random.Generator) -> Table:
    """Return the table of figures 1, 3a and 3b."""
    return shared("fixed", _simulate, params, rng, _work(params))


def _simulate(params: Curves, rng: np.random.Generator) -> Table:
    covariance = random_covariance(params.d, rng)
    schedule: dict[str, Any] = {
        "n_steps": params.n_steps,
        "record_every": params.record_every,
    }
    # The paper's infinite-prompt curve has another λ, another step and other starts
    # than its SGD, so it is no prediction for SGD.
    wide = softmax_landscape(
        covariance, inverse_temperature=params.population_inverse_temperature
    )
    population = wide.descend(
        starts(rng, params.d, params.n_runs, None),
        step_size=params.population_step_size,
        **schedule,
    )
    # SGD and the theory that it is compared with share these starts; otherwise the
    # spread over starts could hide the effect of finite prompts.
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
    # This second risk has the λ and the step of SGD. What remains between the two is
    # the finite length of prompts and the noise of batches.
    sharp = softmax_landscape(
        covariance, inverse_temperature=params.inverse_temperature
    )
    theory = sharp.descend(begin, step_size=params.step_size, **schedule)
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
        "end_gaps": descend_to_the_end(
            wide, starts(rng, params.d, params.n_starts, None)
        ),
        "mode_rates": measured,
        "theory_mode_rates": rates,
    }


def linear_work(params: Linear) -> float:
    """Return the updates over all runs."""
    return 2.0 * params.n_steps * params.n_runs


def simulate_linear(params: Linear, rng: np.random.Generator) -> Table:
    """Return the table of figures 4a and 4b."""
    return shared("linear", _simulate_linear, params, rng, linear_work(params))


def _simulate_linear(params: Linear, rng: np.random.Generator) -> Table:
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
    # For the linear head the risk is exact at this L, so one descent is both the
    # paper's population curve and the theory for SGD.
    population = risk.descend(begin, **schedule)
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


def _check_population(run: Run[Curves]) -> list[Claim]:
    """Return the claims on the infinite prompt."""
    return limit_claims(run.table)


def _check_finite(run: Run[Curves]) -> list[Claim]:
    """Return the claims on finite prompts: theory on the same Σ, the same starts."""
    params, table = run.params, run.table
    # The claim averages over runs before it takes absolute values: the noise of single
    # runs averages out, and a systematic difference stays.
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
            source="maulensoto2026, Figure 1: finite prompts follow the infinite one",
            own_setting=True,
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


def _check_both(run: Run[Curves]) -> list[Claim]:
    """Return the claims of both curves."""
    return [*_check_population(run), *_check_finite(run)]


def check_linear_population(run: Run[Linear]) -> list[Claim]:
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


def check_linear_finite(run: Run[Linear]) -> list[Claim]:
    """Return the claims on SGD, which has exactly this risk."""
    table = run.table
    gap = table["finite_alignment"] - table["theory_alignment"]
    norm = table["finite_norm"][:, -1] / table["theory_norm"][:, -1]
    # The norm grows about a hundredfold. Logarithms weigh the early, exponential growth
    # as much as the end.
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
            own_setting=True,
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
            own_setting=True,
        ),
    ]


def run_finite(params: Curves, rng: np.random.Generator) -> dict[str, float]:
    """Return the alignments at the end of SGD and of theory for infinite prompts."""
    # A cell draws a Σ of its own, unlike the figure: many cells together then show the
    # spread over covariances.
    covariance = random_covariance(params.d, rng)
    begin = starts(rng, params.d, 1, params.start)
    schedule: dict[str, Any] = {
        "step_size": params.step_size,
        "n_steps": params.n_steps,
        "record_every": params.n_steps,
    }
    finite = simulate_pca(
        GaussianPrompts(covariance, params.n_tokens),
        inverse_temperature=params.inverse_temperature,
        batch_size=params.batch_size,
        n_runs=1,
        seed=drawn_seed(rng),
        start=begin,
        **schedule,
    )
    landscape = softmax_landscape(
        covariance, inverse_temperature=params.inverse_temperature
    )
    theory = landscape.descend(begin, **schedule)
    # The sign of μ is not identified, hence the absolute values.
    ends = [abs(float(path.final("alignment")[0])) for path in (finite, theory)]
    return {
        "alignment": ends[0],
        "theory_alignment": ends[1],
        "gap": ends[0] - ends[1],
        "norm": float(finite.final("norm")[0]),
    }


def draw(figure: "Figure", run: Run[Any], parts: tuple[str, ...]) -> None:
    """Draw some of ``population``, ``finite``, ``loss`` or ``norm``."""
    draw_curves(figure, run.table, parts)


_ABOUT = (
    "Softmax head on Gaussian tokens, d = 5, Σ = AAᵀ + 0.1 I: one draw of Σ for this "
    "figure. Infinite prompts: descent of the exact risk, λ = 0.01, step 1e-3, unit "
    "starts. Finite prompts: SGD with L = 100, λ = 0.1, step 1e-4, 256 prompts per "
    "step, starts 0.1·N(0, I), simulated by the exact fast path. Dashed: theory for "
    "L → ∞ on the same Σ from the same starts."
)


_PRESETS = {
    "smoke": Curves(n_runs=4, batch_size=64, n_starts=30),
    "demo": Curves(n_runs=6, batch_size=128),
    "paper": Curves(n_starts=1000),
}


_LINEAR_ABOUT = (
    "Linear head on prompts of six Gaussian tokens, d = 5, Σ = AAᵀ + 0.1 I: one draw "
    "of Σ for this figure. λ = 0.01, step 1e-4, starts 0.01·N(0, I), the same for SGD "
    "and for descent. For the linear head the risk is exact at every L."
)


_LINEAR_PRESETS = {
    "smoke": Linear(n_runs=4, batch_size=64, n_starts=30),
    "demo": Linear(n_runs=6, batch_size=128),
    "paper": Linear(n_starts=1000),
}


# A cell makes one run on one covariance, so both counts are set to 1.
cells = Cells(
    presets={name: replace(params, n_runs=1) for name, params in _PRESETS.items()},
    run=run_finite,
    shows=("alignment", "theory_alignment", "gap"),
)

_SOFTMAX: dict[str, Any] = {
    "presets": _PRESETS,
    "simulate": simulate,
    "work": _work,
    "tolerance": 1e-6,
}
_LINEAR: dict[str, Any] = {
    "presets": _LINEAR_PRESETS,
    "simulate": simulate_linear,
    "work": linear_work,
    "size": (9.0, 3.6),
    "tolerance": 1e-6,
}
experiments = (
    Experiment(
        key="maulensoto2026/fig1",
        title="The head learns the top eigenvector, with infinite and finite prompts",
        source="Figure 1",
        about=_ABOUT,
        check=_check_both,
        draw=partial(draw, parts=("population", "finite", "norm")),
        size=(9.0, 6.5),
        cells=cells,
        **_SOFTMAX,
    ),
    Experiment(
        key="maulensoto2026/fig3a",
        title="Finite prompts, stochastic gradient descent",
        source="Figure 3a",
        about=_ABOUT + " Figure 1's second curve, from the same simulation.",
        check=_check_finite,
        draw=partial(draw, parts=("finite", "loss")),
        size=(9.0, 3.6),
        **_SOFTMAX,
    ),
    Experiment(
        key="maulensoto2026/fig3b",
        title="Infinite prompts, descent of the exact risk",
        source="Figure 3b",
        about=_ABOUT + " Figure 1's first curve, from the same simulation.",
        check=_check_population,
        draw=partial(draw, parts=("population", "norm")),
        size=(9.0, 3.6),
        **_SOFTMAX,
    ),
    Experiment(
        key="maulensoto2026/fig4a",
        title="Linear head, stochastic gradient descent",
        source="Figure 4a",
        about=_LINEAR_ABOUT
        + " Shown: SGD with 256 prompts per step; dashed, descent of the exact risk.",
        check=check_linear_finite,
        draw=partial(draw, parts=("finite", "loss")),
        **_LINEAR,
    ),
    Experiment(
        key="maulensoto2026/fig4b",
        title="Linear head, descent of the exact risk",
        source="Figure 4b",
        about=_LINEAR_ABOUT
        + " Shown: descent with the exact gradient (the authors' script for this "
        "figure has a wrong factor in its gradient).",
        check=check_linear_population,
        draw=partial(draw, parts=("population", "norm")),
        **_LINEAR,
    ),
)
