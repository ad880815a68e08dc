"""Figures 5 and 12: semantic or positional, decided while SGD escapes its start."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr

from eigenheads.extend import FloatArray
from eigenheads.extend.drawing import BLUE, GREEN, GREY, INK, ORANGE, PURPLE
from eigenheads.models import simulate as simulate_model
from eigenheads_papers._claims import Claim, about, at_most, difference
from eigenheads_papers._core import Experiment, Run, Table, drawn_seed, parameter
from eigenheads_papers._statistics import bootstrap_estimate, farthest_share_estimate
from eigenheads_papers.arnaboldi2025._landscape import (
    escape_curvatures,
    transition,
)
from eigenheads_papers.arnaboldi2025._models import (
    attention_model,
    positional_excess,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PRINTED = 0.64
# Fixed before the runs. 0.03 is the paper's "in good agreement", read as half the
# distance between the printed value and the ends of its visible fall.
_MARGIN = 0.03
_FORMULA_MARGIN = 0.15
# With fewer runs, the interval of a share is wider than this margin allows.
_ENOUGH = 400
_FORMULA_CHANGED = (
    "the bound was 0.15 + 2.5 √(0.25/n) and grew with the run's own noise; by it, all "
    "six dimensions held, with 5 to 64 runs"
)
_RAISED = (
    "12 runs, fixed before, were raised to 48 after a look (undecided, then held); "
    "now 64, as in the paper"
)
_COLORS = (ORANGE, BLUE, GREEN, PURPLE)


@dataclass(frozen=True, kw_only=True)
class Params:
    """Runs per ω and dimension; step sizes are `step` / d on the unit sphere."""

    omegas: tuple[float, ...] = parameter(
        (0.5, 0.57, 0.64, 0.71, 0.78), "weights of the positional target"
    )
    dimensions: tuple[int, ...] = parameter((100, 1000), "dimensions of the tokens")
    n_runs: tuple[int, ...] = parameter((32, 12), "independent runs")
    step: float = parameter(0.05, "step size before its scaling with the dimension")
    # Steps are `horizon` d / step: enough for every run to leave the start.
    horizon: float = parameter(60.0, "training time: steps × step, or steps / d")
    n_records: int = parameter(20, "recorded points along training")


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Train from zero overlaps; return the overlaps at the end and the theory."""
    model = attention_model("frobenius")
    table: dict[str, FloatArray] = {"omega": np.array(params.omegas)}
    for d, n_runs in zip(params.dimensions, params.n_runs, strict=True):
        every = _record_every(params, d)
        ends = []
        for omega in params.omegas:
            paths = simulate_model(
                model,
                d=d,
                step_size=params.step / d,
                n_steps=every * params.n_records,
                n_runs=n_runs,
                record_every=every,
                seed=drawn_seed(rng),
                start={"w.teacher": 0.0, "w.position": 0.0},
                parameters={"omega": omega, "excess": positional_excess(1.0)},
            )
            ends.append([paths["w.teacher"][:, -1], paths["w.position"][:, -1]])
        table[f"semantic_{d}"], table[f"positional_{d}"] = np.array(ends).transpose(
            1, 2, 0
        )
        table[f"formula_{d}"] = np.array(
            [escape_probability(omega, d, params.step) for omega in params.omegas]
        )
    table["transition"] = np.array(
        [transition(1.0, loss=loss) for loss in ("half_square", "frobenius")]
    )
    return table


def _record_every(params: Params, d: int) -> int:
    """Return the steps per record: the escape from 1/√d takes a time like log d."""
    horizon = params.horizon * (1 + math.log10(d / 1000) / 4)
    return max(1, int(horizon * d / params.step / params.n_records))


def escape_probability(omega: float, d: int, step: float) -> float:
    r"""Return the probability that the semantic overlap leaves the start first.

    Near the start both overlaps grow like :math:`e^{\lambda \tau}` from the Gaussian
    noise of the first gradients, of variance :math:`c \sigma^2 / (2 \lambda d)` with
    step size c/d. Semantic means :math:`|M|^{1/\lambda_m} > |E|^{1/\lambda_e}`. The
    noise of both directions is taken as equal: it enters by a logarithm.
    """
    curvature = escape_curvatures(omega, 1.0, loss="frobenius", nodes=25)
    semantic, positional = -curvature.semantic, -curvature.positional
    if positional <= 0:
        return 1.0
    if semantic <= 0:
        return 0.0
    first, second = (
        math.sqrt(step / (2 * rate * d)) for rate in (semantic, positional)
    )
    # The other overlap must stay below |M|^(λ_e/λ_m); both are absolute normals.
    grid = (np.arange(4000) + 0.5) / 4000 * 6
    density = 2 * np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi) * (6 / 4000)
    bound = (first * grid) ** (positional / semantic) / second
    return float(density @ (2 * ndtr(bound) - 1))


def _is_semantic(table: Table, d: int) -> FloatArray:
    """Return 1 for every run that ended semantic, of shape (runs, ω)."""
    larger = np.abs(table[f"semantic_{d}"]) > np.abs(table[f"positional_{d}"])
    return larger.astype(np.float64)


def _midpoint(omega: FloatArray, shares: FloatArray) -> FloatArray:
    """Return the ω of a fall from 1 to 0: the area below the curve of shares."""
    return omega[0] + np.trapezoid(shares, omega, axis=-1)


def _width(omega: FloatArray, shares: FloatArray) -> FloatArray:
    """Return the area below P(1 − P), which is 0 for a step."""
    return np.asarray(np.trapezoid(shares * (1 - shares), omega, axis=-1))


