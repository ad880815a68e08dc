"""Convergence of scaled attention on small models, against softmax attention."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from eigenheads.extend import FloatArray, generator
from eigenheads.extend.drawing import BLUE, GREEN, GREY
from eigenheads_papers._claims import (
    POOR_MODELS,
    Claim,
    difference,
    in_family,
    without_verdict,
)
from eigenheads_papers._core import Experiment, Run, Table, drawn_seed, parameter
from eigenheads_papers._drawing import draw_intervals, label_decades, seed_intervals
from eigenheads_papers._statistics import mean_estimate
from eigenheads_papers._training import SmallModel, seeded, train, train_all
from eigenheads_papers.teo2024 import inputs
from eigenheads_papers.teo2024.variants import VARIANTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = ("softmax", "scaled scalar", "scaled matrix")
# Points of top-1 accuracy that the paper prints for ViT-tiny on ImageNet.
_PRINTED = 73.02 - 72.18


@dataclass(frozen=True, kw_only=True)
class Params(SmallModel):
    """All settings are ours; the paper trains ViT-tiny on ImageNet."""

    data: str = parameter("digits", "data set")
    n_train: int = parameter(1200, "training samples")
    n_test: int = parameter(500, "test samples")
    n_seeds: int = parameter(8, "training runs per variant")
    n_records: int = parameter(12, "recorded points along training")


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Train each kind with every seed; record losses and accuracies on the way."""
    seeds = [drawn_seed(rng) for _ in range(params.n_seeds)]
    # A split per seed, shared by all kinds of attention, pairs their differences.
    splits = [
        inputs.load_split(
            params.data,
            n_train=params.n_train,
            n_test=params.n_test,
            rng=generator(seed),
        )
        for seed in seeds
    ]
    jobs = [
        (params, name, seed, split)
        for name in NAMES
        for seed, split in zip(seeds, splits, strict=True)
    ]
    steps = params.n_steps * len(jobs)
    measured = train_all(train_one, jobs, units=1.0, steps=steps)
    table = np.array(measured).reshape(len(NAMES), params.n_seeds, 3, params.n_records)
    every = params.n_steps // params.n_records
    return {
        "steps": every * np.arange(1.0, params.n_records + 1),
        "loss": table[:, :, 0],
        "accuracy": table[:, :, 1],
        # Root mean square of α or S over layers, as trained.
        "scaling": table[:, :, 2, -1],
    }


def train_one(params: Params, name: str, seed: int, split: inputs.Split) -> FloatArray:
    """Return training losses, test accuracies in percent, sizes of S, by record."""
    import torch
    from torch.nn import functional as F

    from eigenheads_papers.teo2024 import _models

    x, y = torch.tensor(split.train[:, None]), torch.tensor(split.train_classes)
    x_test, y_test = torch.tensor(split.test[:, None]), torch.tensor(split.test_classes)
    with seeded(seed % 2**32):
        model = _models.SmallViT(VARIANTS[name], size=params, side=x.shape[-1])
    rows: list[tuple[float, float, float]] = []

    @torch.no_grad()
    def record(step: int) -> None:
        right = (model(x_test).argmax(1) == y_test).double().mean()
        # The loss on the same 500 training images at every record is less noisy than
        # that of the current batch.
        loss = F.cross_entropy(model(x[:500]), y[:500])
        learned = [p for n, p in model.named_parameters() if n.endswith("scaling")]
        total = sum(float(p.square().mean()) for p in learned)
        # Softmax attention has no scaling; the maximum avoids a division by zero.
        root = (total / max(len(learned), 1)) ** 0.5
        rows.append((float(loss), 100 * float(right), root))

    train(
        model,
        (x, y),
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        how=params,
        seed=seed % 2**32,
        every=params.n_steps // params.n_records,
        watch=record,
    )
    return np.array(rows).T.ravel()


def check(run: Run[Params]) -> list[Claim]:
    """Return the paper's two claims for both kinds."""
    table = run.table
    claims = []
    for index, name in enumerate(NAMES[1:], 1):
        gain = table["accuracy"][index, :, -1] - table["accuracy"][0, :, -1]
        # The mean of the gap over all records measures the speed of training; the final
        # loss alone would not.
        faster = (table["loss"][0] - table["loss"][index]).mean(axis=1)
        claims += [
            difference(
                f"{name}: final test accuracy less softmax's, in points",
                mean_estimate(gain),
                source="teo2024, text on scaled attention: 73.02 % against 72.18 %",
                printed=_PRINTED,
            ),
            difference(
                f"{name}: training loss below softmax's, averaged over the run",
                mean_estimate(faster),
                source="teo2024, figure of the training curves",
            ),
        ]
    family = in_family("scaled attention against softmax", claims)
    return without_verdict(POOR_MODELS, family)


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw loss and accuracy along training, and final gains, paired by seed."""
    table = run.table
    axes: Any = figure.subplots(1, 3)
    colors = (GREY, BLUE, GREEN)
    for panel, (name, title) in zip(
        axes,
        (("loss", "training loss"), ("accuracy", "test accuracy, percent")),
        strict=False,
    ):
        for runs, label, color in zip(table[name], NAMES, colors, strict=True):
            mean, half = seed_intervals(runs, axis=0)
            panel.fill_between(
                table["steps"], mean - half, mean + half, color=color, alpha=0.15
            )
            panel.plot(
                table["steps"], mean, "o-", markersize=3, color=color, label=label
            )
        panel.set(title=title, xlabel="step (bands: 95 % over seeds)")
    label_decades(axes[0])
    axes[0].legend()
    final = table["accuracy"][:, :, -1]
    draw_intervals(axes[2], final - final[:1])
    axes[2].set(
        title="final accuracy, paired over seeds",
        xlabel=f"points, less {NAMES[0]}’s (95 % interval)",
    )
    axes[2].set_yticks(range(len(NAMES)), NAMES)
    axes[2].set_ylim(-0.4, len(NAMES) - 0.6)
    axes[2].invert_yaxis()


_DEMO = Params()
experiments = (
    Experiment(
        key="teo2024/scaled",
        title="Scaled attention ends where softmax does; its matrix "
        "trains a little faster",
        source="Convergence of scaled attention, on small models",
        about=(
            "Plain softmax attention and scaled attention, which learns a correction "
            "of the values from 0 on, with the same seeds. The paper reports 73.02 % "
            "against 72.18 % for ViT-tiny on ImageNet; model, data (scikit-learn's "
            "digits, MNIST at preset paper) and training are ours. Differences are "
            "paired over seeds."
        ),
        presets={
            "smoke": replace(_DEMO, n_seeds=2, n_steps=24, n_train=300, n_records=4),
            "demo": _DEMO,
            "paper": replace(
                _DEMO, data="mnist", patch=7, n_train=6000, n_test=1000, n_steps=400
            ),
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=lambda params: float(len(NAMES) * params.n_seeds),
        size=(10.0, 3.6),
        needs=("torch",),
        files=lambda params: inputs.MNIST if params.data == "mnist" else (),
        tolerance=1e-2,
    ),
)
