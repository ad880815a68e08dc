"""Robustness of text classifiers: data forms, corruptions, paired verdicts."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from eigenheads.robustness import (  # noqa: E402
    TEXT_CORRUPTIONS,
    RobustnessPlan,
    evaluate_robustness,
)
from eigenheads.robustness._text import corrupt_texts, read_labelled_texts  # noqa: E402

pytestmark = pytest.mark.torch
VOCABULARY = [
    "[pad]",
    "[cls]",
    "good",
    "bad",
    "film",
    "plot",
    "the",
    "a",
    "was",
    "[unk]",
]
PAD, CLS, GOOD, BAD = range(4)
UNKNOWN = len(VOCABULARY) - 1


class Tokenizer:
    """Words to ids, a class token first, with padding."""

    all_special_ids = (PAD, CLS)

    def __call__(self, texts, **options):
        assert options == {
            "padding": True,
            "truncation": True,
            "return_tensors": "pt",
        }
        rows = [
            [CLS]
            + [
                VOCABULARY.index(word) if word in VOCABULARY else UNKNOWN
                for word in text.split()
            ]
            for text in texts
        ]
        width = max(map(len, rows))
        ids = torch.tensor([row + [PAD] * (width - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


class Counter(nn.Module):
    """Count good and bad words; a share of each example's answers is spoiled."""

    def __init__(self, spoiled=0.0):
        super().__init__()
        self.spoiled = spoiled

    def forward(self, input_ids, attention_mask=None):
        assert attention_mask is not None and attention_mask.shape == input_ids.shape
        seen = attention_mask.bool()
        scores = [((input_ids == word) & seen).sum(1) for word in (BAD, GOOD)]
        logits = torch.stack(scores, 1).float()
        # Spoiled by the first word, so that the same texts are spoiled every time.
        flip = input_ids[:, 1] % 5 < 5 * self.spoiled
        return torch.where(flip[:, None], -logits - 1e-3, logits)


def texts(n=60):
    rng = np.random.default_rng(0)
    filler = ["film", "plot", "the", "a", "was"]
    labels = rng.integers(0, 2, n)
    made = []
    for label in labels:
        words = list(rng.choice(filler, 7))
        words.insert(int(rng.integers(1, 7)), ["bad", "good"][label])
        made.append(" ".join(words))
    return made, labels


def row(found, condition, level=None, metric="top-1"):
    (one,) = [
        r
        for r in found.rows
        if (r.condition, r.level, r.metric) == (condition, level, metric)
    ]
    return one.value


def test_dropped_decisive_words_cost_what_they_must():
    made, labels = texts(400)
    found = evaluate_robustness(
        Counter(), (made, labels), tokenizer=Tokenizer(), shares=[0.5]
    )
    assert row(found, "clean") == 1.0
    # A text is right if its decisive word stays; otherwise the tie goes to class 0.
    expected = 0.5 + 0.5 * np.mean(labels == 0)
    assert row(found, "words dropped", 0.5) == pytest.approx(expected, abs=0.07)
    # Counting does not depend on the order of words.
    assert row(found, "words swapped", 0.5) == 1.0
    conditions = {r.condition for r in found.rows}
    assert {
        "typos",
        "words inserted",
        "tokens replaced",
        "all corruptions",
    } < conditions


def test_forms_of_data_agree():
    made, labels = texts()
    tokenizer = Tokenizer()
    batch = tokenizer(made, padding=True, truncation=True, return_tensors="pt")
    options = {
        "corruptions": ["replaced", "dropped"],
        "plan": RobustnessPlan(special_ids=[PAD, CLS]),
    }
    whole = evaluate_robustness(Counter(), {**batch, "labels": labels}, **options)
    pair = evaluate_robustness(Counter(), (batch, labels), **options)
    parts = [
        {
            **{k: v[at : at + 25] for k, v in batch.items()},
            "labels": labels[at : at + 25],
        }
        for at in range(0, 60, 25)
    ]
    several = evaluate_robustness(Counter(), iter(parts), batch_size=7, **options)
    bare = evaluate_robustness(Counter(), (batch["input_ids"], labels), **options)
    assert whole.rows == pair.rows == several.rows == bare.rows
    replaced = evaluate_robustness(
        Counter(), (made, labels), tokenizer=tokenizer, corruptions=["replaced"]
    )
    assert row(replaced, "tokens replaced", 0.4) == row(whole, "tokens replaced", 0.4)


