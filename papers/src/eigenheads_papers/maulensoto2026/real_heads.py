"""Heads of trained models and the principal directions of their tokens."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from eigenheads.extend import FloatArray, weighing
from eigenheads_papers import _models
from eigenheads_papers._claims import Claim, at_least, at_most
from eigenheads_papers._core import Experiment, Run, Table, parameter
from eigenheads_papers._drawing import HeadStrip, draw_strips
from eigenheads_papers._models import MINILM_HEADS, Text, ViT
from eigenheads_papers._statistics import mean_estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"minilm": "MiniLM", "twin": "MiniLM, untrained", "vit": "small ViT"}
STATISTICS = ("qk_covariance_cosine", "qk_covariance_overlap", "qk_rank")
_NULLS = ("rotated", "permuted_coordinates", "untrained")
_LEVEL = 0.05
# A step of training takes about as long as that many heads.
_STEP = 0.1
_SOURCE = "question: maulensoto2026 is on heads trained to copy, of rank one"


@dataclass(frozen=True, kw_only=True)
class Params:
    """Settings, all ours: the paper measures no trained model."""

    source: str = parameter("ours", "text: the shipped sentences, or wikitext2")
    n_passages: int = parameter(12, "passages of text to measure")
    n_tokens: int = parameter(98, "tokens per sample or prompt")
    layers: tuple[int, ...] = parameter(
        (0, 1, 2, 3, 4, 5), "layers of the model to measure"
    )
    n_images: int = parameter(64, "images to measure")
    vit_steps: int = parameter(1000, "training steps of the small vision transformer")
    n_permutations: int = parameter(200, "draws of each permutation null")
    n_untrained: int = parameter(4, "untrained copies of the model")


def _with_data(params: Params) -> Params:
    """Take passages of WikiText-2 in place of our own few."""
    return replace(params, source="wikitext2")


def _files(params: Params) -> tuple[str, ...]:
    """Return what must lie in the folder of real data."""
    return (_models.WIKITEXT,) if params.source == "wikitext2" else ()


def _work(params: Params) -> float:
    """Return the units of progress: heads, and steps of training."""
    heads = 2 * len(params.layers) * MINILM_HEADS + ViT().n_layers * ViT().n_heads
    return heads + _STEP * params.vit_steps


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Measure the forms of MiniLM, of one untrained twin of it, and of the ViT."""
    return _models.shared_table("real_heads", _measure, params, rng, _work(params))


def _measure(params: Params, entropy: int) -> Table:
    seed = _models.seed_of("real_heads", entropy)
    text = Text(
        source=params.source, n_passages=params.n_passages, n_tokens=params.n_tokens
    )
    batch, encoder = _models.passages(text), _models.minilm()[0]
    # One more twin than asked for stands in for a model, the others are its null.
    first, *copies = _models.twins(encoder, params.n_untrained + 1, seed)
    table: dict[str, FloatArray] = {}
    for name, model in (("minilm", encoder), ("twin", first)):
        table |= _probe(name, model, copies, batch, params.layers, params, seed)
    vit = ViT(n_steps=params.vit_steps)
    # A step of training counts as a fraction of a head in the progress.
    with weighing(_STEP):
        body, _ = _models.trained_vit(vit, entropy)
    images = _models.held_out(params.n_images)[0]
    layers = tuple(range(vit.n_layers))
    copies = _models.twins(body, params.n_untrained, seed)
    return table | _probe("vit", body, copies, images, layers, params, seed)


def _probe(
    name: str,
    model: Any,
    copies: list[Any],
    batch: Any,
    layers: tuple[int, ...],
    params: Params,
    seed: int,
) -> dict[str, FloatArray]:
    table = _models.probe_columns(
        name,
        _models.capture(model, batch, layers),
        [_models.capture(copy, batch, layers) for copy in copies],
        statistics=STATISTICS,
        seed=seed,
        unit=MINILM_HEADS if name != "vit" else ViT().n_heads,
        n_permutations=params.n_permutations,
    )
    table[f"{name}_layers"] = np.array([float(layer) for layer in layers])
    return table


