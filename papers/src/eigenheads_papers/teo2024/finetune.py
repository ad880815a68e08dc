"""A trained sentence encoder, fine-tuned with another attention in all layers."""

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from eigenheads.extend import FloatArray
from eigenheads_papers._claims import (
    Claim,
    as_questions,
    at_least,
    difference,
    in_family,
    judged_if,
    no_difference,
)
from eigenheads_papers._core import Experiment, Run, Table, drawn_seed, parameter
from eigenheads_papers._drawing import draw_gaps
from eigenheads_papers._statistics import mean_estimate
from eigenheads_papers._training import train_all
from eigenheads_papers.teo2024.inputs import POLARITY, load_sentences

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# λ = 3 and n = 2 in all layers are the paper's; the threshold is that of its program.
_RPC: Final[dict[str, Any]] = {
    "to": "rpc",
    "n_iter": 2,
    "sparsity": 3.0,
    "threshold": "reference",
}
# Arguments of `swap_attention` for each kind of attention; none for the original.
SWAPS: Final[dict[str, dict[str, Any]]] = {
    "original": {},
    "RPC, queries in every iteration": {**_RPC, "query_steps": "every"},
    "RPC, queries in the last": {**_RPC, "query_steps": "last"},
    "S = 0": {**_RPC, "query_steps": "every", "sparsity": float("inf")},
    "right sign": {**_RPC, "query_steps": "every", "multiplier": "admm"},
    "symmetric": {"to": "symmetric"},
    "scaled": {"to": "scaled"},
}
_PRINCIPAL: Final = "RPC, queries in every iteration"
_ORIGINAL: Final = "original"
_FIXED: Final = "the margin is a parameter, fixed before the run"
_SOURCE: Final = "teo2024, Tables 11 and 12"


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """Settings of one fine-tuned model."""

    n_epochs: int = parameter(2, "passes over the training samples")
    batch_size: int = parameter(32, "samples per gradient step")
    learning_rate: float = parameter(5e-5, "largest learning rate")
    head_rate: float = parameter(1e-3, "learning rate of the classifier")
    n_tokens: int = parameter(48, "tokens at which sentences are cut")
    shares: tuple[float, ...] = parameter((0.1, 0.2, 0.3), "shares of replaced tokens")
    typos: float = parameter(0.2, "share of words with a typing mistake")
    rounded: bool = parameter(True, "whether linear layers multiply in bfloat16")


@dataclass(frozen=True, kw_only=True)
class Params(FineTuning):
    """Settings, all ours but for n and λ; bounds and margins fixed before the run."""

    data: str = parameter("polarity", "data set")
    n_train: int = parameter(8000, "sentences to train on")
    n_test: int = parameter(2000, "sentences to test on")
    kinds: tuple[str, ...] = parameter(
        tuple(SWAPS), "kinds of attention to fine-tune with"
    )
    n_seeds: int = parameter(10, "training runs per variant")
    margin: float = parameter(0.5, "difference that counts as none")
    least_accuracy: float = parameter(80.0, "accuracy of a trained model, percent")


