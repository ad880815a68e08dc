"""Erf, linear and softmax heads trained by SGD on one task, beside the Bayes risk."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import erf

from eigenheads.extend import FloatArray
from eigenheads.extend.drawing import BLUE, GREEN, INK, ORANGE
from eigenheads.models import Model, Token, softmax
from eigenheads.models import risk as model_risk
from eigenheads.models import simulate as simulate_model
from eigenheads_papers._claims import Claim, about, at_most
from eigenheads_papers._core import Experiment, Run, Table, drawn_seed, parameter
from eigenheads_papers._statistics import mean_estimate
from eigenheads_papers.duranthon2026.population import (
    bayes_risk,
    best_head,
    spiked_scores,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLORS = {"linear": ORANGE, "erf": BLUE, "softmax": GREEN}


def linear_values(X: Any, w: Any, u: Any, g: Any, p: Any) -> Any:
    """Squared error of weights 1 + χ."""
    output = np.sum((1 + X @ w.k) * (X @ w.v))
    return (output - X[0] @ u.value - p.noise * g[0]) ** 2


def erf_values(X: Any, w: Any, u: Any, g: Any, p: Any) -> Any:
    """Squared error of weights 1 + erf(c + χ)."""
    output = np.sum((1 + erf(p.offset + X @ w.k)) * (X @ w.v))
    return (output - X[0] @ u.value - p.noise * g[0]) ** 2


def softmax_values(X: Any, w: Any, u: Any, g: Any, p: Any) -> Any:
    """Squared error of softmax weights."""
    output = softmax(X @ w.k) @ (X @ w.v)
    return (output - X[0] @ u.value - p.noise * g[0]) ** 2


_LOSSES = {"linear": linear_values, "erf": erf_values, "softmax": softmax_values}


@lru_cache(maxsize=16)
def spiked_head(head: str, n_tokens: int, strength: float) -> Model:
    """Return a head on the spiked law with free key and value."""
    shift = {"key": math.sqrt(strength)}
    return Model(
        _LOSSES[head],
        weights={"k": "free", "v": "free"},
        planted=("key", "value"),
        tokens=[Token(mean=shift), Token(n_tokens - 1)],
        normals=1,
    )


@dataclass(frozen=True, kw_only=True)
class Params:
    """Fresh samples at every step; the step size is `step` / d, falling."""

    d: int = parameter(200, "dimension of the tokens")
    n_tokens: int = parameter(4, "tokens per sample or prompt")
    strength: float = parameter(9.0, "strength of the signal, the θ of the paper")
    noise: float = parameter(0.1, "standard deviation of the noise of the target")
    step: float = parameter(0.2, "step size before its scaling with the dimension")
    batch_size: int = parameter(16, "samples per gradient step")
    horizon: float = parameter(400.0, "training time: steps × step, or steps / d")
    n_runs: int = parameter(6, "independent runs")
    n_records: int = parameter(24, "recorded points along training")
    n_samples: int = parameter(2**13, "samples that estimate a risk")


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Train the three heads; return risks along the runs and the population's."""
    scores = spiked_scores(
        rng.standard_normal((8 * params.n_samples, params.n_tokens)), params.strength
    )
    table: dict[str, FloatArray] = {
        "bayes": np.array([bayes_risk(scores, math.sqrt(params.strength))])
    }
    every = max(1, int(params.horizon * params.d / params.n_records))
    half = every * params.n_records / 4
    for head in _LOSSES:
        best, shape = best_head(head, [scores])
        law = {"noise": params.noise}
        if head == "erf":
            law["offset"] = float(shape[2])
        model = spiked_head(head, params.n_tokens, params.strength)
        paths = simulate_model(
            model,
            d=params.d,
            step_size=lambda t: params.step / params.d / (1 + t / half),
            n_steps=every * params.n_records,
            n_runs=params.n_runs,
            record_every=every,
            batch_size=params.batch_size,
            seed=drawn_seed(rng),
            parameters=law,
            # Small weights in random directions: |k|² = |v|² = 0.1.
            start=_start(params, rng),
        )
        overlaps = {name: paths[name] for name in model.overlaps}
        risks = model_risk(
            model,
            overlaps,
            d=params.d,
            parameters=law | {"noise": 0.0},
            n_samples=params.n_samples,
        )
        table[head] = risks
        table[f"best_{head}"] = np.array([best])
        table[f"key_{head}"] = paths["k.key"]
        table[f"value_{head}"] = paths["v.value"]
        table["steps"] = np.asarray(paths.steps, dtype=np.float64)
    return table


