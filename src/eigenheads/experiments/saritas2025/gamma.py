"""Are the ratios γ constant? Absolute and relative differences."""

from typing import TYPE_CHECKING

import numpy as np

from eigenheads._plotting._reading import HeadStrip, draw_strips
from eigenheads.experiments._claims import Claim, claim
from eigenheads.experiments._core import Experiment, Run
from eigenheads.experiments.saritas2025 import _study
from eigenheads.experiments.saritas2025._study import NAMES, Params

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_READING = "teo2024: K̃â = γâ, with γ the same for all tokens"


def check(run: Run[Params]) -> list[Claim]:
    """Return what the reading needs, and what random values give."""
    params, table = run.params, run.table
    claims = []
    for model in _study.MODELS:
        gaps = table[f"{model}_gamma_gap"]
        chance = table[f"{model}_gamma_gap_random"]
        claims += [
            claim(
                f"{NAMES[model]}: |γ_i − γ_j| over the larger of both, average over "
                "heads",
                "≈",
                0.0,
                table[f"{model}_gamma_difference"].mean(),
                0.1,
                "constant ratios differ by 0; a tenth would be a rough reading still",
                source=_READING,
                on_record="contradicted",
            ),
            claim(
                f"{NAMES[model]}: the same, against what random values are known for",
                "≈",
                0.8,
                table[f"{model}_gamma_difference"].mean(),
                0.2,
                "0.8 is for Gaussian keys at N = 197; heads whose keys have a large "
                "common part are lower",
                source="saritas2025, section on the Gram matrix's eigenvectors",
            ),
            claim(
                f"{NAMES[model]}: median |γ_i − γ_j|, the median head",
                "≤",
                1e-3,
                np.median(gaps),
                0.0,
                "about 10⁻⁴ or less, as γ are of the size of K̃'s eigenvalues",
                source="teo2024: absolute differences are small",
            ),
            claim(
                f"{NAMES[model]}: log10 of that over the same of random values of the "
                "same covariance",
                "≈",
                0.0,
                np.median(np.log10(gaps / chance)),
                0.3,
                "a factor of two: small absolute differences tell nothing of values",
                source="ours",
            ),
            _study.share_claim(
                params,
                table,
                model,
                "share of heads below random value matrices (q ≤ 0.05)",
                ("gamma_difference",),
            ),
        ]
    return claims


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw relative and absolute differences."""
    table = run.table
    nulls = {"random_projections": "random values", "untrained": "untrained"}
    first = [
        _study.strip(
            table,
            model,
            "gamma_difference",
            f"{NAMES[model]}: relative difference of γ",
            nulls,
            {"kernel PCA": 0.0},
            has_map=model == "minilm",
        )
        for model in _study.MODELS
    ]
    second = []
    for model in _study.MODELS:
        chance = np.log10(table[f"{model}_gamma_gap_random"])
        second.append(
            HeadStrip(
                title=f"{NAMES[model]}: log10 median |γ_i − γ_j|",
                values=np.log10(table[f"{model}_gamma_gap"]),
                layers=table[f"{model}_layers"],
                nulls={
                    "random values": (
                        chance,
                        chance.std(axis=1, keepdims=True),
                    )
                },
                has_map=model == "minilm",
            )
        )
    draw_strips(figure, [first, second])


experiments = (
    Experiment(
        key="saritas2025/gamma",
        title="The ratios γ are not constant; that they differ by little says nothing",
        source="section on the Gram matrix's eigenvectors",
        about=(
            "If a column of the values encodes an eigenvector â of the keys' centred "
            "Gram matrix K̃, the ratios γ = (K̃â)/â are one number. Above: mean over "
            "pairs of tokens of the relative difference, 0 for kernel PCA. Below: the "
            "absolute one, about 10⁻⁴ for trained and for random values alike, since "
            "the eigenvalues of K̃ are small. Models and texts are ours."
        ),
        presets=_study.PRESETS,
        simulate=_study.simulate,
        check=check,
        draw=draw,
        work=_study.work,
        size=(10.0, 6.2),
        needs=("hf", "minilm"),
        files=_study.files,
        with_data=_study.with_data,
    ),
)
