"""One run of online SGD at one point of parameters, for sweeps."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from eigenheads._rng import drawn_seed
from eigenheads.datasets import SingleLocation
from eigenheads.dynamics import simulate_location
from eigenheads.experiments._core import Boundary, Cells
from eigenheads.experiments.marion2025._dynamics import ORDER
from eigenheads.theory import location_descent, location_null_risk, location_risk


@dataclass(frozen=True, kw_only=True)
class OnlineRun:
    """Online SGD with fresh prompts; defaults are the paper's figure 4.

    The sharpness at update t is ``inverse_temperature / (1 + decay * t)``.
    """

    d: int = 80
    n_tokens: int = 10
    gamma: float = math.sqrt(0.5)
    noise: float = 0.1
    inverse_temperature: float = 2.0
    decay: float = 1e-4
    step_size: float = 1e-3
    batch_size: int = 5
    n_steps: int = 200_000

    def sharpness(self, step: int) -> float:
        """Return the inverse temperature at an update."""
        return self.inverse_temperature / (1 + self.decay * step)


def run_online(params: OnlineRun, rng: np.random.Generator) -> dict[str, float]:
    """Return squared overlaps and excess risk at the end of one run.

    The risk is that of the last state at the last sharpness, above the noise, in
    units of the risk of predicting zero.
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
        inverse_temperature=params.sharpness(params.n_steps),
    )
    off = last["theta"] ** 2 + last["eta"] ** 2 + last["rho"] ** 2
    return {
        "kappa_squared": last["kappa"] ** 2,
        "nu_squared": last["nu"] ** 2,
        "excess_risk": float(risk / location_null_risk(gamma=params.gamma)),
        "distance_to_manifold": math.sqrt(off),
    }


def _schedule(params: OnlineRun) -> dict[str, Any]:
    return {
        "inverse_temperature": params.sharpness,
        "step_size": params.step_size,
        "n_steps": params.n_steps,
        "record_every": params.n_steps,
    }


def descended(params: OnlineRun, name: str) -> float:
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


def _kappa(params: OnlineRun) -> float:
    return descended(params, "kappa")


def _nu(params: OnlineRun) -> float:
    return descended(params, "nu")


cells = Cells(
    presets={
        "smoke": replace(OnlineRun(), n_steps=20_000),
        "demo": OnlineRun(),
        "paper": OnlineRun(),
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
