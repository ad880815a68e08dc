"""Sentences in which one word decides, as the paper's Figure 1 has them.

A first sentence misleads; in the second one a single adjective says what its subject
is like, at one of two places. The words are ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

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
class Template:
    """Lists of words, of which a sentence takes one each.

    Attributes
    ----------
    first
        Sentences before the one that counts.
    owners, fillers, nouns, adverbs, sizes
        Words without a say.
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


_TRAIN = Template(
    first=_MISLEADING,
    owners=("my", "his", "her", "our"),
    fillers=("", "old", "young", "brown", "white", "local"),
    nouns=("horse", "uncle", "nurse"),
    adverbs=("", "quite", "truly"),
    sizes=("short", "tall"),
    adjectives=_TRAIN_WORDS,
)
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
    template: Template, n: int, rng: np.random.Generator
) -> tuple[list[str], NDArray[np.int64]]:
    """Draw `n` sentences, half of each label, in both orders; and the labels."""
    sentences, labels = [], []
    for index in range(n):
        label = 1 if index % 2 else -1
        words = [word for word, sign in template.adjectives if sign == label]
        # The order of words and the label are independent of each other.
        sentences.append(_sentence(template, str(rng.choice(words)), index // 2, rng))
        labels.append(label)
    return sentences, np.array(labels)


def _sentence(
    template: Template, adjective: str, index: int, rng: np.random.Generator
) -> str:
    def one(words: Sequence[str]) -> str:
        return words[int(rng.integers(len(words)))]

    start = [one(template.first), one(template.owners), one(template.fillers)]
    noun, adverb = one(template.nouns), one(template.adverbs)
    if index % 2:
        rest = [noun, "is", adverb, adjective]
    else:
        rest = [adjective, noun, "is", adverb, one(template.sizes)]
    return " ".join(part for part in [*start, *rest] if part) + "."
