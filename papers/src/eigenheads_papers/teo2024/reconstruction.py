"""The reconstruction loss along training, with both norms that it subtracts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from eigenheads.extend import FloatArray
from eigenheads.extend.drawing import BLUE, GREEN, INK, ORANGE, PURPLE
from eigenheads.functional import log_feature_norms
from eigenheads_papers import _models
from eigenheads_papers._claims import (
    POOR_MODELS,
    Claim,
    about,
    at_least,
    at_most,
    without_verdict,
)
from eigenheads_papers._core import Experiment, Run, Table, drawn_seed, parameter
from eigenheads_papers._models import ViT
from eigenheads_papers._statistics import bootstrap_estimate, mean_estimate
from eigenheads_papers._training import train_all

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Fewer updates are no trained model.
_TRAINED = 1000
_NAMES = (
    "loss",
    "feature_norm",
    "output_norm",
    "mean_feature_norm",
    "mean_output_norm",
    "longer",
    "top_share",
)
_STUDY = "saritas2025, abstract: the norms differ by about 10³"


@dataclass(frozen=True, kw_only=True)
class Params:
    """All ours: the paper trains ViT-tiny on ImageNet."""

    n_steps: int = parameter(1000, "training steps")
    n_records: int = parameter(25, "recorded points along training")
    n_images: int = parameter(16, "images to measure")
    width: int = parameter(64, "width of the model, or of the keys")
    n_heads: int = parameter(4, "heads per layer")
    n_layers: int = parameter(3, "number of layers")
    n_seeds: int = parameter(5, "training runs per variant")


def vit_of(params: Params) -> ViT:
    """Return the model."""
    return ViT(
        width=params.width,
        n_heads=params.n_heads,
        n_layers=params.n_layers,
        n_steps=params.n_steps,
    )


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Train with every seed, as in the paper and as in the authors' program."""
    seeds = [drawn_seed(rng) % 2**32 for _ in range(params.n_seeds)]
    jobs = [(params, kind, seed) for seed in seeds for kind in ("plain", "program")]
    work = float(params.n_steps)
    rows = train_all(_train_one, jobs, units=work, steps=work * len(jobs))
    plain, program = (np.array(rows[start::2]) for start in (0, 1))
    steps = _record_steps(params)
    shape = (params.n_seeds, len(_NAMES), len(steps), params.n_layers)
    others_norms = plain[:, 1:].reshape(shape)
    table = {name: others_norms[:, index] for index, name in enumerate(_NAMES)}
    return table | {
        "program": program[:, 1:].reshape(params.n_seeds, len(steps), -1),
        "steps": np.array(steps, dtype=np.float64),
        "accuracy": np.stack([plain[:, 0], program[:, 0]]),
    }


