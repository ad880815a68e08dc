"""Ours: one learning curve at d = 10², 10⁴, 10⁶ and 10⁹."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from eigenheads.datasets import SingleLocation
from eigenheads.extend import FloatArray
from eigenheads.extend.drawing import COLORS, GREY, INK
from eigenheads.models import Trajectories, simulate_location
from eigenheads.theory import (
    LocationLandscape,
    location_descent,
    location_mean_dynamics,
)
from eigenheads_papers._claims import Claim, about, at_most
from eigenheads_papers._core import Experiment, Run, Table, drawn_seed, parameter
from eigenheads_papers.marion2025._paths import ORDER

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Params:
    r"""Everything here is ours: the paper stays at d = 80 and d = 400.

    λ = `sharpness`/√d keeps λ√d fixed, so that on the manifold the risk tends to one
    function of (κ, ν). The step is `step`/d. Two things ask for that: across the
    manifold the curvature of the risk grows like d, and so does the squared length of
    the noise of one gradient. A unit of time is then d/`step` updates.
    """

    dimensions: tuple[int, ...] = parameter(
        (10**2, 10**4, 10**6, 10**9), "dimensions of the tokens"
    )
    n_tokens: int = parameter(10, "tokens per sample or prompt")
    gamma: float = parameter(math.sqrt(0.5), "standard deviation of the deciding token")
    sharpness: float = parameter(2.0, "inverse temperature before scaling by d")
    step: float = parameter(0.3, "step size before its scaling with the dimension")
    start: float = parameter(0.3, "size of weights or overlaps at the start")
    batch_size: int = parameter(5, "samples per gradient step")
    max_steps: int = parameter(200_000, "largest number of steps")
    max_time: float = parameter(6.0, "end of the time axis")
    n_records: int = parameter(100, "recorded points along training")
    n_runs: int = parameter(6, "independent runs")
    fast_start: float = parameter(0.2, "overlap at the start of the fast runs")
    fast_steps: int = parameter(60, "steps of the fast runs")


def n_steps(params: Params, d: int) -> int:
    """Return the updates at dimension d: `max_time`, or as many as we can afford."""
    steps = min(params.max_steps, round(params.max_time * d / params.step))
    # A multiple of the number of records puts the last record at the last update.
    return steps - steps % params.n_records


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Run online SGD and its mean dynamics at each dimension, from one start."""
    table: dict[str, FloatArray] = {}
    for d in params.dimensions:
        steps = n_steps(params, d)
        runs, theory, plain = _at_dimension(params, d, drawn_seed(rng), steps, 0.0)
        table[f"time_{d}"] = params.step / d * runs.steps
        for name in ("kappa", "nu"):
            table[f"{name}_{d}"] = runs[name]
            table[f"theory_{name}_{d}"] = theory[name][0]
        table[f"excess_{d}"] = _excess(params, d, runs)
        table[f"theory_excess_{d}"] = _excess(params, d, theory)[0]
        table[f"plain_excess_{d}"] = _excess(params, d, plain)[0]
        # The fast phase starts off the manifold and takes few updates in any dimension.
        runs, theory, _ = _at_dimension(
            params, d, drawn_seed(rng), params.fast_steps, params.fast_start
        )
        table[f"fast_theta_{d}"] = runs["theta"]
        table[f"theory_fast_theta_{d}"] = theory["theta"][0]
    table["fast_steps"] = runs.steps.astype(np.float64)
    return {**table, **_limit(params)}


def _limit(params: Params) -> dict[str, FloatArray]:
    """Return theory's curve at the largest dimension, by its flow on the manifold."""
    landscape = _landscape(params, max(params.dimensions))
    start = np.array([[params.start, params.start]])
    # The windows of large dimensions end at very small times, so the times are spaced
    # evenly in logarithm.
    times = np.geomspace(1e-8, params.max_time, 400)
    # Within the first interval of this grid the flow is a straight line.
    flow = landscape.flow(start, duration=params.max_time, n_records=6001)
    kappa, nu = (np.interp(times, flow.steps, flow[name][0]) for name in flow)
    return {
        "limit_time": times,
        "limit_kappa": kappa,
        "limit_nu": nu,
        "limit_excess": landscape.risk(kappa, nu),
    }


