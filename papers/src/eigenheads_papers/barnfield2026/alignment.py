"""Two gradient steps on one data set align the query with the signal, at any d."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit

from eigenheads.extend import FloatArray
from eigenheads.extend.drawing import BLUE, GREEN, GREY, ORANGE
from eigenheads.models import Model, Token, choice, multiple_of, softmax
from eigenheads.models import simulate as simulate_model
from eigenheads_papers._claims import Claim, about, at_least, at_most
from eigenheads_papers._core import Experiment, Run, Table, drawn_seed, parameter
from eigenheads_papers._statistics import bootstrap_estimate, mean_estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def sparse_token(X: Any, w: Any, u: Any, g: Any, p: Any) -> Any:
    """Logistic loss of an attention head on sequences with labels ±1."""
    score = softmax(X @ w.q) @ (X @ w.w) + p.bias
    sign = 2 * g.positive - 1
    return np.logaddexp(0, -sign * score)


@dataclass(frozen=True, kw_only=True)
class Params:
    """The caption's setting: L = 10, R = 3, π = 0.2, θ = 6, η = 0.5."""

    n_tokens: int = parameter(10, "tokens per sample or prompt")
    n_informative: int = parameter(3, "informative tokens per prompt")
    positive_share: float = parameter(0.2, "share of positive sequences")
    strength: float = parameter(6.0, "strength of the signal, the θ of the paper")
    step: float = parameter(0.5, "step size before its scaling with the dimension")
    # Samples per dimension.
    ratios: tuple[float, ...] = parameter(
        (1.0, 2.0, 4.0, 8.0, 16.0), "samples per dimension"
    )
    dimensions: tuple[int, ...] = parameter(
        (100, 1000, 10_000), "dimensions of the tokens"
    )
    n_runs: int = parameter(10, "independent runs")


@lru_cache(maxsize=8)
def sparse_model(
    n_tokens: int, n_informative: int, share: float, strength: float
) -> Model:
    """Return the head on sequences of which a share is positive."""
    signal = {"signal": multiple_of("positive", strength)}
    return Model(
        sparse_token,
        weights={"q": "free", "w": "free"},
        planted=("signal",),
        tokens=[Token(n_informative, mean=signal), Token(n_tokens - n_informative)],
        latents={"positive": choice(0.0, 1.0, probabilities=(1 - share, share))},
    )


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Return cosines of query and readout with the signal after two steps."""
    model = sparse_model(
        params.n_tokens, params.n_informative, params.positive_share, params.strength
    )
    bias = first_bias(params)
    table: dict[str, FloatArray] = {"ratio": np.array(params.ratios)}
    for d in params.dimensions:
        cosines = []
        for ratio in params.ratios:
            paths = simulate_model(
                model,
                d=d,
                step_size=params.step,
                n_steps=2,
                n_runs=params.n_runs,
                record_every=1,
                seed=drawn_seed(rng),
                batch_size=round(ratio * d),
                # The same data for both steps. The query does not move in the first
                # one, because the readout is zero.
                reuse=2,
                start={"q.q": 0.0, "w.w": 0.0},
                parameters={"bias": lambda t: bias * t},
            )
            cosines.append(
                [
                    paths["q.signal"][:, 2] / np.sqrt(paths["q.q"][:, 2]),
                    paths["w.signal"][:, 1] / np.sqrt(paths["w.w"][:, 1]),
                ]
            )
        table[f"query_{d}"], table[f"readout_{d}"] = np.array(cosines).transpose(
            1, 2, 0
        )
    table["direct"] = _direct(params, params.ratios[1], rng)
    return table


def first_bias(params: Params) -> float:
    """Return the bias after the first step, up to its fluctuations of order n^-½."""
    return -params.step * (1 - 2 * params.positive_share) / 2


def _direct(params: Params, ratio: float, rng: np.random.Generator) -> FloatArray:
    """Return the query's cosines at the smallest d, from real vectors."""
    d, n_informative = params.dimensions[0], params.n_informative
    n = round(ratio * d)
    cosines = []
    for _ in range(4 * params.n_runs):
        positive = rng.random(n) < params.positive_share
        tokens = rng.standard_normal((n, params.n_tokens, d))
        tokens[:, :n_informative, 0] += params.strength * positive[:, None]
        sign = 2.0 * positive - 1
        means = tokens.mean(axis=1)
        readout = params.step / (2 * n) * sign @ means
        pull = sign * expit(-sign * (means @ readout + first_bias(params)))
        fields = tokens @ readout
        centred = fields - fields.mean(axis=1, keepdims=True)
        query = np.einsum("i,ij,ijk->k", pull, centred, tokens)
        cosines.append(query[0] / np.linalg.norm(query))
    return np.array(cosines)


