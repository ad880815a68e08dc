"""Perplexity of small causal models on clean and word-swapped text."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from eigenheads.extend import FloatArray
from eigenheads_papers._claims import (
    Claim,
    at_least,
    difference,
    in_family,
    no_difference,
    without_verdict,
)
from eigenheads_papers._core import Experiment, Run, Table, drawn_seed, parameter
from eigenheads_papers._drawing import draw_gaps
from eigenheads_papers._statistics import mean_estimate
from eigenheads_papers._training import SmallModel, seeded, train, train_all
from eigenheads_papers.teo2024 import inputs
from eigenheads_papers.teo2024.variants import FEW, PROGRAM, VARIANTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Percent of perplexity that a swap must cost plain attention to count.
# Pairs of words say nearly as much as attention to all words before.
_LITTLE = "attention is worth 4 % of the perplexity here"
_MINIMAL_LOSS = 10.0


@dataclass(frozen=True, kw_only=True)
class Params(SmallModel):
    """λ = 4 and n = 4 are the paper's; models, texts and shares are ours.

    ``"drawn"`` is a made-up language of 60 words; the paper's WikiText-103 is far
    beyond small models, so preset paper trains on WikiText-2's validation text, with
    so few words that plain attention does better than pairs of words (chosen on other
    seeds, by plain attention alone). Perplexities that differ by less than `margin`
    percent count as equal.
    """

    data: str = parameter("drawn", "data set")
    n_words: int = parameter(60, "size of the vocabulary")
    length: int = parameter(32, "words per sequence")
    n_steps: int = parameter(300, "training steps")
    batch_size: int = parameter(32, "samples per gradient step")
    n_test: int = parameter(100, "test samples")
    shares: tuple[float, ...] = parameter((0.1, 0.2), "shares of replaced tokens")
    margin: float = parameter(2.0, "difference that counts as none")


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Train each kind with every seed; measure perplexity clean and swapped."""
    seeds = [drawn_seed(rng) for _ in range(params.n_seeds)]
    words = inputs.load_words(
        params.data, n_words=params.n_words, length=params.length, rng=rng
    )
    jobs = [(params, name, seed, words) for name in FEW for seed in seeds]
    steps = params.n_steps * len(jobs)
    measured = np.array(train_all(_train_one, jobs, units=1.0, steps=steps))
    table = measured.reshape(len(FEW), params.n_seeds, -1).transpose(0, 2, 1)
    return {
        # Logarithms, since differences of perplexities are ratios.
        "log_perplexity": np.log(table[:, :-2]),
        "flagged": table[:, -2],
        "self_weight": table[:, -1],
        "bigram": np.log([inputs.bigram_perplexity(words, params.n_test)]),
    }


def _train_one(
    params: Params, name: str, seed: int, words: "inputs.Words"
) -> FloatArray:
    """Return perplexities (clean, then by share), share of S and self-weight."""
    import torch
    from torch.nn import functional as F

    from eigenheads.robustness import evaluate_robustness
    from eigenheads_papers.teo2024 import _models

    ids = torch.tensor(words.train)
    with seeded(seed % 2**32):
        model = _models.SmallLanguageModel(
            VARIANTS[name], size=params, n_words=words.n_words, length=params.length
        )
    train(
        model,
        (ids,),
        # The logits at one position predict the next word, so the last logits and the
        # first word have no partner.
        lambda model, batch: F.cross_entropy(
            model(batch[0])[:, :-1].flatten(0, 1), batch[0][:, 1:].flatten()
        ),
        how=params,
        seed=seed % 2**32,
    )
    test = torch.tensor(words.test[: params.n_test])
    # The intervals of the claims are over seeds, so no resampling is needed per model.
    table = evaluate_robustness(
        model, test, word=words.swapped_in, shares=params.shares
    )
    with torch.no_grad():
        tokens = model.first_tokens(test)
    inside = _models.look_inside(model.first_attention, tokens)
    return np.array([*(row.value for row in table.rows), *inside])


