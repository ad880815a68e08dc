"""Proposition 4: descent reaches the oracle from any start, given time."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from eigenheads.extend import FloatArray
from eigenheads.extend.drawing import BLUE, GREY, ORANGE
from eigenheads.models import Model, Token, softmax
from eigenheads.models import simulate as simulate_model
from eigenheads_papers._claims import Claim, at_least, at_most
from eigenheads_papers._core import Experiment, Run, Table, drawn_seed, parameter
from eigenheads_papers._statistics import share_estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def softmax_location(X: Any, w: Any, u: Any, g: Any, p: Any) -> Any:
    """Squared error of a softmax head on single-location regression."""
    output = softmax(p.inverse_temperature * (X @ w.u)) @ (X @ w.v)
    return (output - X[0] @ u.value - p.noise * g[0]) ** 2


@dataclass(frozen=True, kw_only=True)
class Params:
    """The setting of Figure 2; batches of fresh samples instead of one data set."""

    d: int = parameter(100, "dimension of the tokens")
    n_tokens: int = parameter(20, "tokens per sample or prompt")
    beta: float = parameter(1.0, "inverse temperature over √d")
    gamma: float = parameter(math.sqrt(0.5), "standard deviation of the deciding token")
    noise: float = parameter(0.1, "standard deviation of the noise of the target")
    step_size: float = parameter(5e-3, "step size")
    batch_size: int = parameter(64, "samples per gradient step")
    n_steps: int = parameter(60_000, "training steps")
    n_runs: int = parameter(12, "independent runs")
    n_records: int = parameter(40, "recorded points along training")


@lru_cache(maxsize=4)
def location_head(n_tokens: int, gamma: float) -> Model:
    """Return the head on the law with c = √(1 − γ²)."""
    c = math.sqrt(1 - gamma**2)
    deciding = Token(mean={"key": lambda d: c * math.sqrt(d)}, scale=gamma)
    return Model(
        softmax_location,
        weights={"u": "sphere", "v": "sphere"},
        planted=("key", "value"),
        tokens=[deciding, Token(n_tokens - 1)],
        normals=1,
    )


_CHANGED = (
    "after 6 000 steps no run of 36 passed; the bound on μ was then lowered to 0.54 "
    "(36 of 36); this is the first bound again, after 60 000 steps"
)

# Overlaps (μ, ν) at the start; None is a uniform direction.
_STARTS = {"random": None, "opposite": (-0.3, -0.3), "informed": (0.4, 0.1)}


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Run SGD from random, opposite and informed starts."""
    table: dict[str, FloatArray] = {}
    every = params.n_steps // params.n_records
    for name, at in _STARTS.items():
        start = None if at is None else {"u.key": at[0], "v.value": at[1]}
        paths = simulate_model(
            location_head(params.n_tokens, params.gamma),
            d=params.d,
            step_size=params.step_size,
            batch_size=params.batch_size,
            n_steps=every * params.n_records,
            n_runs=params.n_runs,
            record_every=every,
            seed=drawn_seed(rng),
            start=start,
            parameters={
                "inverse_temperature": params.beta * math.sqrt(params.d),
                "noise": params.noise,
            },
        )
        table[f"mu_{name}"] = paths["u.key"]
        table[f"nu_{name}"] = paths["v.value"]
        table["steps"] = np.asarray(paths.steps, dtype=np.float64)
    return table


def check(run: Run[Params]) -> list[Claim]:
    """Return the share of runs that solve the task, by start, and how slow u is."""
    table, claims = run.table, []
    for name in _STARTS:
        key, value = table[f"mu_{name}"][:, -1], table[f"nu_{name}"][:, -1]
        arrived = (key > 0.8) & (value > 0.9)
        claims.append(
            at_least(
                f"{name} starts: share of runs that end with μ > 0.8 and ν > 0.9",
                share_estimate(int(arrived.sum()), len(arrived)),
                0.5,
                "most runs in a finite time; the limit is 1",
                source="dohmatob2025, Proposition 4",
                own_setting=True,
                changed=_CHANGED,
            )
        )
    last = np.concatenate([table[f"mu_{name}"][:, -1] for name in _STARTS])
    claims.append(
        at_most(
            "largest μ of all runs at the end",
            last.max(),
            0.95,
            "the risk is flat once p is near 1: u approaches u* like a logarithm",
            source="ours: the oracle is the attractor, and far away in time",
        )
    )
    return claims


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw both overlaps along the runs."""
    table = run.table
    panels = figure.subplots(1, len(_STARTS), sharey=True)
    for panel, name in zip(panels, _STARTS, strict=True):
        panel.plot(table["steps"], table[f"mu_{name}"].T, color=BLUE, lw=0.7)
        panel.plot(table["steps"], table[f"nu_{name}"].T, color=ORANGE, lw=0.7)
        panel.axhline(0.0, color=GREY, lw=0.5)
        panel.set(xlabel="step", title=f"{name} starts")
    panels[0].plot([], [], color=BLUE, label="μ = u·u*")
    panels[0].plot([], [], color=ORANGE, label="ν = v·v*")
    panels[0].legend()


_PAPER = Params()
experiments = (
    Experiment(
        key="dohmatob2025/descent",
        title="Softmax heads solve the task from any start",
        source="Proposition 4 and Figure 2",
        about=(
            "Projected SGD of a softmax head with the linear link, d = 100, L = 20, "
            "β = 1, γ = 1/√2, noise 0.1, as in Figure 2, with batches of fresh samples "
            "instead of one data set of 1000. Starts: uniform directions; overlaps of "
            "the wrong sign; and an overlap beyond the transition ψ/c = 0.34. The "
            "value direction is learned; the key stops where the risk becomes flat and "
            "moves on like a logarithm."
        ),
        presets={
            "smoke": replace(_PAPER, n_runs=6, n_steps=3000),
            "demo": replace(_PAPER, n_runs=6),
            "paper": _PAPER,
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=lambda params: float(
            len(_STARTS)
            * params.n_runs
            * (params.n_steps // params.n_records)
            * params.n_records
        ),
        size=(10.0, 3.6),
    ),
)
