"""Figure 1: probes of a sentence encoder for the one word that decides.

A first sentence misleads; in the second one a single adjective describes its subject,
at one of two places. Orders and numbers of words are the authors'; the words are ours.
"""

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eigenheads.extend import FloatArray, advance
from eigenheads.extend.drawing import BLUE, GREEN, GREY, INK, ORANGE, PURPLE
from eigenheads_papers import _models
from eigenheads_papers._claims import Claim, about, at_least, in_family
from eigenheads_papers._core import Experiment, Run, Table, parameter
from eigenheads_papers._statistics import Estimate, mean_estimate
from eigenheads_papers._training import one_thread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BATCH = 64
_FIGURE = "marion2025, Figure 1"
_PROGRAM = "marion2025, the authors' notebook of Figure 1 (BERT)"
_MODELS = {"minilm": "MiniLM", "twin": "MiniLM, untrained"}
_MISLEADING = tuple(
    f"The road is {word}." for word in ("lovely", "terrible", "narrow", "wide")
)
_TRAIN_WORDS = (
    ("kind", 1),
    ("cruel", -1),
    ("friendly", 1),
    ("horrible", -1),
    ("gentle", 1),
    ("hostile", -1),
)
# The authors hold out four adjectives. An interval over words needs more of them.
_OTHER_WORDS = (
    ("wonderful", 1),
    ("vicious", -1),
    ("adorable", 1),
    ("rude", -1),
    ("charming", 1),
    ("nasty", -1),
    ("pleasant", 1),
    ("evil", -1),
    ("sweet", 1),
    ("brutal", -1),
    ("generous", 1),
    ("awful", -1),
)


@dataclass(frozen=True)
class SentenceTemplate:
    """Lists of words, of which a sentence takes one each, in one or two orders.

    Attributes
    ----------
    orders
        Names of lists in the order of a sentence; ``is`` stands for itself.
    words
        Neutral words by name of the list.
    adjectives
        Words that decide, with their label.
    """

    orders: tuple[tuple[str, ...], ...]
    words: dict[str, tuple[str, ...]]
    adjectives: Sequence[tuple[str, int]]


_LAST = ("first", "owner", "filler", "noun", "is", "adverb", "adjective")
_BEFORE = ("first", "owner", "filler", "adjective", "noun", "is", "adverb", "size")
_TRAIN = SentenceTemplate(
    orders=(_LAST, _BEFORE),
    words={
        "first": _MISLEADING,
        "owner": ("my", "his", "her", "our"),
        "filler": ("", "old", "young", "brown", "white", "local"),
        "noun": ("horse", "uncle", "nurse"),
        "is": ("is",),
        "adverb": ("", "quite", "truly"),
        "size": ("short", "tall"),
    },
    adjectives=_TRAIN_WORDS,
)
# This set changes neutral words alone. The sets below also change the adjectives, the
# sentence around them, or both, which tells apart what the probe has learned.
_TEST = SentenceTemplate(
    orders=(_BEFORE,),
    words={
        "first": _MISLEADING,
        "greeting": ("Good morning,",),
        "owner": ("their", "your"),
        "filler": ("grey", "new"),
        "noun": ("pony", "cousin", "doctor"),
        "is": ("is",),
        "adverb": ("", "remarkably"),
        "size": ("small", "large", "thin", "heavy"),
    },
    adjectives=_TRAIN_WORDS,
)
_OTHER_STRUCTURE = replace(
    _TEST,
    orders=(("first", "greeting", *_LAST[1:]),),
    words=_TEST.words | {"first": ("Excuse me, what time is it?",)},
)
TEMPLATES = {
    "train": _TRAIN,
    "test": _TEST,
    "other words": replace(
        _TEST,
        orders=(
            ("first", "greeting", "owner", "size", *_LAST[2:]),
            (
                "first",
                "greeting",
                "owner",
                "adjective",
                "filler",
                "noun",
                "is",
                "adverb",
                "size",
            ),
        ),
        adjectives=_OTHER_WORDS,
    ),
    "other structure": _OTHER_STRUCTURE,
    "both": replace(_OTHER_STRUCTURE, adjectives=_OTHER_WORDS),
}


