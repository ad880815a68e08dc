"""The two norms of the reconstruction loss. The study's second finding."""

from typing import TYPE_CHECKING

import numpy as np

from eigenheads._plotting._reading import draw_strips
from eigenheads.experiments._claims import Claim, claim
from eigenheads.experiments._core import Experiment, Run
from eigenheads.experiments.saritas2025 import _study
from eigenheads.experiments.saritas2025._study import NAMES, Params

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SOURCE = "saritas2025, abstract: the norms differ by about 10³"
_READING = "teo2024: the output is a projection on unit axes"


def check(run: Run[Params]) -> list[Claim]:
    """Return the study's order of magnitude and the reading's bound."""
    params, table = run.params, run.table
    claims = [
        claim(
            f"{NAMES[model]}: log10 of |output|² over |feature|², average over heads",
            "≈",
            3.0,
            table[f"{model}_norm_ratio"].mean(),
            1.5,
            "an order of magnitude is what the study gives, and our models are others",
            source=_SOURCE,
            # The ViT's is at the edge of the tolerance: see the paper's page.
            on_record="held" if model == "vit" else "contradicted",
        )
        for model in _study.trained_models(params)
    ]
    for model in _study.MODELS:
        ratio = table[f"{model}_norm_ratio"]
        claims += [
            claim(
                f"{NAMES[model]}, untrained: log10 of |output|² over |feature|²",
                "≈",
                3.0,
                table[f"{model}_norm_ratio_untrained_mean"].mean(),
                1.5,
                "as above",
                source="ours: without training",
            ),
            claim(
                f"{NAMES[model]}: share of heads whose output is longer than the "
                "feature it would be a projection of",
                "≤",
                0.0,
                float(np.mean(ratio > 0)),
                0.05,
                "a projection on unit axes shortens; averages over tokens are exact "
                "to rounding",
                source=_READING,
                on_record="contradicted",
            ),
        ]
    return claims


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw both norms and their ratio."""
    table = run.table
    words = {
        "norm_ratio": "log10 |output|²/|feature|²",
        "output_norm": "log10 |output|²",
        "feature_norm": "log10 |feature|²",
    }
    nulls = {"untrained": "untrained", "permuted_tokens": "permuted tokens"}
    rows = [
        [
            _study.strip(
                table,
                model,
                statistic,
                f"{NAMES[model]}: {title}",
                nulls,
                {"study: 3": 3.0, "largest if unit axes": 0.0}
                if statistic == "norm_ratio"
                else {},
                has_map=model == "minilm",
            )
            for model in _study.MODELS
        ]
        for statistic, title in words.items()
    ]
    draw_strips(figure, rows)


experiments = (
    Experiment(
        key="saritas2025/norms",
        title="Outputs are not projections: the two norms are "
        "orders of magnitude apart",
        source="abstract and section on the reconstruction loss",
        about=(
            "|φ(q)/g(q)|² = exp(q·q/√D)/(Σ exp(q·k/√D))² of the query's feature "
            "against |h|² of the head's output, means over tokens of decimal "
            "logarithms. If the output were the feature's projection on unit axes, the "
            "ratio would be at most 1 (0 here). The study found about 10³; its models "
            "are ViTs on ImageNet. q and k are taken as they are, not standardised as "
            "in the authors' program."
        ),
        presets=_study.PRESETS,
        simulate=_study.simulate,
        check=check,
        draw=draw,
        work=_study.work,
        size=(10.0, 9.0),
        needs=("hf", "minilm"),
        files=_study.files,
        with_data=_study.with_data,
    ),
)
