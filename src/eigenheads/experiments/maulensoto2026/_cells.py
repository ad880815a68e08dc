"""One run of SGD on one random covariance, for sweeps."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from eigenheads._rng import drawn_seed
from eigenheads.datasets import GaussianPrompts, random_covariance
from eigenheads.dynamics import simulate_pca
from eigenheads.experiments._core import Cells
from eigenheads.experiments.maulensoto2026._method import starts
from eigenheads.experiments.maulensoto2026._risks import (
    descend,
    softmax_landscape,
)


@dataclass(frozen=True, kw_only=True)
class FiniteRun:
    """SGD of the softmax head with finite prompts; defaults are the paper's figure 1.

    Each seed draws a covariance, a start and the prompts.
    """

    d: int = 5
    n_tokens: int = 100
    inverse_temperature: float = 0.1
    step_size: float = 1e-4
    start: float = 0.1
    n_steps: int = 3000
    batch_size: int = 256


def run_finite(params: FiniteRun, rng: np.random.Generator) -> dict[str, float]:
    """Return the alignments at the end of SGD and of theory for infinite prompts."""
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
    theory = descend(landscape, begin, **schedule)
    ends = [abs(float(path.final("alignment")[0])) for path in (finite, theory)]
    return {
        "alignment": ends[0],
        "theory_alignment": ends[1],
        "gap": ends[0] - ends[1],
        "norm": float(finite.final("norm")[0]),
    }


cells = Cells(
    presets={
        "smoke": replace(FiniteRun(), batch_size=64),
        "demo": replace(FiniteRun(), batch_size=128),
        "paper": FiniteRun(),
    },
    run=run_finite,
    shows=("alignment", "theory_alignment", "gap"),
)
