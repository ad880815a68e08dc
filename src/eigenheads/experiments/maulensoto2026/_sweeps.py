"""Figures 5, 6 and 8: the final alignment against the prompt's length or against d."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from eigenheads._plotting._pca import draw_pca_quantiles, draw_pca_sweep
from eigenheads._rng import drawn_seed
from eigenheads._typing import FloatArray
from eigenheads.datasets import GaussianPrompts, random_covariance
from eigenheads.dynamics import simulate_pca
from eigenheads.experiments._claims import Claim, about, at_least, at_most
from eigenheads.experiments._core import Run, Table
from eigenheads.experiments.maulensoto2026._method import descend_to_the_end, starts
from eigenheads.theory import (
    PCALandscape,
    descend,
    linear_landscape,
    softmax_landscape,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
# Twenty whole numbers from 3 to 50, evenly spaced and rounded.
PAPER_LENGTHS = tuple(int(length) for length in np.linspace(3, 50, 20).round())


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """SGD on one covariance for several lengths of the prompt; the paper's figure 5."""

    head: str = "softmax"
    lengths: tuple[int, ...] = PAPER_LENGTHS
    d: int = 5
    inverse_temperature: float = 0.1
    step_size: float = 1e-4
    start: float = 0.1
    n_steps: int = 5000
    batch_size: int = 256
    n_runs: int = 10


def lengths_work(params: Lengths) -> float:
    """Return the updates over all lengths and runs: SGD's and theory's."""
    return 2.0 * len(params.lengths) * params.n_runs * params.n_steps


def landscape(params: Lengths, covariance: FloatArray, n_tokens: int) -> PCALandscape:
    """Return the population risk: exact for the linear head, L → ∞ for softmax."""
    sharp = params.inverse_temperature
    if params.head == "linear":
        return linear_landscape(
            covariance, n_tokens=n_tokens, inverse_temperature=sharp
        )
    return softmax_landscape(covariance, inverse_temperature=sharp)


def simulate_lengths(params: Lengths, rng: np.random.Generator) -> Table:
    """Run SGD at each length, and theory from the same starts on the same Σ."""
    covariance = random_covariance(params.d, rng)
    begin = starts(rng, params.d, params.n_runs, params.start)
    finals, theory, norms = [], [], []
    for n_tokens in params.lengths:
        paths = simulate_pca(
            GaussianPrompts(covariance, n_tokens),
            head=params.head,
            inverse_temperature=params.inverse_temperature,
            step_size=params.step_size,
            batch_size=params.batch_size,
            n_steps=params.n_steps,
            n_runs=params.n_runs,
            record_every=params.n_steps,
            seed=drawn_seed(rng),
            start=begin,
        )
        expected = descend(
            landscape(params, covariance, n_tokens),
            begin,
            step_size=params.step_size,
            n_steps=params.n_steps,
            record_every=params.n_steps,
        )
        finals.append(paths.final("alignment"))
        theory.append(np.median(expected.final("alignment")))
        norms.append(np.mean(paths.final("norm") / expected.final("norm")))
    table = {
        "setting": np.array(params.lengths, dtype=np.float64),
        "alignment": np.array(finals),
        "norm_ratio": np.array(norms),
        "eigenvalues": np.linalg.eigvalsh(covariance)[::-1].copy(),
    }
    if params.head == "linear":
        return {**table, "theory": np.array(theory)}
    return {**table, "limit": np.array(theory[:1])}


def draw_lengths(figure: "Figure", run: Run[Lengths]) -> None:
    """Draw the final alignments against L."""
    table = run.table
    draw_pca_sweep(figure.subplots(), table, label="tokens in a prompt, L")


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """Descent of the population risk for several d; the paper's figure 6.

    At dimension d: λ = `sharpness`/d and the step is `step`/d², or half the largest
    stable one if that is less: at d = 3 the paper's step diverges on some Σ.
    """

    head: str = "softmax"
    dimensions: tuple[int, ...] = tuple(range(3, 99, 5))
    sharpness: float = 0.1
    step: float = 0.5
    n_steps: int = 5000
    n_runs: int = 10
    n_covariances: int = 40
    n_starts: int = 4


