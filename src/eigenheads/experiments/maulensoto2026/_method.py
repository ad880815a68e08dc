"""What all figures of the paper share: settings, streams, descents, tables."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from eigenheads._parallel import advance
from eigenheads._rng import drawn_seed
from eigenheads._trajectories import Trajectories
from eigenheads._typing import FloatArray
from eigenheads.datasets import random_covariance
from eigenheads.dynamics import pca_start
from eigenheads.experiments._claims import Claim, at_most
from eigenheads.experiments._core import Table
from eigenheads.theory import PCALandscape, descend, softmax_landscape

# Results that several figures show are computed once in a process.
_SHARED: dict[tuple[str, Any, int], Table] = {}
_KEPT = 8


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Descent of the population risk and SGD with finite prompts, on one covariance."""

    d: int = 5
    n_tokens: int = 100
    inverse_temperature: float = 0.1
    step_size: float = 1e-4
    start: float = 0.1
    population_inverse_temperature: float = 0.01
    population_step_size: float = 1e-3
    n_steps: int = 3000
    record_every: int = 30
    batch_size: int = 256
    n_runs: int = 10
    n_covariances: int = 200
    n_starts: int = 100


def shared(
    name: str,
    simulate: Callable[[Any, np.random.Generator], Table],
    params: Any,
    rng: np.random.Generator,
    work: float,
) -> Table:
    """Return the table of a simulation that several figures show.

    Its stream depends on its own name and the master seed, not on the figure that
    asks: the entropy of the figure's stream is the master seed.
    """
    entropy = int(rng.bit_generator.seed_seq.entropy)  # type: ignore[attr-defined]
    key = (name, params, entropy)
    if key in _SHARED:
        advance(work)
        return _SHARED[key]
    words = [*name.encode(), entropy]
    table = simulate(params, np.random.default_rng(np.random.SeedSequence(words)))
    while len(_SHARED) >= _KEPT:
        _SHARED.pop(next(iter(_SHARED)))
    _SHARED[key] = table
    return table


def starts(
    rng: np.random.Generator, d: int, n_runs: int, scale: float | None
) -> FloatArray:
    """Draw starts: Gaussian of this scale, or unit vectors."""
    return pca_start(d, n_runs=n_runs, seed=drawn_seed(rng), scale=scale)


def table_of(prefix: str, paths: Trajectories) -> dict[str, FloatArray]:
    """Return the curves with prefixed names."""
    return {f"{prefix}_{name}": curve for name, curve in paths.items()}


def descend_to_the_end(landscape: PCALandscape, start: FloatArray) -> FloatArray:
    """Return the final risks above the minimum of long descents, relative to it.

    Steps of a third of the largest stable one; as many as the slowest mode needs, for
    one direction, and at most 300 000.
    """
    rates = landscape.descent_rates()
    slowest = rates[1:].min() if len(rates) > 1 else rates[0]
    step = landscape.largest_stable_step() / 3
    n_steps = int(min(300_000, 40 / (slowest * step)))
    paths = descend(
        landscape, start, step_size=step, n_steps=n_steps, record_every=n_steps
    )
    gap: FloatArray = (paths.final("risk") - landscape.minimum) / landscape.minimum
    return gap


def mode_rates(landscape: PCALandscape) -> tuple[FloatArray, FloatArray]:
    """Return how fast each mode i > 1 decays in a descent, and theory's rates.

    Each descent starts next to the minimum, displaced along one eigenvector.
    """
    vectors = landscape.subspace.eigenvectors
    minimiser = landscape.minimiser()
    shift = 1e-4 * np.linalg.norm(minimiser)
    step, n_steps = landscape.largest_stable_step() / 100, 100
    theory = landscape.descent_rates()[1:]
    paths = descend(
        landscape,
        minimiser + shift * vectors[:, 1:].T,
        step_size=step,
        n_steps=n_steps,
        record_every=n_steps,
    )
    sine = np.sqrt(1 - np.minimum(paths["alignment"], 1.0) ** 2)
    measured: FloatArray = -np.log(sine[:, -1] / sine[:, 0]) / (step * n_steps)
    return measured, theory


def quantiles_over_covariances(
    params: Curves, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Return final alignments of population descent, one random covariance each."""
    finals = []
    seeds = rng.integers(2**32, size=params.n_covariances)
    for seed in seeds:
        own = np.random.default_rng(seed)
        landscape = softmax_landscape(
            random_covariance(params.d, own),
            inverse_temperature=params.population_inverse_temperature,
        )
        start = own.standard_normal(params.d)
        paths = descend(
            landscape,
            start / np.linalg.norm(start),
            step_size=params.population_step_size,
            n_steps=params.n_steps,
            record_every=params.n_steps,
        )
        finals.append(paths.final("alignment")[0])
    levels = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
    return np.sort(finals), np.quantile(finals, levels)


def limit_claims(
    table: Table, source: str = "maulensoto2026: convergence to the minimum"
) -> list[Claim]:
    """Return the claims on long descents and on the rates of their modes."""
    rates = table["mode_rates"] / table["theory_mode_rates"]
    return [
        at_most(
            "many random starts, descent to the end: largest risk above the "
            "global minimum, relative",
            np.abs(table["end_gaps"]).max(),
            1e-6,
            "a saddle is at least a gap of eigenvalues above; the slowest mode "
            "has fallen by e^-20 or more",
            source=source,
        ),
        at_most(
            "rate at which each mode decays next to the minimum, over "
            "theory's: largest deviation from 1",
            np.abs(rates - 1).max(),
            0.02,
            "steps of 1 % of the largest stable one, first order in the step",
            source="ours: the Hessian's eigenvalues",
        ),
    ]
