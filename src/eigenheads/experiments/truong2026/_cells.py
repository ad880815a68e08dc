"""All methods on the same tokens, at one share and strength; the cells of sweeps."""

import math
from dataclasses import asdict, dataclass

import numpy as np

from eigenheads._rng import drawn_seed
from eigenheads.datasets import SignalTokens
from eigenheads.dynamics import simulate_signal
from eigenheads.experiments._core import Boundary, Cells
from eigenheads.experiments.truong2026._searches import (
    Whitened,
    pursue_kurtosis,
    pursue_negentropy,
    random_starts,
    search_with_head,
)
from eigenheads.theory import pooled_pca_threshold, signal_conditions, signal_steps

METHODS = ("head", "pca", "kurtosis", "fastica")


@dataclass(frozen=True, kw_only=True)
class Search:
    """Everything here is ours.

    All methods read the same ``n_prompts * n_tokens`` tokens; the head sees them in
    prompts. ``n_starts`` random starts each, the best by the method's own objective.
    """

    d: int = 64
    n_tokens: int = 125
    n_prompts: int = 128
    inverse_temperature: float = 0.4
    n_starts: int = 4
    n_passes: int = 40


@dataclass(frozen=True, kw_only=True)
class Point(Search):
    """One cell: the share of informative tokens and their strength θ."""

    share: float = 0.008
    strength: float = 0.5


def search(
    params: Search, share: float, theta: float, rng: np.random.Generator
) -> list[float]:
    """Draw the tokens of one repeat, and return each method's alignment."""
    n = params.n_prompts * params.n_tokens
    informative = max(1, round(share * n))
    bag = SignalTokens(params.d, informative, n - informative, theta)
    pooled = bag.sample(1, rng).tokens[0].astype(np.float32)
    prompts = pooled.reshape(params.n_prompts, params.n_tokens, params.d)
    starts = random_starts(params.d, params.n_starts, rng)
    head = search_with_head(
        prompts,
        starts,
        inverse_temperature=params.inverse_temperature,
        n_passes=params.n_passes,
    )
    whitened = Whitened(pooled)
    units = [
        whitened.direction(pursue(whitened.tokens, starts, n_passes=params.n_passes))
        for pursue in (pursue_kurtosis, pursue_negentropy)
    ]
    return [abs(float(unit[0])) for unit in (head, whitened.top, *units)]


def read_once(
    params: Search, share: float, theta: float, seed: int, *, n_runs: int
) -> float:
    """Return the median alignment of heads that read each prompt once, in order.

    Prompts of the exact engine have whole numbers of informative tokens; where a
    prompt would have less than one the cell stays empty.
    """
    informative = round(share * params.n_tokens)
    if informative < 1:
        return math.nan
    law = SignalTokens(
        params.d,
        informative,
        params.n_tokens - informative,
        theta,
        inverse_temperature=params.inverse_temperature,
    )
    paths = simulate_signal(
        law,
        step_size=signal_steps(**asdict(law), n_steps=params.n_prompts),
        n_steps=params.n_prompts,
        n_runs=n_runs,
        record_every=params.n_prompts,
        seed=seed,
        averaging=True,
    )
    return float(np.median(np.abs(paths.final("averaged_alignment"))))


def run_point(point: Point, rng: np.random.Generator) -> dict[str, float]:
    """Return the alignment of every method, and of a head that reads once."""
    found = search(point, point.share, point.strength, rng)
    once = read_once(point, point.share, point.strength, drawn_seed(rng), n_runs=1)
    return {**dict(zip(METHODS, found, strict=True)), "one_pass": once}


def above_pca_threshold(point: Point) -> float:
    """Return the logarithm of the strength over that from which PCA sees."""
    threshold = pooled_pca_threshold(
        fraction=point.share, d=point.d, n_samples=point.n_prompts * point.n_tokens
    )
    return math.log(point.strength / float(threshold))


def spare_prompts(point: Point) -> float:
    """Return the logarithm of the prompts over those that the escape takes."""
    conditions = signal_conditions(
        d=point.d,
        n_informative=point.share * point.n_tokens,
        n_nuisance=(1 - point.share) * point.n_tokens,
        strength=point.strength,
        inverse_temperature=point.inverse_temperature,
    )
    return math.log(point.n_prompts / conditions.escape_steps(point.d))


_PCA = Boundary(label="PCA's threshold", distance=above_pca_threshold)

cells = Cells(
    presets=dict.fromkeys(("smoke", "demo", "paper"), Point()),
    run=run_point,
    shows=("head", "pca", "one_pass"),
    boundaries={
        "head": _PCA,
        "pca": _PCA,
        "one_pass": Boundary(label="escape in one pass", distance=spare_prompts),
    },
)
