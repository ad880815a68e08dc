"""Settings, tables and panels that the dynamics figures share."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eigenheads.datasets import SingleLocation
from eigenheads.extend import FloatArray
from eigenheads.extend.drawing import BLUE, GREEN, GREY, INK, ORANGE, PURPLE
from eigenheads.models import Trajectories, location_start
from eigenheads.theory import (
    LocationLandscape,
    location_baselines,
    location_descent,
)
from eigenheads_papers._core import Table, drawn_seed, parameter
from eigenheads_papers._drawing import show_steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Distances below are rounding; a log axis needs a floor.
_FLOOR = 1e-17
# Runs end with |η| near 0 or near 1.
_SWAPPED = 0.9
ORDER = ("kappa", "nu", "theta", "eta", "rho")


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Population projected gradient descent; defaults are the paper's.

    The inverse temperature at update t is ``inverse_temperature / (1 + decay * t)``.
    """

    d: int = parameter(400, "dimension of the tokens")
    n_tokens: int = parameter(10, "tokens per sample or prompt")
    gamma: float = parameter(math.sqrt(0.5), "standard deviation of the deciding token")
    inverse_temperature: float = parameter(0.1, "inverse temperature λ of the head")
    decay: float = parameter(0.0, "decay rate of the inverse temperature")
    step_size: float = parameter(4e-3, "step size")
    n_steps: int = parameter(20_000, "training steps")
    record_every: int = parameter(200, "steps between records")
    n_runs: int = parameter(30, "independent runs")
    on_manifold: bool = parameter(False, "whether to start on the invariant manifold")

    @property
    def task(self) -> SingleLocation:
        """Law of the prompts without noise: its risk is the excess risk."""
        return SingleLocation(self.d, self.n_tokens, self.gamma)


def inverse_temperatures(params: Descent) -> Callable[[int], float]:
    """Return the schedule of the inverse temperature."""
    start, decay = params.inverse_temperature, params.decay
    return lambda step: start / (1 + decay * step)


def descent_work(params: Descent) -> float:
    """Return the steps over all runs."""
    return float(params.n_runs * params.n_steps)


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
        params.task,
        start,
        inverse_temperature=inverse_temperatures(params),
        step_size=params.step_size,
        n_steps=params.n_steps,
        record_every=params.record_every,
    )


def location_table(params: Descent, paths: Trajectories) -> dict[str, FloatArray]:
    """Return order parameters, excess risk and baselines, record by record.

    The risk of a record is that of its own state at the inverse temperature of the next
    update.
    """
    steps = paths.steps.astype(np.float64)
    inverse_temperature = np.array(
        [inverse_temperatures(params)(int(step)) for step in steps]
    )
    landscape = LocationLandscape(params.task, inverse_temperature=inverse_temperature)
    baselines = location_baselines(params.task)
    return {
        "steps": steps,
        "inverse_temperature": inverse_temperature,
        **{name: paths[name] for name in ORDER},
        "excess_risk": landscape.risk(*(paths[name] for name in ORDER)),
        "oracle_excess": landscape.oracle_risk(),
        "linear_excess": np.array([baselines.linear]),
        "null_excess": np.array([baselines.null]),
    }


def distance_to_manifold(table: Table) -> FloatArray:
    """Return √(θ² + η² + ρ²)."""
    return np.sqrt(table["theta"] ** 2 + table["eta"] ** 2 + table["rho"] ** 2)


def weakest_overlap(table: Table) -> FloatArray:
    """Return the smaller of |κ| and |ν| at the end of each run."""
    overlaps = np.abs([table["kappa"][:, -1], table["nu"][:, -1]])
    smallest: FloatArray = overlaps.min(axis=0)
    return smallest


def largest(values: FloatArray) -> float:
    """Return the largest value; NaN if there is none."""
    return float(np.max(values)) if np.size(values) else math.nan


def risk_above_oracle(table: Table) -> FloatArray:
    """Return final excess risk over the oracle's, in units of the null risk."""
    gap = table["excess_risk"][:, -1] - table["oracle_excess"][-1]
    relative: FloatArray = gap / table["null_excess"][0]
    return relative


def draw_panels(
    figure: "Figure", table: Table, *, run_by_run: bool = False, n_rows: int = 2
) -> NDArray[Any]:
    """Draw the paper's four panels and return all axes, `n_rows` rows of two.

    Curves are means over runs with bands from the 2.5 to the 97.5 percentile, or
    each run separately; theory is a dashed line if the table has it. Runs that
    end with key and value swapped are drawn one by one, beside the band.
    """
    axes: NDArray[Any] = figure.subplots(n_rows, 2)
    # A mean over runs that end at different predictors would describe neither, so the
    # swapped runs are kept apart.
    swapped = np.abs(table["eta"][:, -1]) > _SWAPPED
    _draw_excess_risk(axes[0, 0], table, _Runs(swapped, run_by_run))
    _draw_overlaps(axes[0, 1], table, _Runs(swapped, run_by_run))
    _draw_paths(axes[1, 0], table, swapped)
    _draw_distance(axes[1, 1], table, _Runs(swapped, run_by_run))
    for panel in (axes[0, 0], axes[0, 1], axes[1, 1]):
        show_steps(panel)
    return axes