def check(run: Run[Params]) -> list[Claim]:
    """Return alignments after two steps, their growth, and the direct computation."""
    params, table = run.params, run.table
    last = params.dimensions[-1]
    logs = np.log(table["ratio"][-3:])
    centred = logs - logs.mean()

    def exponent(rows: FloatArray, axis: int) -> FloatArray:
        missing = np.log(np.maximum(1 - np.mean(rows, axis=axis), 1e-12))[..., -3:]
        return np.asarray(missing @ centred / (centred @ centred))

    middle = int(np.argmin(np.abs(table["ratio"] - params.ratios[1])))
    engine = table[f"query_{params.dimensions[0]}"][:, middle]
    pooled = math.hypot(
        engine.std(ddof=1) / math.sqrt(len(engine)),
        table["direct"].std(ddof=1) / math.sqrt(len(table["direct"])),
    )
    return [
        at_least(
            f"d = {last:,}, n = {params.ratios[0]:g} d: the query's mean cosine with "
            "the signal after two steps",
            mean_estimate(table[f"query_{last}"][:, 0]),
            0.1,
            "“nontrivial”: a random direction has 1/√d = 0.01",
            source="barnfield2026, abstract",
            own_setting=True,
        ),
        about(
            f"d = {last:,}: exponent of 1 − cosine in the samples per dimension",
            bootstrap_estimate(table[f"query_{last}"], exponent),
            -1.0,
            0.2,
            "1 − C/α₀; the three largest ratios; fixed before the run",
            source="barnfield2026, Corollary 1 (as a public summary quotes it)",
            own_setting=True,
        ),
        at_least(
            f"d = {last:,}: the query's cosine less the readout's, smallest mean over "
            "the ratios",
            (table[f"query_{last}"] - table[f"readout_{last}"]).mean(axis=0).min(),
            0.0,
            "the query is ahead of the readout in the caption's figure",
            source="barnfield2026, figure of the cosines (its caption)",
            own_setting=True,
        ),
        at_most(
            f"largest gap of the mean cosine, d = {params.dimensions[1]:,} to {last:,}",
            np.abs(
                table[f"query_{params.dimensions[1]}"].mean(axis=0)
                - table[f"query_{last}"].mean(axis=0)
            ).max(),
            0.03,
            "the limit of large d is reached; fixed before the run",
            source="ours: the same ratio, another dimension",
        ),
        about(
            f"d = {params.dimensions[0]}: mean cosine of the engine less that of real "
            "vectors, in standard errors",
            (engine.mean() - table["direct"].mean()) / pooled,
            0.0,
            4.0,
            "a standard normal exceeds 4 with probability 6e-5",
            source="ours: two independent simulations",
        ),
    ]


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw the cosines against the samples per dimension."""
    table = run.table
    axes = figure.subplots()
    for d, color in zip(run.params.dimensions, (ORANGE, BLUE, GREEN), strict=False):
        query, readout = table[f"query_{d}"], table[f"readout_{d}"]
        axes.errorbar(
            table["ratio"],
            query.mean(axis=0),
            query.std(axis=0),
            fmt="o-",
            color=color,
            ms=4,
            label=f"query, d = {d:,}",
        )
        axes.plot(
            table["ratio"],
            readout.mean(axis=0),
            "s--",
            color=color,
            ms=3,
            label=f"readout, d = {d:,}",
        )
    axes.axhline(1.0, color=GREY, lw=0.8)
    axes.set(
        xscale="log", xlabel="samples per dimension", ylabel="cosine with the signal"
    )
    axes.set_xticks(table["ratio"], [f"{ratio:g}" for ratio in table["ratio"]])
    axes.minorticks_off()
    axes.legend(loc="lower right", ncols=2)


_PAPER = Params()
experiments = (
    Experiment(
        key="barnfield2026/alignment",
        title="Two gradient steps align the query",
        source="figure of the cosines, and the abstract's second result",
        about=(
            "Logistic loss, zero start, two gradient steps on the same n = α₀ d "
            "sequences: the first moves the readout (dashed: its cosine), the second "
            "the query (solid). The exact engine keeps the data between the steps, in "
            "any dimension. L = 10, R = 3, π = 0.2, θ = 6, η = 0.5, as in the "
            "caption. The bias after the first step is set to its mean."
        ),
        presets={
            "smoke": replace(
                _PAPER, dimensions=(50, 100, 400), n_runs=6, ratios=(1.0, 2.0, 4.0, 8.0)
            ),
            "demo": replace(_PAPER, dimensions=(100, 300, 1000)),
            "paper": _PAPER,
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=lambda params: float(
            2 * len(params.ratios) * len(params.dimensions) * params.n_runs
        ),
        size=(6.5, 4.5),
    ),
)