def _at_dimension(
    params: Params, d: int, seed: int, steps: int, theta: float
) -> tuple[Trajectories, Trajectories, Trajectories]:
    """Return runs, their mean dynamics and descent without noise, from one start."""
    start = np.array([[params.start, params.start, theta, 0.0, 0.0]])
    shared: dict[str, Any] = {
        "inverse_temperature": params.sharpness / math.sqrt(d),
        "step_size": params.step / d,
        "n_steps": steps,
        "record_every": max(steps // params.n_records, 1),
    }
    law = SingleLocation(d, params.n_tokens, params.gamma)
    runs = simulate_location(
        law,
        batch_size=params.batch_size,
        n_runs=params.n_runs,
        seed=seed,
        start=np.repeat(start, params.n_runs, axis=0),
        **shared,
    )
    mean = location_mean_dynamics(law, start, batch_size=params.batch_size, **shared)
    return runs, mean, location_descent(law, start, **shared)


def _landscape(params: Params, d: int) -> LocationLandscape:
    return LocationLandscape(
        SingleLocation(d, params.n_tokens, params.gamma),
        inverse_temperature=params.sharpness / math.sqrt(d),
    )


def _excess(params: Params, d: int, runs: Trajectories) -> FloatArray:
    return _landscape(params, d).risk(*(runs[name] for name in ORDER))


def check(run: Run[Params]) -> list[Claim]:
    """Return one check per dimension, and two across dimensions."""
    params, table = run.params, run.table
    claims = []
    for d in params.dimensions:
        gain = table[f"nu_{d}"][:, -1].mean() - params.start
        theory = table[f"theory_nu_{d}"][-1] - params.start
        claims.append(
            about(
                f"d = {d:.0e}: gain in ν at the end over theory's gain",
                gain / theory,
                1.0,
                0.02 + 0.8 / math.sqrt(d),
                "the scatter of a mean of six runs, 1/√d from run to run, and terms "
                "of second order in the noise",
            )
        )
    # In the smallest dimension the noise keeps θ from its path, so the two checks
    # across dimensions leave it out.
    large = [d for d in params.dimensions if d >= 10**4]
    fast = [
        np.abs(table[f"fast_theta_{d}"] - table[f"theory_fast_theta_{d}"]).max()
        for d in large
    ]
    claims.append(
        at_most(
            "d ≥ 1e4: largest gap of θ to theory in the fast phase, all runs",
            max(fast),
            0.02,
            "the noise of SGD, of order √(step/d) = 0.005 at d = 1e4, for the "
            "largest of six runs along 60 updates",
        )
    )
    claims.append(
        at_most(
            "d ≥ 1e4: largest gap of ν's gain to the one limiting curve, "
            "relative, at the end of each window",
            max(_gap_to_limit(params, table, d) for d in large),
            0.05,
            "1/√d at d = 1e4 and the noise of SGD, as above",
        )
    )
    return claims


def _gap_to_limit(params: Params, table: Table, d: int) -> float:
    """Return the relative gap of the last gain in ν to the curve of d → ∞."""
    time, gain = table[f"time_{d}"][-1], table[f"nu_{d}"][:, -1].mean() - params.start
    limit = np.interp(time, table["limit_time"], table["limit_nu"]) - params.start
    return float(abs(gain / limit - 1))


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw the fast phase, the gain in ν on logarithmic axes, and the risk."""
    table, dimensions, start = run.table, run.params.dimensions, run.params.start
    axes: Any = figure.subplots(1, 3)
    _draw_fast_phase(axes[0], table, dimensions)
    axes = axes[1:]
    markers = ("o", "s", "D", "^")
    limit = table["limit_nu"] - start
    axes[0].plot(table["limit_time"], limit, "--", color=INK, label="theory, d → ∞")
    for d, color, marker in zip(dimensions, COLORS, markers, strict=False):
        time, gain = table[f"time_{d}"], table[f"nu_{d}"].mean(axis=0) - start
        label = _power_of_ten(d)
        # Markers are even on the logarithmic axis; rounding can make early ones equal.
        shown = np.unique(np.geomspace(1, len(time) - 1, 12).astype(int))
        style = {"color": color, "marker": marker, "markersize": 4, "linestyle": ""}
        axes[0].plot(time[shown], gain[shown], label=label, **style)
        # The other dimensions reach only the beginning of the curve of the risk.
        if time[-1] > 0.5:
            axes[1].plot(time, table[f"excess_{d}"].mean(axis=0), color=color)
            axes[1].plot(time, table[f"theory_excess_{d}"], "--", color=INK, lw=1)
            axes[1].plot(time, table[f"plain_excess_{d}"], color=GREY, lw=0.7)
            axes[1].plot([], [], color=color, label=label)
    axes[0].set(title="Gain in ν since the start", xlabel="time = step size × updates")
    axes[0].set(xscale="log", yscale="log")
    axes[0].legend()
    axes[1].plot([], [], "--", color=INK, lw=1, label="theory at that d")
    axes[1].plot([], [], color=GREY, lw=0.7, label="without noise")
    top = f"theory at {_power_of_ten(max(dimensions))}"
    axes[1].plot(table["limit_time"], table["limit_excess"], ":", color=INK, label=top)
    axes[1].set(title="Excess risk, whole curves", xlabel="time = step size × updates")
    axes[1].set_yscale("log")
    axes[1].legend()


def _draw_fast_phase(axes: Any, table: Table, dimensions: Sequence[int]) -> None:
    for d, color in zip(dimensions, COLORS, strict=False):
        curves = table[f"fast_theta_{d}"]
        axes.plot(table["fast_steps"], curves.T, color=color, linewidth=0.8, alpha=0.7)
        axes.plot([], [], color=color, label=_power_of_ten(d))
    theory = table[f"theory_fast_theta_{max(dimensions)}"]
    axes.plot(table["fast_steps"], theory, "--", color=INK, label="theory")
    axes.set(title="Fast phase: θ, every run", xlabel="updates")
    axes.legend()


def _power_of_ten(d: int) -> str:
    digits = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
    return f"d = 10{str(round(np.log10(d))).translate(digits)}"


def _work(params: Params) -> float:
    """Return the steps over all runs: the simulation's and the theory's."""
    steps = sum(n_steps(params, d) for d in params.dimensions)
    steps += params.fast_steps * len(params.dimensions)
    return float(steps * (params.n_runs + 2))


experiments = (
    Experiment(
        key="marion2025/any_dimension",
        title="One learning curve, up to d = 1 000 000 000",
        source="ours",
        about=(
            "Online SGD by the exact engine from κ = ν = 0.3 with λ = 2/√d and step "
            "0.3/d; every setting is ours. λ√d fixed makes the risk on the manifold "
            "one function of (κ, ν) in the limit; the step must fall like 1/d because "
            "the curvature across the manifold and the squared noise of a gradient "
            "both grow like d. Left: started off the manifold at θ = 0.2, the head "
            "unlearns to read values along k* within some tens of updates, the same at "
            "every large d; at d = 100 the noise, of order √(step/d), keeps it from "
            "getting there. Then the slow phase, on the manifold: a unit of time takes "
            "d/0.3 updates, since v* is a regression in d unknowns and no method "
            "learns it from fewer than about d prompts: a whole curve at d = 1e9 would "
            "take 2e10 of them. Each dimension therefore shows the window that its 200 "
            "000 updates reach; all windows lie on the one curve of theory."
        ),
        presets={
            "smoke": Params(max_steps=20_000, n_runs=4),
            "demo": Params(),
            "paper": Params(),
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=_work,
        size=(12.0, 4.2),
    ),
)