def dimensions_work(params: Dimensions) -> float:
    """Return the updates over all dimensions, covariances and runs."""
    runs = len(params.dimensions) * (params.n_runs + params.n_covariances)
    return float(params.n_steps * runs)


def simulate_dimensions(params: Dimensions, rng: np.random.Generator) -> Table:
    """Descend at each d: on one Σ from many starts, and on many Σ."""
    finals, quantiles, gaps = [], [], []
    bounded: list[float] = []
    for d in params.dimensions:
        risk = _at_dimension(params, d, rng)
        begin = starts(rng, d, params.n_runs, None)
        finals.append(_final(params, risk, d, begin))
        many = [
            _final(params, _at_dimension(params, d, rng), d, starts(rng, d, 1, None))[0]
            for _ in range(params.n_covariances)
        ]
        quantiles.append(np.quantile(many, LEVELS))
        long = starts(rng, d, params.n_starts, None)
        gaps.append(np.abs(descend_to_the_end(risk, long)).max())
    return {
        "setting": np.array(params.dimensions, dtype=np.float64),
        "alignment": np.array(finals),
        "quantiles": np.array(quantiles),
        "end_gaps": np.array(gaps),
        "bounded_steps": np.array(bounded),
    }


def _at_dimension(params: Dimensions, d: int, rng: np.random.Generator) -> PCALandscape:
    covariance, sharp = random_covariance(d, rng), params.sharpness / d
    if params.head == "linear":
        return linear_landscape(covariance, n_tokens=d, inverse_temperature=sharp)
    return softmax_landscape(covariance, inverse_temperature=sharp)


def _final(
    params: Dimensions, risk: PCALandscape, d: int, begin: FloatArray
) -> FloatArray:
    paths = descend(
        risk,
        begin,
        step_size=min(params.step / d**2, _stable(risk)),
        n_steps=params.n_steps,
        record_every=params.n_steps,
    )
    return paths.final("alignment")


def _stable(risk: PCALandscape) -> float:
    """Return a step that is safe also from a unit start: half the stable one."""
    return risk.largest_stable_step() / 2


def dimension_claims(table: Table, source: str) -> list[Claim]:
    """Return the claims of figure 6: the limit at every d, and quantiles over Σ."""
    return [
        at_most(
            "every d, descent to the end: largest risk above the global "
            "minimum, relative",
            table["end_gaps"].max(),
            1e-3,
            "a saddle is a gap of eigenvalues above; at large d small gaps make "
            "the last modes slow, and at most 300 000 steps are made",
            source=source,
        ),
        at_least(
            "least median over Σ of the alignment when descent stops, over d",
            table["quantiles"][:, 2].min(),
            0.9,
            "the gap σ₁ − σ₂ decides, and varies from draw to draw",
            slack=0.1,
            source=source,
        ),
    ]


def draw_dimensions(figure: "Figure", run: Run[Dimensions]) -> None:
    """Draw one Σ a dimension, and quantiles over many."""
    table = run.table
    axes = figure.subplots(1, 2)
    draw_pca_sweep(axes[0], table, label="dimension d (one Σ each)")
    draw_pca_quantiles(axes[1], table, label="dimension d")


def length_claims(table: Table, *, expected: FloatArray, source: str) -> list[Claim]:
    """Return the claims of figure 5: simulation against theory on the same Σ."""
    gaps = np.abs(np.median(table["alignment"], axis=1) - expected)
    long = table["setting"] >= 20
    return [
        at_most(
            "L ≥ 20: largest gap of the median alignment to theory's",
            gaps[long].max(),
            0.03,
            "the noise of SGD, and for softmax order 1/L",
            source=source,
        ),
        about(
            "longest prompts: norm over theory's, mean over runs",
            table["norm_ratio"][-1],
            1.0,
            0.1,
            "the noise of SGD, and for softmax order 1/L",
        ),
    ]