def found_share(table: Table, name: str, statistic: str, null: str) -> float:
    """Return the share of heads with a q-value of at most 0.05."""
    from eigenheads.probes import q_values

    # All heads of the model are one family of tests: with single p-values, one null
    # head in twenty would stand out.
    return float(np.mean(q_values(table[f"{name}_{statistic}_{null}_p"]) <= _LEVEL))


def check(run: Run[Params]) -> list[Claim]:
    """Return how many heads stand out, and by how little."""
    table = run.table
    cosine, overlap = STATISTICS[:2]
    # Random forms overlap with the leading directions by chance, and the more the wider
    # the head is; the measured overlap is divided by that.
    chance = table[f"minilm_{overlap}_rotated_mean"]
    return [
        at_least(
            "MiniLM: share of heads whose score form is closer to the tokens' "
            "covariance than turned forms (q ≤ 0.05)",
            found_share(table, "minilm", cosine, "rotated"),
            0.5,
            "most heads; what we see, with a margin",
            source=_SOURCE,
        ),
        at_most(
            "MiniLM, untrained: the same share",
            found_share(table, "twin", cosine, "rotated"),
            0.05,
            "nothing was learned: false discoveries alone, and few heads",
            slack=0.1,
            source=_SOURCE,
        ),
        at_least(
            "MiniLM: cosine of score form and covariance, average over heads",
            mean_estimate(table[f"minilm_{cosine}"].ravel()),
            0.5,
            "a head that does PCA and nothing else has 0.5 or more if one direction "
            "carries half of the tokens' squared spectrum",
            source=_SOURCE,
        ),
        at_least(
            "MiniLM: overlap of leading directions of form and covariance, over chance",
            mean_estimate((table[f"minilm_{overlap}"] / chance.mean()).ravel()),
            1.0,
            "above chance",
            source=_SOURCE,
        ),
        at_most(
            "MiniLM: effective rank of the score form over the head's width",
            # The divisor is the width of a head of MiniLM.
            mean_estimate(table["minilm_qk_rank"].ravel() / 32),
            0.5,
            "a rank-one head has 1/32; half the width would be a low rank still",
            source=_SOURCE,
        ),
    ]


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw cosine and overlap of every head with their nulls."""
    table = run.table
    words = {
        "qk_covariance_cosine": "cosine of form and covariance",
        "qk_covariance_overlap": "overlap of leading directions",
    }
    rows = [
        [
            HeadStrip(
                title=f"{label}: {title}",
                values=table[f"{name}_{statistic}"],
                layers=table[f"{name}_layers"],
                nulls={
                    null.replace("_", " "): (
                        table[f"{name}_{statistic}_{null}_mean"],
                        table[f"{name}_{statistic}_{null}_sd"],
                    )
                    # Turned forms and untrained models are drawn; the null of permuted
                    # coordinates stays in the table.
                    for null in _NULLS[::2]
                },
                has_map=name == "minilm",
            )
            for name, label in NAMES.items()
        ]
        for statistic, title in words.items()
    ]
    draw_strips(figure, rows)


experiments = (
    Experiment(
        key="maulensoto2026/real_heads",
        title="Score forms of trained heads lean on the tokens' principal directions",
        source="ours; the paper's claim on heads of real models",
        about=(
            "The paper's head, trained to copy its query, learns the top eigenvector "
            "of the tokens' covariance. Here the symmetric part of W_Qᵀ W_K of every "
            "head of all-MiniLM-L6-v2 and of a small ViT trained on digits is compared "
            "with the covariance of the tokens that enter its layer: cosine of the two "
            "matrices, and overlap of as many leading directions as the head is wide. "
            "Boxes are two standard deviations about forms turned at random (grey) and "
            "heads of untrained models (orange). These models were not trained to "
            "copy: a weak and real lean is what there is."
        ),
        presets={
            "smoke": Params(
                n_passages=2,
                layers=(0,),
                n_images=8,
                vit_steps=10,
                n_permutations=99,
                n_untrained=1,
            ),
            "demo": Params(
                n_passages=3,
                n_images=32,
                vit_steps=100,
                n_permutations=99,
                n_untrained=1,
            ),
            "paper": Params(n_passages=64),
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=_work,
        size=(13.0, 6.2),
        needs=("hf", "minilm"),
        files=_files,
        with_data=_with_data,
        tolerance=1e-2,
    ),
)
