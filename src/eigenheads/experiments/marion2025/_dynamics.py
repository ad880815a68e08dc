"""What all dynamics figures of the paper share: settings, tables, common claims."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from eigenheads._parallel import weighing
from eigenheads._rng import drawn_seed
from eigenheads._trajectories import Trajectories
from eigenheads._typing import FloatArray
from eigenheads.datasets import SingleLocation
from eigenheads.dynamics import location_start, simulate_location
from eigenheads.experiments._core import Table
from eigenheads.theory import (
    location_descent,
    location_linear_risk,
    location_null_risk,
    location_oracle_risk,
    location_risk,
)

# A step of population descent takes this share of a step of online SGD.
_THEORY_SHARE = 0.15
ORDER = ("kappa", "nu", "theta", "eta", "rho")


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Population projected gradient descent; defaults are the paper's.

    The sharpness at update t is ``inverse_temperature / (1 + decay * t)``.
    """

    d: int = 400
    n_tokens: int = 10
    gamma: float = math.sqrt(0.5)
    inverse_temperature: float = 0.1
    decay: float = 0.0
    step_size: float = 4e-3
    n_steps: int = 20_000
    record_every: int = 200
    n_runs: int = 30
    on_manifold: bool = False


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


def sharpness(params: Descent) -> Callable[[int], float]:
    """Return the schedule of the inverse temperature."""
    start, decay = params.inverse_temperature, params.decay
    return lambda step: start / (1 + decay * step)


def descent_work(params: Descent) -> float:
    """Return the steps over all runs."""
    return float(params.n_runs * params.n_steps)


def online_work(params: Online) -> float:
    """Return the steps over all runs: the simulation's and the theory's."""
    return (1 + _THEORY_SHARE) * params.n_runs * params.n_steps


def simulate_descent(params: Descent, rng: np.random.Generator) -> Table:
    """Descend the population risk from random starts."""
    start = location_start(
        params.d,
        n_runs=params.n_runs,
        seed=drawn_seed(rng),
        on_manifold=params.on_manifold,
    )
    return location_table(params, descend_from(start, params))


def descend_from(start: FloatArray, params: Descent) -> Trajectories:
    """Descend the population risk from given order parameters."""
    return location_descent(
        start,
        d=params.d,
        n_tokens=params.n_tokens,
        gamma=params.gamma,
        inverse_temperature=sharpness(params),
        step_size=params.step_size,
        n_steps=params.n_steps,
        record_every=params.record_every,
    )


def simulate_online(params: Online, rng: np.random.Generator) -> Table:
    """Run online SGD with the exact engine, and theory from the same starts."""
    law = SingleLocation(params.d, params.n_tokens, params.gamma, params.noise)
    paths = simulate_location(
        law,
        inverse_temperature=sharpness(params),
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


def location_table(params: Descent, paths: Trajectories) -> dict[str, FloatArray]:
    """Return order parameters, excess risk and baselines, record by record.

    The risk of a record is that of its own state at the sharpness of the next update.
    """
    task: dict[str, Any] = {"n_tokens": params.n_tokens, "gamma": params.gamma}
    steps = paths.steps.astype(np.float64)
    inverse_temperature = np.array([sharpness(params)(int(step)) for step in steps])
    head: dict[str, Any] = {
        "d": params.d,
        "inverse_temperature": inverse_temperature,
        **task,
    }
    return {
        "steps": steps,
        "inverse_temperature": inverse_temperature,
        **{name: paths[name] for name in ORDER},
        "excess_risk": location_risk(*(paths[name] for name in ORDER), **head),
        "oracle_excess": np.asarray(location_oracle_risk(**head)),
        "linear_excess": np.array([location_linear_risk(**task)]),
        "null_excess": np.array([location_null_risk(gamma=params.gamma)]),
    }


def distance_to_manifold(table: Mapping[str, FloatArray]) -> FloatArray:
    """Return √(θ² + η² + ρ²)."""
    return np.sqrt(table["theta"] ** 2 + table["eta"] ** 2 + table["rho"] ** 2)


def weakest_overlap(table: Mapping[str, FloatArray]) -> FloatArray:
    """Return the smaller of |κ| and |ν| at the end of each run."""
    overlaps = np.abs([table["kappa"][:, -1], table["nu"][:, -1]])
    smallest: FloatArray = overlaps.min(axis=0)
    return smallest


def largest(values: FloatArray) -> float:
    """Return the largest value; NaN, which meets no claim, if there is none."""
    return float(np.max(values)) if np.size(values) else math.nan


def risk_above_oracle(table: Mapping[str, FloatArray]) -> FloatArray:
    """Return final excess risk over the oracle's, in units of the null risk."""
    gap = table["excess_risk"][:, -1] - table["oracle_excess"][-1]
    relative: FloatArray = gap / table["null_excess"][0]
    return relative
