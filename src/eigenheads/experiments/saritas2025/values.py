"""Do trained values look like kernel-PCA values? The study's first finding."""

from typing import TYPE_CHECKING

from eigenheads._plotting._reading import draw_strips
from eigenheads.experiments._claims import Claim, claim
from eigenheads.experiments._core import Experiment, Run, Table
from eigenheads.experiments.saritas2025 import _study
from eigenheads.experiments.saritas2025._study import NAMES, Params

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SOURCE = "saritas2025, abstract: averages over heads of ten models"
# Statistic: its name, and the study's bound on the average.
_BOUNDS = {
    "matching_cosine": ("cosine of best-matched values", 0.32),
    "linear_cka": ("linear CKA", 0.11),
    "rbf_cka": ("RBF CKA", 0.32),
}


def check(run: Run[Params]) -> list[Claim]:
    """Return the study's three bounds, and ours against chance."""
    params, table = run.params, run.table
    claims = []
    for statistic, (words, bound) in _BOUNDS.items():
        for model in _study.trained_models(params):
            is_above = model == "vit" and statistic == "rbf_cka"
            claims.append(
                claim(
                    f"{NAMES[model]}: average {words} with kernel-PCA values",
                    "≤",
                    bound,
                    table[f"{model}_{statistic}"].mean(),
                    0.03,
                    "two digits are printed, and our passages and images are few: "
                    "averages over other ones differ by 0.02",
                    source=_SOURCE,
                    on_record="contradicted" if is_above else "held",
                )
            )
    return claims + _against_chance(params, table)


def _against_chance(params: Params, table: Table) -> list[Claim]:
    claims = []
    for model in _study.MODELS:
        for statistic, (words, _) in _BOUNDS.items():
            mean = table[f"{model}_{statistic}_random_projections_mean"]
            claims.append(
                claim(
                    f"{NAMES[model]}: average {words}, minus that of random value "
                    "matrices on the same keys",
                    "≤",
                    0.0,
                    (table[f"{model}_{statistic}"] - mean).mean(),
                    0.05,
                    "nothing learned gives 0; values of kernel PCA would give 1 minus "
                    "the null, 0.6 or more",
                    source="ours: the null of random projections",
                )
            )
        claims.append(
            _study.share_claim(
                params,
                table,
                model,
                "share of heads that stand out from random value matrices (q ≤ 0.05), "
                "the most of four measures",
                (*_BOUNDS, "captured_variance"),
                "contradicted" if model == "minilm" else "held",
            )
        )
    return claims


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw the three measures, MiniLM with a map, the ViT beside it."""
    table = run.table
    nulls = {"random_projections": "random values", "untrained": "untrained"}
    rows = [
        [
            _study.strip(
                table,
                model,
                statistic,
                f"{NAMES[model]}: {words}",
                nulls,
                {f"study: ≤ {bound}": bound},
                has_map=model == "minilm",
            )
            for model in _study.MODELS
        ]
        for statistic, (words, bound) in _BOUNDS.items()
    ]
    draw_strips(figure, rows)


experiments = (
    Experiment(
        key="saritas2025/values",
        title="Trained values are hardly more like kernel-PCA values than random ones",
        source="abstract and section on value vectors",
        about=(
            "Values of trained heads against those that kernel PCA of their keys would "
            "give: cosine of tokens matched best, linear and RBF CKA. Blue dots are "
            "heads, boxes two standard deviations about what random value matrices on "
            "the very same keys give (grey) and untrained models (orange); dashed is "
            "the study's bound on its averages. Models, texts and images are ours, the "
            "study's are ViTs and others on ImageNet; tokens over head width is 98/32 "
            "for MiniLM, as the study's 197/64, and 65/16 for the ViT. These measures "
            "grow with the share of head width in tokens, so no bound means much "
            "without its null."
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
