"""Figure 1: probes of a sentence encoder for the one word that decides.

A first sentence misleads; in the second one a single adjective describes its subject,
at one of two places. The words are ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._parallel import advance
from eigenheads._plotting.svg import BLUE, GREEN, GREY, INK, ORANGE, PURPLE
from eigenheads._typing import FloatArray
from eigenheads.experiments import _models
from eigenheads.experiments._claims import Claim, about, at_least
from eigenheads.experiments._core import Experiment, Run, Table
from eigenheads.experiments._statistics import Estimate, share_estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BATCH = 64
_FIGURE = "marion2025, Figure 1"
_PROGRAM = "marion2025, the authors' notebook of Figure 1 (BERT)"
_MODELS = {"minilm": "MiniLM", "twin": "MiniLM, untrained"}
_MISLEADING = tuple(
    f"The road is {word}." for word in ("lovely", "terrible", "narrow", "wide")
)
_GREETING = ("Good morning, did you sleep well?", "Excuse me, what time is it?")
_TRAIN_WORDS = (
    ("kind", 1),
    ("cruel", -1),
    ("friendly", 1),
    ("horrible", -1),
    ("gentle", 1),
    ("hostile", -1),
)
_OTHER_WORDS = (("wonderful", 1), ("vicious", -1), ("adorable", 1), ("rude", -1))


@dataclass(frozen=True)
class SentenceTemplate:
    """Lists of words, of which a sentence takes one each.

    Attributes
    ----------
    first
        Sentences before the one that counts.
    owners, fillers, nouns, adverbs, sizes
        Neutral words.
    adjectives
        Words that decide, with their label.
    """

    first: Sequence[str]
    owners: Sequence[str]
    fillers: Sequence[str]
    nouns: Sequence[str]
    adverbs: Sequence[str]
    sizes: Sequence[str]
    adjectives: Sequence[tuple[str, int]]


_TRAIN = SentenceTemplate(
    first=_MISLEADING,
    owners=("my", "his", "her", "our"),
    fillers=("", "old", "young", "brown", "white", "local"),
    nouns=("horse", "uncle", "nurse"),
    adverbs=("", "quite", "truly"),
    sizes=("short", "tall"),
    adjectives=_TRAIN_WORDS,
)
# This set changes neutral words alone. The sets below also change the adjectives, the
# first sentence, or both, which tells apart what the probe has learned.
_TEST = replace(
    _TRAIN,
    owners=("their", "your"),
    fillers=("grey", "new"),
    nouns=("pony", "cousin", "doctor"),
    adverbs=("", "remarkably"),
    sizes=("small", "large", "thin", "heavy"),
)
TEMPLATES = {
    "train": _TRAIN,
    "test": _TEST,
    "other words": replace(_TEST, adjectives=_OTHER_WORDS),
    "other structure": replace(_TEST, first=_GREETING),
    "both": replace(_TEST, first=_GREETING, adjectives=_OTHER_WORDS),
}


def draw_sentences(
    template: SentenceTemplate, n: int, rng: np.random.Generator
) -> tuple[list[str], NDArray[np.int64]]:
    """Draw `n` sentences, half of each label, in both orders; and the labels."""
    sentences, labels = [], []
    for index in range(n):
        # Labels alternate, so that a set of even size is balanced.
        label = 1 if index % 2 else -1
        words = [word for word, sign in template.adjectives if sign == label]
        # The order of words and the label are independent of each other.
        sentences.append(_sentence(template, str(rng.choice(words)), index // 2, rng))
        labels.append(label)
    return sentences, np.array(labels)


def _sentence(
    template: SentenceTemplate, adjective: str, index: int, rng: np.random.Generator
) -> str:
    def one(words: Sequence[str]) -> str:
        return words[int(rng.integers(len(words)))]

    start = [one(template.first), one(template.owners), one(template.fillers)]
    noun, adverb = one(template.nouns), one(template.adverbs)
    # The deciding adjective comes last or before the noun. In the second case a neutral
    # size comes last, so that a fixed place does not give the label.
    if index % 2:
        rest = [noun, "is", adverb, adjective]
    else:
        rest = [adjective, noun, "is", adverb, one(template.sizes)]
    return " ".join(part for part in [*start, *rest] if part) + "."


@dataclass(frozen=True, kw_only=True)
class Params:
    """Sentences of a set; the paper takes all its combinations, about 15 000."""

    n_train: int = 1200
    n_test: int = 400


def column(model: str, name: str) -> str:
    """Return the table's name of a curve."""
    return f"{model}_{name.replace(' ', '_')}"


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Draw sentences, encode them, and fit a probe for every layer."""
    sets = {
        name: draw_sentences(
            template, params.n_train if name == "train" else params.n_test, rng
        )
        for name, template in TEMPLATES.items()
    }
    seed = int(rng.integers(2**32))
    table: dict[str, FloatArray] = {}
    with _models.one_thread():
        encoder = _models.minilm()[0]
        # The twin has random weights and shows what needs no learning.
        twin = _models.twins(encoder, 1, seed)[0]
        for name, model in (("minilm", encoder), ("twin", twin)):
            states = {
                key: class_states(model, words) for key, (words, _) in sets.items()
            }
            labels = {key: label for key, (_, label) in sets.items()}
            for key, values in probe(states, labels).items():
                table[column(name, key)] = values
    return table


def class_states(model: Any, sentences: list[str]) -> FloatArray:
    """Return the state of [CLS] in the embedding and after each layer, (n, L+1, d)."""
    import torch

    tokenizer = _models.minilm()[1]
    parts = []
    for first in range(0, len(sentences), _BATCH):
        piece = sentences[first : first + _BATCH]
        # The mask of the tokenizer keeps padding out of attention.
        batch = tokenizer(piece, padding=True, return_tensors="pt")
        with torch.no_grad():
            states = model(**batch, output_hidden_states=True).hidden_states
        parts.append(torch.stack([state[:, 0] for state in states], dim=1).numpy())
        advance(len(piece))
    return np.concatenate(parts).astype(np.float64)


def probe(
    states: dict[str, FloatArray], labels: dict[str, NDArray[np.int64]]
) -> dict[str, FloatArray]:
    """Return accuracies on all sets of a logistic regression per layer."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    found: dict[str, list[float]] = {name: [] for name in states}
    for layer in range(states["train"].shape[1]):
        # Scaled, so that the penalty weighs the same on all layers and models.
        fitted = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000))
        fitted.fit(states["train"][:, layer], labels["train"])
        for name, values in states.items():
            found[name].append(float(fitted.score(values[:, layer], labels[name])))
    return {name: np.array(values) for name, values in found.items()}