@pytest.mark.parametrize("kind", TEXT_CORRUPTIONS)
def test_corruptions_hit_their_share_and_spare_special_tokens(kind):
    made, labels = texts(300)
    data, _ = read_labelled_texts((made, labels), Tokenizer(), None)
    clean, found = data.clean, corrupt_texts(data, kind, 0.3, seed=1)
    assert (found.ids[:, 0] == CLS).all()
    assert ((found.ids == PAD) == (found.mask == 0)).all()
    length, before = found.mask.sum(1).double() - 1, clean.mask.sum(1).double() - 1
    if kind == "dropped":
        assert (length / before).mean() == pytest.approx(0.7, abs=0.03)
    elif kind == "inserted":
        assert (length / before).mean() == pytest.approx(1.3, abs=0.03)
    else:
        changed = (found.ids != clean.ids).double().sum(1) / before
        # A typing mistake makes a word unknown here; a replaced one may be its own.
        low, high = {"typos": (0.2, 0.3), "swapped": (0.3, 0.5)}.get(kind, (0.2, 0.3))
        assert low < changed.mean() < high
    again = corrupt_texts(data, kind, 0.3, seed=1)
    assert torch.equal(found.ids, again.ids)
    assert not torch.equal(found.ids, corrupt_texts(data, kind, 0.3, seed=2).ids)


def test_paired_verdicts_and_the_last_sentence():
    made, labels = texts(200)
    models = {"plain": Counter(), "spoiled": Counter(0.4), "same": Counter()}
    found = evaluate_robustness(
        models, (made, labels), tokenizer=Tokenizer(), shares=[0.2]
    )
    by = {(d.model, d.condition): d for d in found.differences if d.level is None}
    worse, same = by["spoiled", "clean"], by["same", "clean"]
    assert worse.verdict == "worse" and worse.n_pairs == 200
    clean = {r.model: r.value for r in found.rows if r.condition == "clean"}
    assert worse.value == pytest.approx(clean["spoiled"] - clean["plain"])
    # Equal answers are no proof of equal models: one in 200 could differ.
    assert same.verdict == "cannot tell" and 0.005 < same.detectable < 0.03
    assert by["spoiled", "all corruptions"].verdict == "worse"
    last = str(found).splitlines()[-2:]
    assert last[0].startswith("spoiled against plain: on corrupted inputs worse (-")
    assert "detectable: " in last[1]


def test_runs_are_paired_by_their_order():
    made, labels = texts(100)
    models = {"plain": [Counter(), Counter(0.2)], "other": [Counter(0.2), Counter(0.4)]}
    found = evaluate_robustness(
        models,
        (made, labels),
        tokenizer=Tokenizer(),
        corruptions=["typos"],
        shares=[0.1],
    )
    (clean,) = [d for d in found.differences if d.condition == "clean"]
    values = {r.model: r.values for r in found.rows if r.condition == "clean"}
    pairs = np.subtract(values["other"], values["plain"])
    assert clean.n_pairs == 2 and clean.value == pytest.approx(pairs.mean())


@pytest.mark.parametrize(
    ("data", "options", "match"),
    [
        ((["a b"], [0]), {}, "`tokenizer` must be"),
        ({"input_ids": [[1, 2]]}, {}, "without labels"),
        ({"input_ids": [[1, 2]], "labels": [0, 1]}, {}, "`labels` must be 1 whole"),
        ({"input_ids": [[1.5]], "labels": [0]}, {}, "`input_ids` must be"),
        ({"input_ids": [[1], [1, 2]], "labels": [0, 1]}, {}, "`input_ids` must be"),
        ({"input_ids": [[1]], "labels": ["a"]}, {}, "`labels` must be an array of num"),
        (
            {"input_ids": [[1]], "token_type_ids": [[1]], "labels": [0]},
            {},
            "pairs of texts",
        ),
        (
            {"input_ids": [[1, 2]], "labels": [0]},
            {"corruptions": ["typos"]},
            "`corruptions` must be",
        ),
        (
            (["a b"], [0]),
            {"tokenizer": Tokenizer(), "corruptions": ["defocus_blur"]},
            "`corruptions` must be",
        ),
    ],
)
def test_mistakes_get_a_sentence(data, options, match):
    with pytest.raises((ValueError, TypeError), match=match):
        evaluate_robustness(Counter(), data, **options)
