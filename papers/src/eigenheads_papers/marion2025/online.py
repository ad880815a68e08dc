"""Figure 4: online stochastic gradient descent with fresh prompts at every step."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from eigenheads.datasets import SingleLocation
from eigenheads.extend import FloatArray, weighing
from eigenheads.models import simulate_location
from eigenheads.theory import (
    LocationLandscape,
    location_band,
    location_baselines,
    location_descent,
    location_mean_dynamics,
)
from eigenheads_papers._claims import Claim, at_least, at_most
from eigenheads_papers._core import (
    Boundary,
    Cells,
    Experiment,
    Run,
    Table,
    drawn_seed,
    parameter,
)
from eigenheads_papers.marion2025._paths import (
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

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Steps of the mean dynamics and of descent without noise, in steps of online SGD.
_MEAN_SHARE, _DESCENT_SHARE = 1.8, 0.1
# Records at which the band is computed.
_N_BANDS = 20
# Up to this step runs from random starts diffuse, which no mean path describes.
_ESCAPE_STEPS = 6000


@dataclass(frozen=True, kw_only=True)
class Online(Descent):
    """Online stochastic gradient descent with fresh prompts; the paper's figure 4."""

    d: int = parameter(80, "dimension of the tokens")
    inverse_temperature: float = parameter(2.0, "inverse temperature λ of the head")
    decay: float = parameter(1e-4, "decay rate of the inverse temperature")
    step_size: float = parameter(1e-3, "step size")
    n_steps: int = parameter(200_000, "training steps")
    record_every: int = parameter(500, "steps between records")
    batch_size: int = parameter(5, "samples per gradient step")
    noise: float = parameter(0.1, "standard deviation of the noise of the target")


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
    # Theory starts where the runs do, so that no gap is due to other starts.
    start = np.stack([paths[name][:, 0] for name in ORDER], axis=-1)
    with weighing(_MEAN_SHARE):
        mean = location_mean_dynamics(
            law,
            start,
            inverse_temperature=inverse_temperatures(params),
            step_size=params.step_size,
            batch_size=params.batch_size,
            n_steps=params.n_steps,
            record_every=params.record_every,
        )
    with weighing(_DESCENT_SHARE):
        plain = descend_from(start, params)
    theory = location_table(params, mean)
    overlay = ("kappa", "nu", "excess_risk")
    return {
        **location_table(params, paths),
        **{f"theory_{name}": theory[name] for name in overlay},
        **{f"plain_{name}": plain[name] for name in ("kappa", "nu")},
        **_band(params, law, theory),
    }


def _band(params: Online, law: SingleLocation, theory: Table) -> dict[str, FloatArray]:
    """Return theory's distance to the manifold at some records after the escape."""
    late = np.flatnonzero(theory["steps"] >= min(_ESCAPE_STEPS, params.n_steps // 2))
    chosen = np.unique(late[np.linspace(0, len(late) - 1, _N_BANDS).astype(int)])
    # Runs end near (1, 1) or near (−1, −1), which is the same predictor; without
    # absolute values they would cancel in the mean.
    kappa, nu = (
        np.abs(theory[name][:, chosen]).mean(axis=0) for name in ("kappa", "nu")
    )
    deviations = location_band(
        law,
        kappa,
        nu,
        inverse_temperature=theory["inverse_temperature"][chosen],
        step_size=params.step_size,
        batch_size=params.batch_size,
    )
    return {
        "band_steps": theory["steps"][chosen],
        "band_distance": np.linalg.norm(deviations, axis=-1),
    }


def _work(params: Online) -> float:
    """Return the steps over all runs: the simulation's and the theory's."""
    return (1 + _MEAN_SHARE + _DESCENT_SHARE) * params.n_runs * params.n_steps


def check(run: Run[Online]) -> list[Claim]:
    """Return the claims of the figure."""
    table = run.table
    gap = np.abs(table["excess_risk"] - table["theory_excess_risk"]).mean(axis=0)
    # The first half contains the escape from random starts, which no mean path
    # describes.
    late = len(gap) // 2
    return [
        at_least(
            "the worst run's overlap with k* and v* at the end",
            weakest_overlap(table).min(),
            0.98,
            "the noise floor of SGD: 1 − ν ≈ 0.002, ten times that",
            source="marion2025, Figure 4",
            own_setting=True,
        ),
        at_most(
            "the worst run's risk above the oracle's, in null risks",
            risk_above_oracle(table).max(),
            0.05,
            "the noise floor of SGD: about 0.01 in the worst of 30 runs",
            source="marion2025, Figure 4",
            own_setting=True,
        ),
        at_most(
            "largest final distance to the manifold",
            distance_to_manifold(table)[:, -1].max(),
            0.1,
            "the noise floor of SGD: about 0.02 in the worst of 30 runs",
            source="marion2025, Figure 4",
            own_setting=True,
        ),
        at_most(
            "second half: largest mean gap to theory's risk, in null risks",
            gap[late:].max() / table["null_excess"][0],
            0.05,
            "the noise floor of SGD, as above",
            source="ours: mean dynamics from the same starts, noise included",
        ),
        *(
            at_most(
                f"mean gap of |{symbol}| to theory over the run",
                _mean_gap(table, "theory", name),
                0.02,
                "0.012 for the mean of many runs, and the scatter of thirty",
                source="ours: mean dynamics from the same starts, noise included",
            )
            for symbol, name in (("κ", "kappa"), ("ν", "nu"))
        ),
        at_least(
            "descent without noise: mean gap of |κ| over that with noise",
            _mean_gap(table, "plain", "kappa") / _mean_gap(table, "theory", "kappa"),
            2.0,
            "about 14 for 60 starts; few runs scatter more than theory is off",
            source="ours: the noise of the gradients slows learning",
        ),
    ]


def _mean_gap(table: Table, theory: str, name: str) -> float:
    """Return the mean over records of the gap between the means over runs."""
    means = [np.abs(table[key]).mean(axis=0) for key in (name, f"{theory}_{name}")]
    return float(np.abs(means[0] - means[1]).mean())


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
    landscape = LocationLandscape(
        params.task,
        inverse_temperature=inverse_temperatures(params)(params.n_steps),
    )
    # The law of `task` has no noise on the targets, so this is the excess risk.
    risk = landscape.risk(**last)
    off = last["theta"] ** 2 + last["eta"] ** 2 + last["rho"] ** 2
    return {
        "kappa_squared": last["kappa"] ** 2,
        "nu_squared": last["nu"] ** 2,
        "excess_risk": float(risk / location_baselines(params.task).null),
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
        params.task,
        np.array([[small, small, 0.0, 0.0, 0.0]]),
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
    # A point of these lines costs a whole descent, so they are computed at the points
    # of the grid only.
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
            "Projected stochastic gradient descent, five fresh prompts per step, noise "
            "0.1 on the targets, λ = 2/(1 + 1e-4 t). Simulated with the exact engine: "
            "the law of the five order parameters, without a vector of dimension d. "
            "Dashed: the mean dynamics of theory from the same 30 starts, with the "
            "noise of the gradients; thin: population descent, without noise. Noise "
            "slows κ and ν down. In the first 5 000 steps the runs diffuse away from "
            "their random starts, which no mean path describes. Dotted, right: the "
            "stationary spread around the manifold that theory predicts. The risk of a "
            "record is that of its state at the inverse temperature of the next step."
        ),
        presets={"smoke": replace(_PAPER, n_runs=4), "demo": _PAPER, "paper": _PAPER},
        simulate=simulate,
        check=check,
        draw=draw,
        work=_work,
        cells=cells,
    ),
)
