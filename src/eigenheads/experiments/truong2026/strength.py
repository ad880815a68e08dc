"""Recovery against the strength of the signal, down to 0.25."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from eigenheads._plotting._signal import draw_signal_sweep
from eigenheads.experiments._claims import Claim
from eigenheads.experiments._core import Experiment, Run, Table
from eigenheads.experiments.truong2026._runs import CONSTANTS, RULE, Setting, setting
from eigenheads.experiments.truong2026._sweep import (
    simulate_sweep,
    sweep_claims,
    sweep_work,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Params:
    """The paper's weakest signal and its largest count; the rest is ours."""

    dimensions: tuple[int, ...] = (100, 10**6)
    n_informative: int = 100
    n_nuisance: int = 10_000
    strengths: tuple[float, ...] = (0.25, 0.35, 0.5, 0.7, 1.0)
    n_runs: int = 30


def settings(params: Params) -> dict[int, list[Setting]]:
    """Return one setting a strength in each dimension."""
    return {
        d: [
            setting(d, params.n_informative, params.n_nuisance, theta, params.n_runs)
            for theta in params.strengths
        ]
        for d in params.dimensions
    }


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Run every strength in every dimension."""
    return simulate_sweep(params.strengths, settings(params), rng)


def check(run: Run[Params]) -> list[Claim]:
    """Return the claims of both dimensions."""
    params, table = run.params, run.table
    hardest = int(np.argmin(params.strengths))
    claims = []
    for d in params.dimensions:
        claims += sweep_claims(
            d,
            table,
            hardest=hardest,
            what=f"θ = {params.strengths[hardest]}",
            source="truong2026: recovery at θ = 0.25",
        )
    return claims


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw the final errors and the steps."""
    params, table = run.params, run.table
    draw_signal_sweep(figure, table, params.dimensions, label="strength θ")


_PAPER = Params()

experiments = (
    Experiment(
        key="truong2026/strength",
        title="Recovery holds down to a strength of 0.25",
        source="Recovery with weak signals",
        about=(
            CONSTANTS + "Final error against the strength θ of the informative tokens "
            "±θ√d u + z, 100 of them in a prompt, at d = 100 and d = 10⁶; small points "
            "are runs. "
            + RULE
            + " A weaker signal takes more steps, and the rule says how "
            "many."
        ),
        presets={
            "smoke": replace(
                _PAPER, n_nuisance=1000, strengths=(0.35, 0.5, 1.0), n_runs=4
            ),
            "demo": replace(
                _PAPER, n_nuisance=2000, strengths=(0.25, 0.5, 1.0), n_runs=5
            ),
            "paper": _PAPER,
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=lambda params: sweep_work(settings(params)),
        size=(9.0, 4.0),
    ),
)
