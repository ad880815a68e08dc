"""Strength of the signal that attention and pooling need, against the length."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtri

from eigenheads.extend import FloatArray, advance
from eigenheads.extend.drawing import BLUE, GREY, ORANGE
from eigenheads_papers._claims import Claim, about, at_most
from eigenheads_papers._core import Experiment, Run, Table, parameter

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Params:
    """Lengths, and the error at which the needed strength is read."""

    lengths: tuple[int, ...] = parameter(
        (10, 100, 1000, 10_000, 100_000), "numbers of tokens per prompt"
    )
    n_informative: int = parameter(1, "informative tokens per prompt")
    accepted_error: float = parameter(0.05, "share of errors at the needed strength")
    sharpnesses: tuple[float, ...] = parameter(
        (1.0, 2.0, 4.0, 8.0), "inverse temperatures to choose from"
    )
    n_samples: int = parameter(1000, "samples that estimate a risk")


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Return the strength that each classifier needs, with the query along the signal.

    Attention has q = τ ξ and w = ξ, with the best τ of a few; equal classes, and the
    threshold between them that errs least.
    """
    needed, pooled = [], []
    for length in params.lengths:
        sums = _noise_sums(params, length, rng)
        signal_noise = rng.standard_normal((params.n_samples, params.n_informative))
        # The first sum is at τ = 0: the plain mean.
        pooled.append(_needed_by_pooling(params, sums[0, 1], signal_noise))
        needed.append(_needed(params, sums[1:], signal_noise))
        advance(length)
    lengths = np.array(params.lengths, dtype=np.float64)
    quantile = -ndtri(params.accepted_error)
    return {
        "length": lengths,
        "attention": np.array(needed),
        "pooling": np.array(pooled),
        # The mean of L tokens: N(Rθ/L, 1/L) against N(0, 1/L).
        "pooling_theory": 2 * quantile * np.sqrt(lengths) / params.n_informative,
    }


def _noise_sums(params: Params, length: int, rng: np.random.Generator) -> FloatArray:
    """Return Σ e^{τχ} and Σ χ e^{τχ} of the noise tokens: (τ, two, class, sample)."""
    taus = np.array([0.0, *params.sharpnesses])
    sums = np.empty((len(taus), 2, 2, params.n_samples))
    n_noise = (length, length - params.n_informative)
    block = max(1, 2_000_000 // length)
    for label in (0, 1):
        for start in range(0, params.n_samples, block):
            stop = min(start + block, params.n_samples)
            scores = rng.standard_normal((stop - start, n_noise[label]))
            for index, tau in enumerate(taus):
                weights = np.exp(tau * scores)
                sums[index, 0, label, start:stop] = weights.sum(axis=1)
                sums[index, 1, label, start:stop] = np.einsum(
                    "ij,ij->i", weights, scores
                )
    return sums


def _needed(params: Params, sums: FloatArray, signal_noise: FloatArray) -> float:
    """Return the smallest strength of a grid at which some τ errs little enough."""
    for strength in np.arange(0.5, 30.0, 0.1):
        for index, tau in enumerate(params.sharpnesses):
            scores = signal_noise + strength
            weights = np.exp(tau * scores)
            total = sums[index, 0, 1] + weights.sum(axis=1)
            positive = (sums[index, 1, 1] + (weights * scores).sum(axis=1)) / total
            negative = sums[index, 1, 0] / sums[index, 0, 0]
            if _least_error(negative, positive) <= params.accepted_error:
                return float(strength)
    return math.inf


def _needed_by_pooling(
    params: Params, sums: FloatArray, signal_noise: FloatArray
) -> float:
    """Return the strength at which the mean token errs as often, by bisection."""
    negative, larger = sums
    low, high = 0.0, 20 * math.sqrt(max(params.lengths))
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        positive = larger + (signal_noise + middle).sum(axis=1)
        is_enough = _least_error(negative, positive) <= params.accepted_error
        low, high = (low, middle) if is_enough else (middle, high)
    return high


def _least_error(negative: FloatArray, positive: FloatArray) -> float:
    """Return the error of the best threshold, classes equally likely."""
    order = np.argsort(np.concatenate([negative, positive]))
    is_positive = order >= len(negative)
    missed = np.cumsum(is_positive) / len(positive)
    false = 1 - np.cumsum(~is_positive) / len(negative)
    return float(min(((missed + false) / 2).min(), 0.5))


def check(run: Run[Params]) -> list[Claim]:
    """Return how both needed strengths grow with the length."""
    table, lengths = run.table, run.table["length"]
    logs = np.log(lengths)
    rising = table["attention"] / logs
    ratio = table["pooling"] / table["pooling_theory"]
    slope = np.polyfit(logs, np.log(table["pooling"]), 1)[0]
    return [
        at_most(
            "attention: needed strength over log L, largest rise from one length to "
            "the next",
            np.diff(rising).max(),
            0.0,
            "order log L is enough if the ratio does not grow",
            source="barnfield2026, abstract",
            own_setting=True,
        ),
        at_most(
            "attention: needed strength less √(2 log L), largest",
            (table["attention"] - np.sqrt(2 * logs)).max(),
            2.5,
            "√(2 log L) is the largest of L noise scores; fixed before the run",
            source="ours: log L is an upper bound, √log L suffices",
        ),
        about(
            "pooling: exponent of the needed strength in L",
            slope,
            0.5,
            0.05,
            "the scatter of the samples; fixed before the run",
            source="barnfield2026, abstract",
            own_setting=True,
        ),
        about(
            "pooling: needed strength over theory's, farthest from 1",
            ratio[np.abs(ratio - 1).argmax()],
            1.0,
            0.15,
            "the scatter of the samples; fixed before the run",
            source="ours: the error is Φ(−θR/(2√L))",
        ),
        at_most(
            f"L = {lengths[-1]:,.0f}: strength that attention needs over pooling's",
            table["attention"][-1] / table["pooling"][-1],
            0.1,
            "log against √: at least ten times weaker; fixed before the run",
            source="barnfield2026, abstract",
            own_setting=True,
        ),
    ]


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw the needed strengths against the length."""
    table = run.table
    axes = figure.subplots()
    axes.plot(table["length"], table["pooling"], "o-", color=ORANGE, label="pooling")
    axes.plot(table["length"], table["attention"], "o-", color=BLUE, label="attention")
    axes.plot(table["length"], np.log(table["length"]), "--", color=GREY, label="log L")
    axes.plot(
        table["length"],
        np.sqrt(2 * np.log(table["length"])),
        ":",
        color=GREY,
        label="√(2 log L)",
    )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="L",
        ylabel=f"strength θ for an error of {run.params.accepted_error:g}",
    )
    axes.legend()


_PAPER = Params()
experiments = (
    Experiment(
        key="barnfield2026/strength",
        title="Attention needs a strength like √log L, pooling √L",
        source="the abstract's first result",
        about=(
            "One informative token of L, the query and the readout along the signal, "
            "the best of four sharpnesses and the best threshold: the strength at "
            "which 5 % of sequences are misclassified. Pooling likewise, and in closed "
            "form. Up to 100 000 tokens: this also says how strong a signal among "
            "10 000 nuisance tokens must be."
        ),
        presets={
            "smoke": replace(_PAPER, lengths=(10, 100, 1000), n_samples=600),
            "demo": replace(_PAPER, lengths=(10, 100, 1000, 10_000)),
            "paper": _PAPER,
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=lambda params: float(sum(params.lengths)),
        size=(6.5, 4.5),
    ),
)
