"""Effects of the heads of a sentence encoder on its output, against random heads."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import rankdata

from eigenheads.extend import FloatArray, advance
from eigenheads.extend.drawing import HeadMap, draw_head_maps
from eigenheads_papers import _models
from eigenheads_papers._claims import Claim, at_least, at_most
from eigenheads_papers._core import Experiment, Run, Table, parameter
from eigenheads_papers._models import Text
from eigenheads_papers._statistics import bootstrap_estimate, share_estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_N_HEADS = 12
_PREVIOUS = (0, 2)  # the head of `saritas2025/heads` that looks at the previous token
_LEVEL = 0.05


@dataclass(frozen=True, kw_only=True)
class Params:
    """Settings, all ours. Passages are those that the package ships."""

    n_passages: int = parameter(8, "passages of text to measure")
    n_tokens: int = parameter(48, "tokens per sample or prompt")
    layers: tuple[int, ...] = parameter(
        (0, 1, 2, 3, 4, 5), "layers of the model to measure"
    )
    n_draws: int = parameter(39, "random heads per head")


def work(params: Params) -> float:
    """Return the units of progress: ablations of the model, of its control, twice."""
    return 3.0 * len(params.layers)


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Remove every head of the encoder, and of an untrained copy."""
    return _models.shared_table("ablation", _measure, params, rng, work(params))


def _measure(params: Params, entropy: int) -> Table:
    from eigenheads.adapters import ablate_heads, probe_model

    seed = _models.seed_of("ablation", entropy)
    model = _models.minilm()[0]
    (control,) = _models.twins(model, 1, seed)
    text = Text(n_passages=params.n_passages, n_tokens=params.n_tokens)
    batch = _models.passages(text)
    heads = [(layer, head) for layer in params.layers for head in range(_N_HEADS)]
    shape = (len(params.layers), _N_HEADS)
    table: dict[str, FloatArray] = {}
    drawn: dict[str, Any] = {"n_draws": params.n_draws}
    other: dict[str, Any] = {"how": "resample", "null": None}
    for name, measured, options in (
        ("minilm", model, drawn),
        ("control", control, drawn),
        ("resample", model, other),
    ):
        ablation = ablate_heads(
            measured, batch, heads=heads, seed=seed, batch_size=None, **options
        )
        table[f"{name}_effect"] = ablation.effect.reshape(shape)
        if ablation.draws.size:
            draws = np.abs(ablation.draws).mean(axis=1)
            table[f"{name}_random"] = draws.reshape(shape)
            table[f"{name}_p"] = ablation.p_value.reshape(shape)
            table[f"{name}_q"] = ablation.q_value.reshape(shape)
        advance(float(len(params.layers)))
    probe = probe_model(
        model,
        batch,
        statistics=["sink_mass"],
        layers=params.layers,
        n_permutations=0,
        n_untrained=0,
    )
    table["sink_mass"] = probe["sink_mass"].observed
    table["layers"] = np.array(params.layers, dtype=np.float64)
    return table


def check(run: Run[Params]) -> list[Claim]:
    """Judge the predictions, which were written down before the first run."""
    table = run.table
    is_part = run.params.n_draws < 39 or len(run.params.layers) < 6
    options: dict[str, Any] = {
        "source": "question",
        "undecided": "too few layers and draws" if is_part else "",
    }
    found = table["minilm_q"] <= _LEVEL
    effect, sink = table["minilm_effect"].ravel(), table["sink_mass"].ravel()
    layer, head = _PREVIOUS
    return [
        at_least(
            "MiniLM: share of heads with more effect than random heads",
            share_estimate(int(found.sum()), found.size),
            0.1,
            "training gives some heads directions that the layers above them read",
            **options,
        ),
        at_least(
            "MiniLM: effect of the head that looks at the previous token, over that of "
            "random heads",
            float(table["minilm_effect"][layer, head])
            / float(table["minilm_random"][layer, head]),
            1.0,
            "a head that does one thing in all texts is read for it",
            **options,
        ),
        at_most(
            "MiniLM: rank correlation of a head's weight on [CLS] and its effect",
            bootstrap_estimate(np.stack([sink, effect], axis=1), _rank_correlation),
            0.0,
            "heads that rest on [CLS] write little that depends on the text",
            **options,
        ),
        at_least(
            "MiniLM: rank correlation of effects by mean and by resampling",
            bootstrap_estimate(
                np.stack([effect, table["resample_effect"].ravel()], axis=1),
                _rank_correlation,
            ),
            0.9,
            "the order of heads should not depend on what replaces them",
            **options,
        ),
        at_most(
            "an untrained copy: heads with q ≤ 0.05",
            float((table["control_q"] <= _LEVEL).sum()),
            0.0,
            "its heads are random columns, so that any discovery has a probability of "
            "5 %",
            source="ours",
        ),
    ]


def _rank_correlation(pairs: FloatArray, axis: int) -> FloatArray:
    """Return Spearman's correlation of pairs, whose rows are along an axis."""
    first, second = (rankdata(pairs[..., i], axis=axis) for i in range(2))
    first -= first.mean(axis=axis, keepdims=True)
    second -= second.mean(axis=axis, keepdims=True)
    lengths = np.sqrt((first**2).sum(axis=axis) * (second**2).sum(axis=axis))
    return np.asarray((first * second).sum(axis=axis) / lengths)


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw effects, those of random heads, and those of the untrained copy."""
    table = run.table
    layers = [int(layer) for layer in table["layers"]]
    maps = [
        HeadMap(
            "effect of a head", table["minilm_effect"], table["minilm_q"] <= _LEVEL
        ),
        HeadMap("effect of random heads", table["minilm_random"]),
        HeadMap("untrained", table["control_effect"], table["control_q"] <= _LEVEL),
    ]
    draw_head_maps(figure, maps, layers)
    figure.suptitle(
        "Relative change of MiniLM's output without a head; dots: q ≤ 0.05 against "
        "random heads"
    )


experiments = (
    Experiment(
        key="saritas2025/ablation",
        title="What the heads of MiniLM do for its output, against random heads",
        source="ours; adapters.ablate_heads on a trained encoder",
        about=(
            "Each of the 72 heads of all-MiniLM-L6-v2 is replaced by its mean over 8 "
            "passages of 48 tokens, and the relative change of the last hidden states "
            "is compared with that of 39 random heads: as many random columns of the "
            "same layer's outputs, of which the same length is removed. Control: an "
            "untrained copy. The predictions were written down before the first run."
        ),
        presets={
            "smoke": Params(n_passages=2, n_tokens=12, layers=(0,), n_draws=3),
            "demo": Params(n_passages=4, n_tokens=24, layers=(0, 5)),
            "paper": Params(),
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=work,
        size=(11.0, 3.6),
        needs=("hf", "minilm"),
        tolerance=1e-2,
    ),
)
