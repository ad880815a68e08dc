"""Words for language models: from a text of the data folder, or drawn."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eigenheads.experiments._data import data_file

TEXTS = ("text/wikitext2-valid.txt", "text/wikitext2-test.txt")
_UNKNOWN = "<unk>"


@dataclass(frozen=True)
class Words:
    """Ids of words, cut into sequences ``(n, length)``; the last id is never seen."""

    train: NDArray[np.int64]
    test: NDArray[np.int64]
    n_words: int

    @property
    def swapped_in(self) -> int:
        """Id of the word that is swapped in, the paper's AAA."""
        return self.n_words


def load_words(
    data: str, *, n_words: int, length: int, rng: np.random.Generator
) -> Words:
    """Return the most frequent words of a text by id, or of a drawn language."""
    if data == "drawn":
        ids_drawn = _draw_words(n_words, 500 * length, rng)
        train, test = ids_drawn[: 400 * length], ids_drawn[400 * length :]
    else:
        first, second = (
            data_file(name).read_text(encoding="utf-8").split() for name in TEXTS
        )
        common = Counter(word for word in first if word != _UNKNOWN)
        known = [word for word, _ in common.most_common(n_words - 1)]
        ids = {word: index for index, word in enumerate(known)}
        train, test = (
            np.array([ids.get(word, n_words - 1) for word in text])
            for text in (first, second)
        )
    return Words(_cut(train, length), _cut(test, length), n_words)


def bigram_perplexity(words: Words, n_test: int) -> float:
    """Return what a model that knows the last word alone reaches on the test text.

    Counts of pairs, with the frequencies of words where pairs are rare (Witten and
    Bell 1991): after a word that was seen n times before t different ones, the next is
    new with probability t / (n + t).
    """
    ids = words.train.ravel()
    alone = np.bincount(ids, minlength=words.n_words) + 0.1
    alone = alone / alone.sum()
    pairs = np.zeros((words.n_words, words.n_words))
    np.add.at(pairs, (ids[:-1], ids[1:]), 1)
    n, t = pairs.sum(axis=1, keepdims=True), (pairs > 0).sum(axis=1, keepdims=True)
    t = np.maximum(t, 1)  # after a word that was never seen, all are new
    odds = (pairs + t * alone) / (n + t)
    test = words.test[:n_test]
    return float(np.exp(-np.log(odds[test[:, :-1], test[:, 1:]]).mean()))


def _draw_words(n_words: int, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw a language in which the word before the last leaves few for the next.

    The next word is one of four that the word before the last picks, so the last word
    says nothing and a model must look back by two.
    """
    follow = rng.integers(0, n_words, (n_words, 4))
    odds = rng.choice(4, size=n, p=(0.7, 0.2, 0.07, 0.03))
    ids = np.zeros(n, dtype=np.int64)
    ids[:2] = rng.integers(0, n_words, 2)
    for at in range(2, n):
        ids[at] = follow[ids[at - 2], odds[at]]
    return ids


def _cut(ids: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    whole = len(ids) // length
    return ids[: whole * length].reshape(whole, length)
