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


def _draw_words(n_words: int, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw a language in which the last two words leave few for the next.

    The next word is one of four that the sum of the last two ids picks, so a model
    must look back by two to predict it.
    """
    follow = rng.integers(0, n_words, (n_words, 4))
    odds = rng.choice(4, size=n, p=(0.7, 0.2, 0.07, 0.03))
    ids = np.zeros(n, dtype=np.int64)
    ids[:2] = rng.integers(0, n_words, 2)
    for at in range(2, n):
        ids[at] = follow[(ids[at - 1] + ids[at - 2]) % n_words, odds[at]]
    return ids


def _cut(ids: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    whole = len(ids) // length
    return ids[: whole * length].reshape(whole, length)