def check(run: Run[Params]) -> list[Claim]:
    """Return the figure's bars as claims, and what random weights do."""
    table = run.table
    # The first entry is the embedding, before any layer.
    first, *layers = table["minilm_train"]
    average = {
        (model, name): _share(table[column(model, name)], run.params.n_test)
        for model in _MODELS
        for name in TEMPLATES
    }
    midway = "midway between chance and certainty; the figure's bars are above"
    return [
        about(
            "accuracy on the embedding of [CLS], which sees no word",
            first,
            0.5,
            0.0,
            "the embedding is the same for all sentences, and labels are balanced",
            source=_PROGRAM,
        ),
        at_least(
            "MiniLM: accuracy on the train set, least over layers from 1 on",
            min(layers),
            0.976,
            "the program prints 0.976 after layer 1 and 1 after all others",
            source=_PROGRAM,
        ),
        at_least(
            "MiniLM: accuracy on new sentences of the same kind, average over layers",
            average["minilm", "test"],
            0.75,
            midway,
            source=_FIGURE,
        ),
        at_least(
            "MiniLM: accuracy with another first sentence, average over layers",
            average["minilm", "other structure"],
            0.6,
            "a tenth above chance, set after looking; the figure's bar is above",
            source=_FIGURE,
        ),
        at_least(
            "MiniLM: accuracy on adjectives held out, average over layers",
            average["minilm", "other words"],
            0.75,
            midway,
            source=_FIGURE,
            on_record="contradicted",
        ),
        at_least(
            "MiniLM: accuracy with both held out, average over layers",
            average["minilm", "both"],
            0.75,
            midway,
            source=_FIGURE,
            on_record="contradicted",
        ),
        at_least(
            "random weights: accuracy on new sentences of the same kind, average over "
            "layers",
            average["twin", "test"],
            0.9,
            "untrained attention mixes all words into [CLS], and a linear probe finds "
            "the six it was shown: this much needs no learning",
        ),
        about(
            "random weights: accuracy with both held out, average over layers",
            average["twin", "both"],
            0.5,
            0.15,
            "nothing ties the new adjectives to the old; they are four words, so one "
            "that falls on either side moves it by an eighth",
        ),
    ]


def _share(accuracy: FloatArray, n: int) -> Estimate:
    """Return the accuracy averaged over layers, as a share of independent sentences.

    Layers see the same sentences, so they do not count as further observations.
    """
    return share_estimate(round(float(accuracy[1:].mean()) * n), n)


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw accuracy against depth, one panel per model and one curve per set."""
    curves = {
        label: {name: run.table[column(model, name)] for name in TEMPLATES}
        for model, label in _MODELS.items()
    }
    panels: Any = figure.subplots(1, len(curves), sharey=True, squeeze=False)[0]
    styles = ((GREY, "-"), (BLUE, "-"), (ORANGE, "-"), (GREEN, "-"), (PURPLE, "-"))
    for axes, (model, sets) in zip(panels, curves.items(), strict=True):
        for (color, style), (name, values) in zip(styles, sets.items(), strict=False):
            axes.plot(
                np.arange(len(values)),
                values,
                style,
                marker="o",
                markersize=4,
                color=color,
                label=name,
            )
        axes.axhline(0.5, color=INK, linestyle=":", linewidth=1)
        axes.set_ylim(0, 1.05)
        axes.set_xlabel("layer (0: embedding)")
        axes.set_title(model)
    panels[0].set_ylabel("accuracy of the probe")
    panels[0].legend(loc="lower right")


experiments = (
    Experiment(
        key="marion2025/fig1",
        title="A linear probe of [CLS] finds the word that decides, layer by layer",
        source="Figure 1",
        about=(
            "Sentences such as “The road is lovely. my old horse is quite cruel.”: a "
            "first one that misleads, then a single adjective that decides, at one of "
            "two places. A logistic regression on the state of [CLS] is fitted layer "
            "by layer on one set of words and orders, and tested on new neutral words, "
            "on adjectives it never saw, on another first sentence, and on both. The "
            "design is the paper's; the words are ours, and so is the encoder, "
            "all-MiniLM-L6-v2 instead of BERT. Ours: the same on random weights."
        ),
        presets={
            "smoke": Params(n_train=160, n_test=60),
            "demo": Params(n_train=300, n_test=100),
            "paper": Params(),
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=lambda params: (
            2.0 * (params.n_train + (len(TEMPLATES) - 1) * params.n_test)
        ),
        size=(10.0, 4.2),
        needs=("hf", "minilm"),
    ),
)
