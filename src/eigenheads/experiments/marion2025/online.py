"""Figure 4: online stochastic gradient descent with fresh prompts at every step."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from eigenheads._parallel import weighing
from eigenheads._rng import drawn_seed
from eigenheads.datasets import SingleLocation
from eigenheads.dynamics import simulate_location
from eigenheads.experiments._claims import Claim, at_least, at_most
from eigenheads.experiments._core import Boundary, Cells, Experiment, Run, Table
from eigenheads.experiments.marion2025._paths import (
    ORDER,
    Descent,
    descend_from,
    distance_to_manifold,
    draw_panels,
    inverse_temperatures,
    location_table,
    risk_above_oracle,
    weakest_overlap,
)
from eigenheads.theory import location_descent, location_null_risk, location_risk

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A step of population descent takes this share of a step of online SGD.
_THEORY_SHARE = 0.15


@dataclass(frozen=True, kw_only=True)
class Online(Descent):
    """Online stochastic gradient descent with fresh prompts; the paper's figure 4."""

    d: int = 80
    inverse_temperature: float = 2.0
    decay: float = 1e-4
    step_size: float = 1e-3
    n_steps: int = 200_000
    record_every: int = 500
    batch_size: int = 5
    noise: float = 0.1


def simulate(params: Online, rng: np.random.Generator) -> Table:
    """Run online SGD with the exact engine, and theory from the same starts."""
    law = SingleLocation(params.d, params.n_tokens, params.gamma, params.noise)
    paths = simulate_location(
        law,
        inverse_temperature=inverse_temperatures(params),
        step_size=params.step_size,
        batch_size=params.batch_size,
        n_steps=params.n_steps,
        n_runs=params.n_runs,
        record_every=params.record_every,
        seed=drawn_seed(rng),
    )
    start = np.stack([paths[name][:, 0] for name in ORDER], axis=-1)
    with weighing(_THEORY_SHARE):
        theory = location_table(params, descend_from(start, params))
    overlay = ("kappa", "nu", "excess_risk")
    return {
        **location_table(params, paths),
        **{f"theory_{name}": theory[name] for name in overlay},
    }


def work(params: Online) -> float:
    """Return the steps over all runs: the simulation's and the theory's."""
    return (1 + _THEORY_SHARE) * params.n_runs * params.n_steps


def check(run: Run[Online]) -> list[Claim]:
    """Return the claims of the figure."""
    table = run.table
    gap = np.abs(table["excess_risk"] - table["theory_excess_risk"]).mean(axis=0)
    late = len(gap) // 2
    return [
        at_least(
            "the worst run's overlap with k* and v* at the end",
            weakest_overlap(table).min(),
            0.98,
            "the noise floor of SGD: 1 − ν ≈ 0.002, ten times that",
            source="marion2025, Figure 4",
        ),
        at_most(
            "the worst run's risk above the oracle's, in null risks",
            risk_above_oracle(table).max(),
            0.05,
            "the noise floor of SGD: about 0.01 in the worst of 30 runs",
            source="marion2025, Figure 4",
        ),
        at_most(
            "largest final distance to the manifold",
            distance_to_manifold(table)[:, -1].max(),
            0.1,
            "the noise floor of SGD: about 0.02 in the worst of 30 runs",
            source="marion2025, Figure 4",
        ),
        at_most(
            "second half: largest mean gap to theory's risk, in null risks",
            gap[late:].max() / table["null_excess"][0],
            0.05,
            "the noise floor of SGD, as above",
            source="ours: theory from the same starts, without noise",
        ),
    ]


def draw(figure: "Figure", run: Run[Online]) -> None:
    """Draw the four panels with theory dashed on top."""
    draw_panels(figure, run.table)


def run_online(params: Online, rng: np.random.Generator) -> dict[str, float]:
    """Return squared overlaps and excess risk at the end of one run.

    The risk is that of the last state at the last inverse temperature, above the
    noise, in units of the risk of predicting zero.
    """
    paths = simulate_location(
        SingleLocation(params.d, params.n_tokens, params.gamma, params.noise),
        batch_size=params.batch_size,
        n_runs=1,
        seed=drawn_seed(rng),
        **_schedule(params),
    )
    last = {name: float(paths.final(name)[0]) for name in ORDER}
    risk = location_risk(
        **last,
        d=params.d,
        n_tokens=params.n_tokens,
        gamma=params.gamma,
        inverse_temperature=inverse_temperatures(params)(params.n_steps),
    )
    off = last["theta"] ** 2 + last["eta"] ** 2 + last["rho"] ** 2
    return {
        "kappa_squared": last["kappa"] ** 2,
        "nu_squared": last["nu"] ** 2,
        "excess_risk": float(risk / location_null_risk(gamma=params.gamma)),
        "distance_to_manifold": math.sqrt(off),
    }


def _schedule(params: Online) -> dict[str, Any]:
    return {
        "inverse_temperature": inverse_temperatures(params),
        "step_size": params.step_size,
        "n_steps": params.n_steps,
        "record_every": params.n_steps,
    }


def descended(params: Online, name: str) -> float:
    """Return theory's squared overlap at the end, less one half.

    Population descent, which has no noise, from overlaps of the size 1/√d that random
    starts have.
    """
    small = 1 / math.sqrt(params.d)
    paths = location_descent(
        np.array([[small, small, 0.0, 0.0, 0.0]]),
        d=params.d,
        n_tokens=params.n_tokens,
        gamma=params.gamma,
        **_schedule(params),
    )
    return float(paths.final(name)[0]) ** 2 - 0.5


def _kappa(params: Online) -> float:
    return descended(params, "kappa")


def _nu(params: Online) -> float:
    return descended(params, "nu")


_PAPER = Online()

cells = Cells(
    # One run of the figure's setting.
    presets={
        "smoke": replace(_PAPER, n_runs=1, n_steps=20_000),
        "demo": replace(_PAPER, n_runs=1),
        "paper": replace(_PAPER, n_runs=1),
    },
    run=run_online,
    shows=("kappa_squared", "nu_squared", "excess_risk"),
    boundaries={
        "kappa_squared": Boundary(
            label="descent without noise: κ² = 1/2", distance=_kappa, between=False
        ),
        "nu_squared": Boundary(
            label="descent without noise: ν² = 1/2", distance=_nu, between=False
        ),
    },
)

experiments = (
    Experiment(
        key="marion2025/fig4",
        title="Online SGD with fresh prompts recovers both directions in every run",
        source="Figure 4",
        about=(
            "Projected stochastic gradient descent, five fresh prompts a step, noise "
            "0.1 on the targets, λ = 2/(1 + 1e-4 t). Simulated with the exact engine: "
            "the law of the five order parameters, without a vector of dimension d. "
            "Dashed: population descent of theory from the same 30 starts, which "
            "leaves out the noise of the gradients: noise slows κ and ν down at first. "
            "A record's risk is that of the state after the step at the sharpness of "
            "the next one."
        ),
        presets={"smoke": replace(_PAPER, n_runs=4), "demo": _PAPER, "paper": _PAPER},
        simulate=simulate,
        check=check,
        draw=draw,
        work=work,
        cells=cells,
    ),
)