def _record_steps(params: Params) -> list[int]:
    every = max(1, params.n_steps // params.n_records)
    return sorted({*range(0, params.n_steps + 1, every), params.n_steps})


def _train_one(params: Params, kind: str, seed: int) -> FloatArray:
    """Return the accuracy, and the numbers of all records."""
    from eigenheads_papers.teo2024 import _models as small_models

    batch = _models.held_out(params.n_images)[0]
    steps = _record_steps(params)
    records: list[Any] = []
    accuracy = [np.nan]

    def record(step: int, body: Any, head: Any) -> None:
        if step not in steps:
            return
        if kind == "plain":
            measured_norms = norms(body, batch)
            records.append([measured_norms[name] for name in _NAMES])
        else:
            records.append(small_models.program_loss(body, batch))
        if step == params.n_steps:
            accuracy[0] = _models.accuracy(body, head)

    is_plain = kind == "plain"
    train = _models.train_vit if is_plain else small_models.train_program
    train(vit_of(params), seed, record)
    # To (names, records, layers) for the plain model, (records, layers) else.
    numbers = np.array(records)
    if kind == "plain":
        numbers = numbers.transpose(1, 0, 2)
    return np.concatenate([accuracy, numbers.ravel()])


def norms(body: Any, batch: Any) -> dict[str, FloatArray]:
    """Return summaries of |feature|² and |output|², one number per layer.

    Over heads, tokens and images: medians, means, the share of tokens whose output is
    the longer, and the share of the features' sum that the longest hundredth carries.
    """
    rows: dict[str, list[float]] = {}
    for captured in _models.capture(body, batch):
        q, k = (x.astype(np.float64) for x in (captured.queries, captured.keys))
        # Double precision, since the exponentials of the logarithms range over many
        # orders of magnitude.
        feature = np.exp(log_feature_norms(q, k, scale=captured.scale)).ravel()
        output = (captured.outputs.astype(np.float64) ** 2).sum(axis=-1).ravel()
        longest = np.sort(feature)[-max(1, len(feature) // 100) :]
        for name, value in {
            "loss": np.median(feature - output),
            "feature_norm": np.median(feature),
            "output_norm": np.median(output),
            "mean_feature_norm": feature.mean(),
            "mean_output_norm": output.mean(),
            "longer": np.mean(output > feature),
            "top_share": longest.sum() / feature.sum(),
        }.items():
            rows.setdefault(name, []).append(float(value))
    return {name: np.array(values) for name, values in rows.items()}


def check(run: Run[Params]) -> list[Claim]:
    """Return the paper's fall of J, and the sizes of its two norms."""
    table = run.table
    is_trained = run.params.n_steps >= _TRAINED
    few = "" if is_trained else "too few updates for a trained model"
    # The program prints the logarithm of J per layer, averaged over layers. J itself
    # must be positive for that; the sign is checked below.
    program = np.log(np.abs(table["program"])).mean(axis=2)
    mean = (table["mean_feature_norm"] - table["mean_output_norm"]).mean(axis=2)
    loss = table["loss"].mean(axis=2)
    ratio = np.log10(table["output_norm"] / table["feature_norm"]).mean(axis=2)
    order = "the study gives an order of magnitude, of other models"
    claims = [
        at_most(
            "log J as the authors' program computes it (model and statistic with "
            "standardised q and k), at the end minus at the start",
            mean_estimate(program[:, -1] - program[:, 0]),
            0.0,
            "a fall of any size; ours is a small ViT on digits",
            source="teo2024, figure of the reconstruction loss",
            undecided=few,
        ),
        at_most(
            "share of tokens whose output is longer than the feature it would be a "
            "projection of, at the end",
            mean_estimate(table["longer"][:, -1].mean(axis=1)),
            0.0,
            "a projection on unit axes shortens",
            slack=0.05,
            source="teo2024, abstract: queries are projected on principal axes",
        ),
        about(
            "log10 of |output|² over |feature|² of median tokens at the end",
            mean_estimate(ratio[:, -1]),
            3.0,
            1.5,
            order,
            source=_STUDY,
        ),
        at_least(
            "the program's J: smallest of all seeds, layers and records",
            table["program"].min(),
            0.0,
            "its logarithm is printed",
            source="question: the statistic is defined",
        ),
        at_most(
            "J as the text defines it, mean over tokens, at the end minus at the "
            "start over its size at the start, the median seed",
            bootstrap_estimate(_rise(mean), np.median),
            0.0,
            "the text's J for the model as it is, q and k not standardised",
            source="question: the text's statistic beside the program's",
            undecided=few,
        ),
        at_most(
            "the same for the median token",
            mean_estimate(_rise(loss)),
            0.0,
            "the mean is carried by a few tokens, the median is not",
            source="question",
        ),
        about(
            "log10 of |output|² over |feature|² before training",
            mean_estimate(ratio[:, 0]),
            3.0,
            1.5,
            order,
            source="question: 10³ is there at the start",
        ),
    ]
    if is_trained:
        claims.append(
            at_least(
                "share of the mean |feature|² that the longest hundredth of tokens "
                "carries, at the end, mean over layers",
                mean_estimate(table["top_share"][:, -1].mean(axis=1)),
                0.5,
                "more than the other 99 % together",
                source="question: why J's mean depends on few tokens",
            )
        )
    return without_verdict(POOR_MODELS, claims)


def _rise(curves: FloatArray) -> FloatArray:
    """Return the change of curves (seeds, records) over their size at the start."""
    change: FloatArray = (curves[:, -1] - curves[:, 0]) / np.abs(curves[:, 0])
    return change


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw J, both norms and their ratio, mean over seeds, one curve per layer."""
    table, n_layers = run.table, run.params.n_layers
    program, norms, ratio = figure.subplots(1, 3)
    steps = table["steps"]
    colors = (BLUE, ORANGE, GREEN, PURPLE)
    for layer in range(n_layers):
        color = colors[layer % len(colors)]
        # Norms of different seeds differ by orders of magnitude: geometric means.
        feature, output, mean_feature = (
            np.exp(np.log(table[name][..., layer]).mean(axis=0))
            for name in ("feature_norm", "output_norm", "mean_feature_norm")
        )
        logs = np.log(np.abs(table["program"][..., layer]))
        program.plot(steps, logs.mean(axis=0), color=color, label=f"layer {layer}")
        norms.plot(steps, output, color=color)
        norms.plot(steps, feature, color=color, linestyle="--")
        norms.plot(steps, mean_feature, ":", color=color)
        ratio.plot(steps, output / feature, color=color)
    program.set_title("log J as the authors' program has it")
    program.legend()
    norms.plot([], [], color=INK, label="|output|²")
    norms.plot([], [], color=INK, linestyle="--", label="|feature|²")
    norms.plot([], [], ":", color=INK, label="|feature|², mean token")
    norms.set_yscale("log")
    norms.set_title("both norms as in the text, median token")
    norms.legend()
    ratio.set_yscale("log")
    ratio.axhline(1e3, color=INK, linestyle="--", linewidth=1, label="the study's 10³")
    ratio.axhline(
        1, color=INK, linestyle=":", linewidth=1, label="largest if unit axes"
    )
    ratio.set_title("|output|² / |feature|²")
    ratio.legend()
    for axes in (program, norms, ratio):
        axes.set_xlabel("update")


experiments = (
    Experiment(
        key="teo2024/reconstruction",
        title="A falling reconstruction loss says that outputs grow longer",
        source="figure of the reconstruction loss along training",
        about=(
            "J = |φ(q)/g(q)|² − |h|² on held-out images while a small ViT (8 × 8 "
            "digits, every pixel a token, 3 layers of 4 heads of width 16) is trained "
            "with five seeds; a curve per layer. The paper trains ViT-tiny on ImageNet "
            "and reads the fall of the mean over tokens as learning to project. Left: "
            "log J exactly as the authors' program computes it. There every query and "
            "key is standardised, in the model as well, and the normaliser is "
            "recovered from the first key's score without the scale 1/√D, so that it "
            "is not the J of the text. Middle: the text's two norms in a model without "
            "that change; right: their ratio, which is at most 1 for projections on "
            "unit axes. Model, data and training are ours."
        ),
        presets={
            "smoke": Params(n_steps=20, n_records=2, n_images=4, n_seeds=2),
            "demo": Params(n_steps=150, n_records=5, n_images=4),
            "paper": Params(),
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=lambda params: 2.0 * params.n_seeds * params.n_steps,
        size=(11.0, 3.8),
        needs=("torch",),
        tolerance=1e-2,
    ),
)