def text_conditions(how: FineTuning) -> list[str]:
    """Return all conditions, in the order of the table."""
    replaced = [f"{100 * share:g} % of the words replaced" for share in how.shares]
    return ["clean", *replaced, f"{100 * how.typos:g} % of the words mistyped"]


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Fine-tune every kind with every seed, and measure it."""
    from eigenheads_papers.teo2024._finetuning import measure_swapped

    seeds = [drawn_seed(rng) for _ in range(params.n_seeds)]
    # Here, not in the workers: these do not know the folder of real data.
    sentences = load_sentences(params.data)
    # A job does not know the number of seeds, so that more can be added later.
    how = FineTuning(
        **{option.name: getattr(params, option.name) for option in fields(FineTuning)}
    )
    jobs = []
    for seed in seeds:
        split = sentences.split(params.n_train, params.n_test, seed)
        jobs += [(how, SWAPS[kind], seed, split) for kind in params.kinds]
    steps = len(jobs) * params.n_train * params.n_epochs / params.batch_size
    measured = np.array(train_all(measure_swapped, jobs, units=1.0, steps=steps))
    n = len(text_conditions(params))
    rows = measured.reshape(params.n_seeds, len(params.kinds), -1).transpose(1, 2, 0)
    return {
        # Kinds by conditions by seeds, in percent.
        "accuracy": rows[:, :n],
        # Shares of S on clean sentences and on those with most words replaced.
        "flagged": rows[:, n],
        "flagged_replaced": rows[:, n + 1],
        "self_weight": rows[:, n + 2],
        # A linear classifier on counts of words.
        "linear": rows[:, n + 3],
    }


def check(run: Run[Params]) -> list[Claim]:
    """Return whether the models can show anything, the paper's claims, controls."""
    params, table = run.params, run.table
    at = {name: place for place, name in enumerate(params.kinds)}
    undecided = "" if params.data == "polarity" else "sentences of a few templates"

    def accuracy(part: str, kind: str) -> FloatArray:
        rows = table["accuracy"][at[kind]]
        return np.asarray(rows[0] if part == "clean" else rows[1:].mean(axis=0))

    def gap(part: str, one: str, other: str) -> FloatArray:
        return accuracy(part, one) - accuracy(part, other)

    said = {
        "clean": "clean accuracy",
        "corrupted": "accuracy with words replaced or mistyped",
    }

    clean, linear = accuracy("clean", _ORIGINAL), table["linear"][at[_ORIGINAL]]
    able = [
        at_least(
            "original: clean accuracy, in percent",
            mean_estimate(clean),
            params.least_accuracy,
            "the models have to be well trained",
            undecided=undecided,
        ),
        at_least(
            "original: clean accuracy less that of a linear classifier on counts of "
            "words, in points",
            mean_estimate(clean - linear),
            3.0,
            "a task that a linear classifier solves says nothing of attention",
            undecided=undecided,
        ),
        at_least(
            "original: accuracy that replaced and mistyped words take, in points",
            mean_estimate(clean - accuracy("corrupted", _ORIGINAL)),
            3.0,
            "where nothing is lost, nothing can be kept",
            undecided=undecided,
        ),
    ]
    claimed = [
        difference(
            f"{name}: {text} less that of the original, in points",
            mean_estimate(gap(part, name, _ORIGINAL)),
            source=_SOURCE if (name, part) == (_PRINCIPAL, "clean") else "question",
            undecided=undecided,
        )
        for name in (_PRINCIPAL, "RPC, queries in the last")
        if name in at
        for part, text in said.items()
    ]
    others = [
        difference(
            f"{one}: {text} less that of {other}, in points",
            mean_estimate(gap(part, one, other)),
            source="question",
            undecided=undecided,
        )
        for one, other in (
            ("right sign", _PRINCIPAL),
            ("symmetric", _ORIGINAL),
            ("scaled", _ORIGINAL),
        )
        if one in at
        for part, text in said.items()
    ]
    equal = [
        no_difference(
            f"{_PRINCIPAL} against S = 0: {text}, in points",
            mean_estimate(gap(part, _PRINCIPAL, "S = 0")),
            params.margin,
            _FIXED,
            source="question",
            undecided=undecided,
        )
        for part, text in said.items()
        if "S = 0" in at
    ]
    place = at[_PRINCIPAL]
    reaction = difference(
        f"{_PRINCIPAL}: share of key entries that S takes, most words replaced less "
        "clean, in points",
        mean_estimate(100 * (table["flagged_replaced"] - table["flagged"])[place]),
        source="question",
        undecided=undecided,
    )
    comparisons = [
        *in_family("RPC-Attention against the original", claimed),
        *in_family("S against S = 0", equal),
        *in_family("other kinds of attention", others),
        reaction,
    ]
    # The second control: models that a linear classifier nearly equals say nothing.
    return [*as_questions(able), *judged_if(able[1], comparisons)]


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw differences from the original attention, and the layers."""
    kinds = list(run.params.kinds)
    accuracy = run.table["accuracy"] - run.table["accuracy"][[kinds.index(_ORIGINAL)]]
    gaps = {
        name.replace(" words", "\nwords"): accuracy[:, place]
        for place, name in enumerate(text_conditions(run.params))
    }
    # Attention without iterations has no S, so its share of zero is not drawn.
    self_weight = run.table["self_weight"]
    flagged = np.where(np.isnan(self_weight), np.nan, run.table["flagged"])
    draw_gaps(
        figure,
        gaps,
        {"flagged": flagged, "self_weight": self_weight},
        kinds,
        label="points of accuracy, less those of the original attention",
        layers="all layers",
    )


def _work(params: Params) -> float:
    return float(len(params.kinds) * params.n_seeds)


_PAPER = Params()
_TEMPLATES: Final[dict[str, Any]] = {
    "data": "templates",
    "n_epochs": 1,
    "n_train": 64,
    "n_test": 40,
    "n_tokens": 16,
}
experiments = (
    Experiment(
        key="teo2024/finetune",
        title="Fine-tuning a sentence encoder with RPC-Attention",
        source="the protocol of fine-tuning: attention is swapped in all layers",
        about=(
            "all-MiniLM-L6-v2 is fine-tuned on sentence polarity with the attention of "
            "all six layers swapped: RPC-Attention with n = 2, λ = 3 and the threshold "
            "of the authors' program, with queries in every softmax or in the last; "
            "the same with S = 0 and with the right sign; symmetric and scaled "
            "attention. Split, head and batches are those of the seed for every kind, "
            "so that differences are paired. Linear layers multiply in bfloat16, as in "
            "mixed precision. Sentences are tested as they are, with "
            "words replaced by random ones, and with typing mistakes."
        ),
        presets={
            "smoke": replace(
                _PAPER,
                **_TEMPLATES,
                n_seeds=2,
                kinds=("original", _PRINCIPAL, "S = 0", "symmetric"),
            ),
            "demo": replace(
                _PAPER, **{**_TEMPLATES, "n_train": 96, "n_test": 100}, n_seeds=5
            ),
            "paper": _PAPER,
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=_work,
        size=(11.0, 4.5),
        needs=("hf", "minilm"),
        files=lambda params: (POLARITY,) if params.data == "polarity" else (),
        tolerance=1e-2,
    ),
)