def _draw_excess_risk(axes: "Axes", table: Table, runs: "_Runs") -> None:
    """Draw excess risk against steps, with the oracle and the baselines."""
    steps = table["steps"]
    runs.draw(axes, steps, table["excess_risk"], "predictor", BLUE)
    if "theory_excess_risk" in table:
        mean = table["theory_excess_risk"].mean(axis=0)
        axes.plot(steps, mean, "--", color=INK, label="theory (mean)")
    axes.plot(steps, table["oracle_excess"], ":", color=GREEN, label="oracle (k*, v*)")
    for name, label in (("linear_excess", "best linear"), ("null_excess", "null")):
        style = "-." if name == "linear_excess" else "-"
        level = float(table[name][0])
        axes.axhline(level, color=GREY, linestyle=style, linewidth=1, label=label)
    axes.set(title="Excess risk", yscale="log")
    axes.legend()


def _draw_overlaps(axes: "Axes", table: Table, runs: "_Runs") -> None:
    """Draw |κ| and |ν| against steps."""
    steps = table["steps"]
    for name, color in (("kappa", BLUE), ("nu", ORANGE)):
        label = "|κ| = |k·k*|" if name == "kappa" else "|ν| = |v·v*|"
        runs.draw(axes, steps, np.abs(table[name]), label, color)
        if f"theory_{name}" in table:
            mean = np.abs(table[f"theory_{name}"]).mean(axis=0)
            axes.plot(steps, mean, "--", color=INK, linewidth=1.2)
        if f"plain_{name}" in table:
            mean = np.abs(table[f"plain_{name}"]).mean(axis=0)
            axes.plot(steps, mean, color=GREY, linewidth=0.8)
    if "theory_kappa" in table:
        axes.plot([], [], "--", color=INK, linewidth=1.2, label="theory (means)")
    if "plain_kappa" in table:
        axes.plot([], [], color=GREY, linewidth=0.8, label="without noise")
    axes.set(title="Overlap with the planted directions")
    axes.set_ylim(-0.03, 1.05)
    axes.legend(loc="center right")


def _draw_paths(axes: "Axes", table: Table, swapped: NDArray[np.bool_]) -> None:
    """Draw every run in the (κ, ν) square."""
    axes.plot(table["kappa"].T, table["nu"].T, color=BLUE, linewidth=0.7, alpha=0.6)
    if "theory_kappa" in table:
        theory = table["theory_kappa"].T, table["theory_nu"].T
        axes.plot(*theory, "--", color=INK, linewidth=0.6, alpha=0.6)
    axes.plot(table["kappa"][:, 0], table["nu"][:, 0], ".", color=GREY, label="start")
    for chosen, color, label in (
        (~swapped, ORANGE, f"end ({(~swapped).sum()} runs)"),
        (swapped, PURPLE, f"end, swapped ({swapped.sum()} runs)"),
    ):
        if chosen.any():
            final = table["kappa"][chosen, -1], table["nu"][chosen, -1]
            axes.plot(*final, "o", markersize=4, color=color, label=label)
    axes.set(title="Paths", xlabel="κ", ylabel="ν", xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))
    axes.set_aspect("equal")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _draw_distance(axes: "Axes", table: Table, runs: "_Runs") -> None:
    """Draw the distance to the invariant manifold on a log axis."""
    squares = sum(table[name] ** 2 for name in ("theta", "eta", "rho"))
    distance = np.maximum(np.sqrt(squares), _FLOOR)
    runs.draw(axes, table["steps"], distance, "√(θ²+η²+ρ²)", BLUE)
    if "band_steps" in table:
        band = table["band_steps"], table["band_distance"]
        axes.plot(*band, ":", color=INK, label="theory (rms)")
    axes.set(title="Distance to the manifold")
    # If no run leaves the manifold, all values are the floor, for which a logarithmic
    # axis has no useful range.
    if distance.max() > _FLOOR:
        axes.set_yscale("log")
    else:
        axes.set_ylim(-1, 1)
    axes.legend()


class _Runs:
    """The runs of a panel, drawn as a band or one by one."""

    def __init__(self, swapped: NDArray[np.bool_], run_by_run: bool) -> None:
        self.one_by_one = np.ones_like(swapped) if run_by_run else swapped
        self.swapped = swapped

    def draw(
        self,
        axes: "Axes",
        steps: NDArray[np.float64],
        curves: NDArray[np.float64],
        label: str,
        color: str,
    ) -> None:
        """Draw curves of shape (n_runs, n_records)."""
        band = curves[~self.one_by_one]
        if len(band):
            low, high = np.percentile(band, [2.5, 97.5], axis=0)
            axes.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)
            axes.plot(steps, band.mean(axis=0), color=color)
        for run in np.flatnonzero(self.one_by_one):
            style = ":" if self.swapped[run] else "-"
            axes.plot(steps, curves[run], style, color=color, linewidth=0.7, alpha=0.7)
        # An empty curve gives the legend one entry for any number of runs.
        axes.plot([], [], color=color, label=label)