def check(run: Run[Params]) -> list[Claim]:
    """Return the printed transition, where runs turn, and that it sharpens."""
    table, dims = run.table, run.params.dimensions
    omega = table["omega"]
    half, norm = table["transition"]
    claims = [
        about(
            "ω at which the steepest direction at the start turns positional, a = 1",
            half,
            _PRINTED,
            0.005,
            "two printed digits",
            source="arnaboldi2025, Section 4",
            own_setting=True,
        ),
    ]
    claims += [
        about(
            f"d = {d}: ω at which runs turn from semantic to positional",
            bootstrap_estimate(
                _is_semantic(table, d),
                lambda runs, axis: _midpoint(
                    omega, np.asarray(np.mean(runs, axis=axis))
                ),
            ),
            _PRINTED if is_paper else norm,
            _MARGIN,
            "“in good agreement”, fixed before the run",
            source="arnaboldi2025, Figure 5"
            if is_paper
            else "ours: quadrature with the loss of the training",
            own_setting=is_paper,
            changed=_RAISED if is_paper else "",
        )
        for d in dims
        for is_paper in ((True, False) if d == 1000 and len(dims) == 2 else (False,))
    ]
    fewest = min(run.params.n_runs)
    ends = [_is_semantic(table, d)[:fewest] for d in (dims[0], dims[-1])]

    def narrowing(runs: FloatArray, axis: int) -> FloatArray:
        small, large = np.split(np.mean(runs, axis=axis), 2, axis=-1)
        return _width(omega, small) - _width(omega, large)

    claims.append(
        difference(
            f"width of the transition at d = {dims[0]}, less that at d = {dims[-1]}",
            bootstrap_estimate(np.concatenate(ends, axis=1), narrowing),
            source="arnaboldi2025, "
            + ("Figures 5 and 12" if len(dims) == 2 else "Section 4"),
            own_setting=True,
        )
    )
    claims += [
        at_most(
            f"d = {d}: largest gap of the share of semantic runs to the linear escape",
            farthest_share_estimate(
                _is_semantic(table, d).sum(axis=0), n_runs, table[f"formula_{d}"]
            ),
            _FORMULA_MARGIN,
            "the noise of both directions is taken as equal",
            source="ours: probability that the semantic overlap leaves first",
            changed=_FORMULA_CHANGED,
        )
        for d, n_runs in zip(dims, run.params.n_runs, strict=True)
        if n_runs >= _ENOUGH
    ]
    return claims


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw the share of semantic runs against ω, with the formula of the escape."""
    table = run.table
    axes = figure.subplots()
    for d, color in zip(run.params.dimensions, _COLORS, strict=False):
        axes.plot(table["omega"], table[f"formula_{d}"], "--", color=color, lw=1)
        shares = _is_semantic(table, d).mean(axis=0)
        axes.plot(table["omega"], shares, "o-", color=color, label=f"d = {d:,}", ms=4)
    axes.plot([], [], "--", color=INK, lw=1, label="formula of the escape")
    axes.axvline(table["transition"][0], color=INK, lw=1, label="quadrature, ½ square")
    axes.axvline(
        table["transition"][1], color=GREY, lw=1, ls=":", label="quadrature, distance"
    )
    axes.set(
        xlabel="ω, weight of the positional target", ylabel="share of semantic runs"
    )
    axes.legend()


def _work(params: Params) -> float:
    steps = [_record_every(params, d) * params.n_records for d in params.dimensions]
    pairs = zip(steps, params.n_runs, strict=True)
    return float(len(params.omegas) * sum(n * runs for n, runs in pairs))


# The paper has 64 runs.
_PAPER = Params(n_runs=(64, 64))
_ANY = Params(
    omegas=(0.54, 0.64, 0.74),
    dimensions=(100, 1000, 10_000, 100_000),
    n_runs=(400, 400, 100, 20),
    step=1.0,
)

experiments = (
    Experiment(
        key="arnaboldi2025/fig5",
        title="SGD ends semantic or positional, and turns near ω = 0.64",
        source="Figures 5 and 12",
        about=(
            "Attention softmax(zzᵀ) on two tokens with positions ±P, the target a "
            "mixture of a semantic and a positional one with weight ω, a = 1; one "
            "fresh sample per step, Frobenius distance, step size 0.05/d on the unit "
            "sphere, start at zero overlaps, as in the authors' public configuration. "
            "Theirs stops at 300 d steps, where overlaps are near 0.1; ours runs four "
            "times as long, until all have left the start. Lines: the transition by "
            "quadrature, for half the squared distance (the landscape's loss) and for "
            "the distance (the training's). Dashed: the probability of the linear "
            "escape from noise, which is ours."
        ),
        presets={
            "smoke": replace(_PAPER, n_runs=(16, 6), step=1.0),
            "demo": replace(_PAPER, n_runs=(24, 12), step=0.5),
            "paper": _PAPER,
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=_work,
        size=(7.0, 4.5),
    ),
    Experiment(
        key="arnaboldi2025/any_dimension",
        title="The transition sharpens slowly, like 1/log d",
        source="Section 4: a step function as d → ∞",
        about=(
            "The same from d = 100 to 100 000, with step size 1/d, twenty times that "
            "of the authors, so that the largest dimension is affordable. Dashed: the "
            "probability of the linear escape, whose width falls like 1/log d: the "
            "step function is approached slowly."
        ),
        presets={
            "smoke": replace(_ANY, dimensions=(50, 100, 1000), n_runs=(16, 16, 6)),
            "demo": replace(_ANY, dimensions=(100, 1000, 10_000), n_runs=(32, 32, 4)),
            "paper": _ANY,
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=_work,
        size=(7.0, 4.5),
    ),
)