@dataclass(frozen=True)
class Sentences:
    """Sentences, their labels, and the index of the adjective that decides."""

    texts: list[str]
    labels: NDArray[np.int64]
    words: NDArray[np.int64]


def all_sentences(template: SentenceTemplate) -> Sentences:
    """Return every combination of words, order by order."""
    texts, words = [], []
    adjectives = [word for word, _ in template.adjectives]
    for order in template.orders:
        lists = [
            adjectives if name == "adjective" else template.words[name]
            for name in order
        ]
        place = order.index("adjective")
        for chosen in itertools.product(*lists):
            texts.append(" ".join(word for word in chosen if word) + ".")
            words.append(adjectives.index(chosen[place]))
    signs = np.array([sign for _, sign in template.adjectives])
    return Sentences(texts, signs[words], np.array(words))


def draw_sentences(
    template: SentenceTemplate, n: int, rng: np.random.Generator
) -> Sentences:
    """Return all sentences, or `n` of them with equally many per adjective."""
    every = all_sentences(template)
    n_words = len(template.adjectives)
    if n >= len(every.texts):
        return every
    chosen: list[int] = []
    for word in range(n_words):
        candidates = np.flatnonzero(every.words == word)
        chosen += rng.choice(
            candidates, min(n // n_words, len(candidates)), replace=False
        ).tolist()
    return Sentences(
        [every.texts[index] for index in chosen],
        every.labels[chosen],
        every.words[chosen],
    )


@dataclass(frozen=True, kw_only=True)
class Params:
    """Sentences per set, at most: the defaults are all combinations, as the authors'.

    The untrained twin of the encoder, ours, sees at most `n_twin` per set.
    """

    n_train: int = parameter(15_552, "training samples")
    n_test: int = parameter(3072, "test samples")
    n_twin: int = parameter(2592, "sentences for the untrained twin of the encoder")


def column(model: str, name: str) -> str:
    """Return the table's name of a curve."""
    return f"{model}_{name.replace(' ', '_')}"


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Draw sentences, encode them, and fit a probe for every layer."""
    seed = int(rng.integers(2**32))
    table: dict[str, FloatArray] = {}
    with one_thread():
        encoder = _models.minilm()[0]
        # The twin has random weights and shows what needs no learning.
        twin = _models.twins(encoder, 1, seed)[0]
        for name, model, most in (
            ("minilm", encoder, params.n_train),
            ("twin", twin, params.n_twin),
        ):
            sets = {
                key: draw_sentences(template, min(most, _size(params, key)), rng)
                for key, template in TEMPLATES.items()
            }
            states = {
                key: class_states(model, sentences.texts)
                for key, sentences in sets.items()
            }
            for key, values in probe(states, sets).items():
                table[column(name, key)] = values
    return table


def _size(params: Params, name: str) -> int:
    return params.n_train if name == "train" else params.n_test


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
    states: dict[str, FloatArray], sets: dict[str, Sentences]
) -> dict[str, FloatArray]:
    """Return accuracies of a logistic regression per layer: (layers, adjectives)."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    accuracies: dict[str, list[FloatArray]] = {name: [] for name in states}
    for layer in range(states["train"].shape[1]):
        # Solver, its limit and states that are not scaled are the authors'.
        fitted = LogisticRegression(solver="saga", max_iter=1000, random_state=0)
        with warnings.catch_warnings():
            # At 1000 passes the authors stop, too, converged or not.
            warnings.simplefilter("ignore", ConvergenceWarning)
            fitted.fit(states["train"][:, layer], sets["train"].labels)
        for name, values in states.items():
            sentences = sets[name]
            right = fitted.predict(values[:, layer]) == sentences.labels
            counts = np.bincount(sentences.words)
            accuracies[name].append(
                np.bincount(sentences.words, weights=right) / counts
            )
    return {name: np.array(values) for name, values in accuracies.items()}


def check(run: Run[Params]) -> list[Claim]:
    """Return the figure's bars as claims, and what random weights do."""
    table = run.table
    # The first entry is the embedding, before any layer. Every adjective stands in
    # equally many sentences, so means over adjectives are means over sentences.
    _, *layers = table["minilm_train"].mean(axis=1)
    average = {
        (model, name): _over_words(table[column(model, name)])
        for model in _MODELS
        for name in TEMPLATES
    }
    # A probe that saw fewer sentences is another one: it does not bear on the figure.
    full = run.params.n_train >= Params.n_train
    few = "" if full else "fewer sentences than the authors train on"
    midway = "midway between chance and certainty; the figure's bars are above"
    bars = [
        at_least(
            f"MiniLM: accuracy {words}, average over layers",
            average["minilm", name],
            bound,
            why,
            source=_FIGURE,
            undecided=few,
        )
        for name, words, bound, why in (
            ("test", "on new sentences of the same kind", 0.75, midway),
            (
                "other structure",
                "with another first sentence",
                0.6,
                "a tenth above chance, set after looking; the figure's bar is above",
            ),
            ("other words", "on adjectives held out", 0.75, midway),
            ("both", "with both held out", 0.75, midway),
        )
    ]
    return [
        at_least(
            "MiniLM: accuracy on the train set, least over layers from 1 on",
            min(layers),
            0.976,
            "the program prints 0.976 after layer 1 of BERT and 1 after all others",
            source="question: is MiniLM as separable as BERT?",
            undecided=few,
        ),
        *in_family("bars of Figure 1", bars),
        at_least(
            "random weights: accuracy on new sentences of the same kind, average over "
            "layers",
            average["twin", "test"],
            0.9,
            "untrained attention mixes all words into [CLS], and a linear probe finds "
            "the six it was shown: this much needs no learning",
            source="question",
            undecided=few,
        ),
        about(
            "random weights: accuracy with both held out, average over layers",
            average["twin", "both"],
            0.5,
            0.15,
            "nothing ties the new adjectives to the old",
            source="question",
            undecided=few,
        ),
    ]


def _over_words(accuracy: FloatArray) -> Estimate:
    """Return the accuracy averaged over layers, with an interval over adjectives.

    Sentences with the same adjective are no independent observations: the probe
    generalises to a new word or does not.
    """
    return mean_estimate(accuracy[1:].mean(axis=0), within=(0.0, 1.0))


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw accuracy against depth, one panel per model and one curve per set."""
    curves = {
        label: {name: run.table[column(model, name)].mean(axis=1) for name in TEMPLATES}
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


def _work(params: Params) -> float:
    """Return the sentences that are encoded."""
    total = 0
    for most in (params.n_train, params.n_twin):
        for name, template in TEMPLATES.items():
            every, n = len(all_sentences(template).texts), len(template.adjectives)
            size = min(most, _size(params, name))
            total += every if size >= every else n * (size // n)
    return float(total)


experiments = (
    Experiment(
        key="marion2025/fig1",
        title="A linear probe of [CLS] finds the word that decides, layer by layer",
        source="Figure 1",
        about=(
            "Sentences such as “The road is lovely. my old horse is quite cruel.”: a "
            "first one that misleads, then a single adjective that decides, at one of "
            "two places. A logistic regression on the state of [CLS] is fitted layer "
            "by layer on all 15 552 combinations of one set of words, and tested on "
            "new neutral words, on adjectives it never saw, on another sentence "
            "around them, and on both. Orders, numbers of words, solver and states "
            "that are not scaled are those of the authors' notebook. The words are "
            "ours, twelve adjectives are held out in place of four, and the encoder "
            "is all-MiniLM-L6-v2 instead of BERT. Intervals are over adjectives. "
            "Ours: the same on random weights."
        ),
        presets={
            "smoke": Params(n_train=168, n_test=60, n_twin=168),
            "demo": Params(n_train=600, n_test=120, n_twin=300),
            "paper": Params(),
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=_work,
        size=(10.0, 4.2),
        needs=("hf", "minilm"),
    ),
)
