"""Figure 1: the class token of a sentence encoder knows the word that decides."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._parallel import advance
from eigenheads._plotting._reading import draw_probe_accuracy
from eigenheads._typing import FloatArray
from eigenheads.experiments import _models
from eigenheads.experiments._claims import Claim, claim
from eigenheads.experiments._core import Experiment, Run, Table
from eigenheads.experiments.marion2025._sentences import TEMPLATES, draw_sentences

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BATCH = 64
_FIGURE = "marion2025, Figure 1"
_PROGRAM = "marion2025, the authors' notebook of Figure 1 (BERT)"
_MODELS = {"minilm": "MiniLM", "twin": "MiniLM, untrained"}


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
        batch = tokenizer(piece, padding=True, return_tensors="pt")
        with torch.no_grad():
            states = model(**batch, output_hidden_states=True).hidden_states
        parts.append(torch.stack([state[:, 0] for state in states], dim=1).numpy())
        advance(len(piece))
    return np.concatenate(parts).astype(np.float64)


def probe(
    states: dict[str, FloatArray], labels: dict[str, NDArray[np.int64]]
) -> dict[str, FloatArray]:
    """Fit a logistic regression a layer on the train set; accuracies on all sets."""
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
    first, *layers = table["minilm_train"]
    average = {
        (model, name): float(table[column(model, name)][1:].mean())
        for model in _MODELS
        for name in TEMPLATES
    }
    midway = "midway between chance and certainty; the figure's bars are above"
    return [
        claim(
            "accuracy on the embedding of [CLS], which sees no word",
            "≈",
            0.5,
            first,
            0.0,
            "the embedding is the same for all sentences, and labels are balanced",
            source=_PROGRAM,
        ),
        claim(
            "MiniLM: accuracy on the train set, least over layers from 1 on",
            "≥",
            0.976,
            min(layers),
            0.0,
            "the program prints 0.976 after layer 1 and 1 after all others",
            source=_PROGRAM,
        ),
        claim(
            "MiniLM: accuracy on new sentences of the same kind, average over layers",
            "≥",
            0.75,
            average["minilm", "test"],
            0.0,
            midway,
            source=_FIGURE,
        ),
        claim(
            "MiniLM: accuracy with another first sentence, average over layers",
            "≥",
            0.6,
            average["minilm", "other structure"],
            0.0,
            "a tenth above chance, set after looking; the figure's bar is above",
            source=_FIGURE,
        ),
        claim(
            "MiniLM: accuracy on adjectives held out, average over layers",
            "≥",
            0.75,
            average["minilm", "other words"],
            0.0,
            midway,
            source=_FIGURE,
            on_record="contradicted",
        ),
        claim(
            "MiniLM: accuracy with both held out, average over layers",
            "≥",
            0.75,
            average["minilm", "both"],
            0.0,
            midway,
            source=_FIGURE,
            on_record="contradicted",
        ),
        claim(
            "random weights: accuracy on new sentences of the same kind, average over "
            "layers",
            "≥",
            0.9,
            average["twin", "test"],
            0.0,
            "untrained attention mixes all words into [CLS], and a linear probe finds "
            "the six it was shown: this much needs no learning",
            source="ours",
        ),
        claim(
            "random weights: accuracy with both held out, average over layers",
            "≈",
            0.5,
            average["twin", "both"],
            0.15,
            "nothing ties the new adjectives to the old; they are four words, so one "
            "that falls on either side moves it by an eighth",
            source="ours",
        ),
    ]


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw accuracy against depth for the trained and the untrained encoder."""
    table = run.table
    curves = {
        label: {name: table[column(model, name)] for name in TEMPLATES}
        for model, label in _MODELS.items()
    }
    draw_probe_accuracy(figure, curves)


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
