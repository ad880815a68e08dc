"""Recovery against the number of nuisance tokens, up to 10 000."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from eigenheads._plotting._signal import draw_signal_sweep
from eigenheads._rng import drawn_seed
from eigenheads.datasets import SignalTokens
from eigenheads.dynamics import simulate_signal
from eigenheads.experiments._claims import Claim
from eigenheads.experiments._core import Experiment, Run, Table
from eigenheads.experiments.truong2026._runs import CONSTANTS, RULE, Setting, setting
from eigenheads.experiments.truong2026._sweep import (
    simulate_sweep,
    sweep_claims,
    sweep_work,
)
from eigenheads.theory import random_alignment

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Params:
    """The paper's largest count and its strength; the rest is ours."""

    dimensions: tuple[int, ...] = (100, 10**6)
    n_informative: int = 100
    counts: tuple[int, ...] = (1000, 2000, 5000, 10_000)
    strength: float = 0.25
    n_runs: int = 30
    n_controls: int = 30


def settings(params: Params) -> dict[int, list[Setting]]:
    """Return one setting a count in each dimension."""
    return {
        d: [
            setting(d, params.n_informative, count, params.strength, params.n_runs)
            for count in params.counts
        ]
        for d in params.dimensions
    }


def control(params: Params) -> Setting:
    """Return the first setting with its informative tokens replaced by noise."""
    one = settings(params)[params.dimensions[0]][0]
    law = SignalTokens(
        one.law.d,
        0,
        one.law.n_tokens,
        0.0,
        inverse_temperature=one.law.inverse_temperature,
    )
    return replace(one, law=law, n_runs=params.n_controls)


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Run every count in every dimension, and a control without a signal."""
    table = simulate_sweep(params.counts, settings(params), rng)
    one = control(params)
    paths = simulate_signal(
        one.law,
        step_size=one.steps,
        n_steps=one.steps.n_steps,
        n_runs=one.n_runs,
        record_every=one.steps.n_steps,
        seed=drawn_seed(rng),
    )
    return {**table, "control": paths.final("alignment")}


def check(run: Run[Params]) -> list[Claim]:
    """Return the claims of both dimensions, and the control's."""
    params, table = run.params, run.table
    hardest = int(np.argmax(params.counts))
    claims = []
    for d in params.dimensions:
        claims += sweep_claims(
            d,
            table,
            hardest=hardest,
            what=f"{params.counts[hardest]} nuisance tokens",
            source="truong2026: recovery with 10 000 nuisance tokens",
        )
    median = random_alignment(params.dimensions[0])
    return [
        *claims,
        Claim(
            statement="without informative tokens, same steps: median final alignment",
            source="ours: a control",
            relation="≈",
            expected=median,
            measured=float(np.median(np.abs(table["control"]))),
            tolerance=2.5 * median,
            reason="a query that finds nothing stays uniform on the sphere; the median "
            "of a few of them",
        ),
    ]


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw the final errors and the steps."""
    params, table = run.params, run.table
    draw_signal_sweep(figure, table, params.dimensions, label="nuisance tokens")


_PAPER = Params()

experiments = (
    Experiment(
        key="truong2026/nuisance",
        title="Recovery holds up to 10 000 nuisance tokens",
        source="Recovery with many nuisance tokens",
        about=(
            CONSTANTS + "Final error against the number of nuisance tokens beside 100 "
            "informative ones, at d = 100 and d = 10⁶; small points are runs. "
            + RULE
            + " "
            "More nuisance tokens make the escape slower but the gradients less noisy. "
            "A control without informative tokens, with the same steps, finds nothing."
        ),
        presets={
            "smoke": replace(
                _PAPER, counts=(300, 1000), strength=0.5, n_runs=6, n_controls=12
            ),
            "demo": replace(
                _PAPER, counts=(1000, 3000, 10_000), n_runs=4, n_controls=4
            ),
            "paper": _PAPER,
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=lambda params: sweep_work(settings(params)) + control(params).work,
        size=(9.0, 4.0),
    ),
)