def _start(params: Params, rng: np.random.Generator) -> dict[str, FloatArray]:
    size = math.sqrt(0.1 / params.d)
    names = ("k.key", "k.value", "v.key", "v.value")
    drawn = {name: size * rng.standard_normal(params.n_runs) for name in names}
    lengths = {name: np.full(params.n_runs, 0.1) for name in ("k.k", "v.v")}
    return drawn | lengths | {"k.v": np.zeros(params.n_runs)}


def check(run: Run[Params]) -> list[Claim]:
    """Return where SGD ends: near the population's best head of each kind."""
    table = run.table
    bayes = table["bayes"][0]
    ends = {head: table[head][:, -1] for head in _LOSSES}
    claims = [
        at_most(
            "softmax after SGD: mean excess risk less the best linear head's",
            mean_estimate(ends["softmax"] - table["best_linear"][0]),
            0.0,
            "below the smallest risk that any linear head has",
            source="duranthon2026, abstract",
            own_setting=True,
        ),
        about(
            "softmax after SGD: mean excess risk over the Bayes risk",
            mean_estimate(ends["softmax"] / bayes),
            1.0,
            0.25,
            "fixed before the run: the noise of the last steps",
            source="ours: SGD from small random weights",
        ),
    ]
    claims += [
        about(
            f"{head} after SGD: mean excess risk over the best {head} head's",
            mean_estimate(ends[head] / table[f"best_{head}"][0]),
            1.0,
            0.25,
            "fixed before the run: the noise of the last steps",
            source="ours: population minimum by samples of scores",
        )
        for head in ("linear", "erf")
    ]
    return claims


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw the risks along training, and the overlaps with the key."""
    table = run.table
    risks, overlaps = figure.subplots(1, 2)
    time = table["steps"] / run.params.d
    for head, color in _COLORS.items():
        risks.plot(time, table[head].T, color=color, lw=0.6, alpha=0.5)
        risks.plot(time, table[head].mean(axis=0), color=color, label=head)
        risks.axhline(table[f"best_{head}"][0], color=color, ls="--", lw=1)
        overlaps.plot(time, table[f"key_{head}"].T, color=color, lw=0.8)
    risks.plot([], [], "--", color=INK, lw=1, label="smallest of its kind")
    risks.axhline(table["bayes"][0], color=INK, ls=":", label="Bayes")
    risks.set(yscale="log", xlabel="steps / d", ylabel="excess risk")
    risks.legend()
    overlaps.set(xlabel="steps / d", ylabel="k · k*")
    overlaps.axhline(
        math.sqrt(run.params.strength), color=INK, ls=":", label="√ν, Bayes for softmax"
    )
    overlaps.legend()


_PAPER = Params()
experiments = (
    Experiment(
        key="duranthon2026/training",
        title="Erf, linear and softmax heads and Bayes on the same task",
        source="ours: online SGD; the comparison is the abstract's",
        about=(
            "Online SGD of three heads with free key and value on the spiked law, "
            "d = 200, four tokens, ν = 9, 16 fresh samples per step, from small "
            "random weights. Left: excess risk of the runs; dashed: the smallest risk "
            "of each kind of head; dotted: Bayes. Right: overlap of the key, dotted "
            "√ν, which is Bayes optimal for softmax. The erf head's offset is the "
            "population's best; settings are ours."
        ),
        presets={
            "smoke": replace(
                _PAPER, d=100, n_runs=5, horizon=300.0, n_records=6, n_samples=2**12
            ),
            "demo": replace(_PAPER, d=100),
            "paper": _PAPER,
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=lambda params: float(
            len(_LOSSES)
            * params.n_runs
            * params.n_records
            * max(1, int(params.horizon * params.d / params.n_records))
        ),
        size=(9.0, 4.2),
    ),
)