def check(run: Run[Params]) -> list[Claim]:
    """Return whether the setting can show anything, the paper's claims, controls."""
    params, logs = run.params, run.table["log_perplexity"]
    # Model 0 is softmax attention and condition 0 is clean text.
    lost = 100 * np.expm1(logs[0, 1:] - logs[0, :1])
    below = -100 * np.expm1(logs[0, 0] - run.table["bigram"][0])
    able = [
        at_least(
            f"{100 * params.shares[-1]:g} % of words swapped: perplexity that softmax "
            "attention loses, in percent",
            mean_estimate(lost[-1]),
            _MINIMAL_LOSS,
            "a setting in which nothing is lost decides nothing",
            source="question: can the comparison show anything?",
        ),
        at_least(
            "clean: softmax attention's perplexity below that of a model of the last "
            "word alone, in percent",
            mean_estimate(below),
            0.0,
            "a model that is worse than counts of pairs uses no context",
            source="question: can the comparison show anything?",
        ),
    ]
    at = {name: index for index, name in enumerate(FEW)}
    percent = 100 * (logs[at["symmetric"]] - logs)  # gains, in percent of perplexity
    names = ["clean", *(f"{100 * share:g} % swapped" for share in params.shares)]
    # The clean condition always counts; a swap counts only where it costs softmax
    # attention enough.
    counting = [
        (index, condition)
        for index, condition in enumerate(names)
        if index == 0 or lost[index - 1].mean() >= _MINIMAL_LOSS
    ]
    claimed = [
        difference(
            f"RPC n=4, threshold of the authors' program, {condition}: perplexity "
            "below symmetric attention's, in percent",
            mean_estimate(percent[at[PROGRAM], index]),
            source="teo2024, Table 3: WikiText-103, clean and attacked",
        )
        for index, condition in counting
    ]
    text = [
        difference(
            f"RPC n=4, threshold of the text, {condition}: perplexity below symmetric "
            "attention's, in percent",
            mean_estimate(percent[at["RPC n=4 (text)"], index]),
            source="question: the text's rule as a variant",
        )
        for index, condition in counting
    ]
    controls = [
        no_difference(
            f"RPC n=4 against {control}: {names[-1]}, gain in percent",
            mean_estimate((percent[at[PROGRAM]] - percent[at[control]])[-1]),
            params.margin,
            "the margin is a parameter, fixed before the run",
            source="question",
        )
        for control in ("S = 0, n=4", "no mixing")
    ]
    comparisons = [
        *in_family("RPC-Attention against symmetric attention, text", claimed),
        *in_family("controls of RPC-Attention, text", [*text, *controls]),
    ]
    return [*able, *without_verdict(_LITTLE, comparisons)]


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw gains over symmetric attention, and what the first layer does."""
    params, table = run.params, run.table
    logs = table["log_perplexity"]
    gains = 100 * (logs[FEW.index("symmetric")] - logs)
    panels = {"clean": gains[:, 0]}
    lost = 100 * np.expm1((logs[0, 1:] - logs[0, :1]).mean(axis=1))
    for index, (share, loss) in enumerate(zip(params.shares, lost, strict=True), 1):
        counts = "" if loss >= _MINIMAL_LOSS else ",\ndoes not count"
        title = (
            f"{100 * share:g} % of words swapped\nsoftmax loses {loss:.0f} %{counts}"
        )
        panels[title] = gains[:, index]
    label = "percent of perplexity below symmetric attention’s"
    draw_gaps(figure, panels, table, FEW, label=label)


_DEMO = Params()
experiments = (
    Experiment(
        key="teo2024/language",
        title="Swapped words: RPC-Attention against symmetric attention",
        source="Language modelling, on small models",
        about=(
            "Causal models with two layers, RPC-Attention in the first, on clean text "
            "and with a share of the words swapped for one that was never seen; only "
            "words that were not swapped themselves are predicted. The paper trains on "
            "WikiText-103; here the text is a made-up language, or at preset paper the "
            "validation text of WikiText-2 with its 299 most frequent words (43 % of "
            "the text are others, and count as one), tested on its test text. Models, "
            "texts and shares are ours. A share counts only where plain attention "
            "loses at least 10 percent of perplexity."
        ),
        presets={
            "smoke": replace(_DEMO, n_seeds=2, n_steps=8, n_test=20),
            "demo": replace(_DEMO, n_steps=200),
            "paper": replace(
                _DEMO, data="wikitext2", n_words=300, n_steps=500, learning_rate=1e-2
            ),
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=lambda params: float(len(FEW) * params.n_seeds),
        size=(10.0, 3.8),
        needs=("torch",),
        files=lambda params: inputs.TEXTS if params.data != "drawn" else (),
        tolerance=1e-2,
    ),
)
