"""Inputs of the small models: digits, MNIST, WikiText-2, and a drawn language."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenheads_papers._data import data_file, read_idx

MNIST = tuple(
    f"mnist/{part}-{what}-ubyte.gz"
    for part in ("train", "t10k")
    for what in ("images-idx3", "labels-idx1")
)
TEXTS = ("text/wikitext2-valid.txt", "text/wikitext2-test.txt")
_UNKNOWN = "<unk>"


@dataclass(frozen=True)
class Split:
    """Images ``(n, side, side)`` with entries 0 to 1, and their classes."""

    train: NDArray[np.float32]
    train_classes: NDArray[np.int64]
    test: NDArray[np.float32]
    test_classes: NDArray[np.int64]


def load_split(
    data: str, *, n_train: int, n_test: int, rng: np.random.Generator
) -> Split:
    """Return a random split of ``"digits"``, or random parts of MNIST's own split."""
    if data == "digits":
        from sklearn.datasets import load_digits

        images, classes = load_digits(return_X_y=True)
        # One permutation for both parts keeps training and test images disjoint.
        order = rng.permutation(len(images))
        pixels = images[order].reshape(-1, 8, 8).astype(np.float32) / 16
        first, then = slice(n_train), slice(n_train, n_train + n_test)
        return Split(
            pixels[first], classes[order][first], pixels[then], classes[order][then]
        )
    parts: list[Any] = []
    # The names come in pairs of images and labels: training first, then test.
    for start, count in ((0, n_train), (2, n_test)):
        images, classes = (
            read_idx(data_file(name)) for name in MNIST[start : start + 2]
        )
        chosen = rng.permutation(len(images))[:count]
        parts += [
            images[chosen].astype(np.float32) / 255,
            classes[chosen].astype(np.int64),
        ]
    return Split(*parts)


@dataclass(frozen=True)
class Words:
    """Ids of words, cut into sequences ``(n, length)``; the last id is never seen."""

    train: NDArray[np.int64]
    test: NDArray[np.int64]
    n_words: int

    @property
    def swapped_in(self) -> int:
        """Id of the word that replaces others, the paper's AAA."""
        return self.n_words


def load_words(
    data: str, *, n_words: int, length: int, rng: np.random.Generator
) -> Words:
    """Return the most frequent words of a text by id, or of a drawn language."""
    if data == "drawn":
        ids_drawn = _draw_words(n_words, 500 * length, rng)
        # Both parts come from one chain, so the test text follows the same rules.
        train, test = ids_drawn[: 400 * length], ids_drawn[400 * length :]
    else:
        first, second = (
            data_file(name).read_text(encoding="utf-8").split() for name in TEXTS
        )
        # The vocabulary is that of the training text alone; its last id stands for
        # every other word, in the test text as well.
        common = Counter(word for word in first if word != _UNKNOWN)
        known = [word for word, _ in common.most_common(n_words - 1)]
        ids = {word: index for index, word in enumerate(known)}
        train, test = (
            np.array([ids.get(word, n_words - 1) for word in text])
            for text in (first, second)
        )
    return Words(_cut(train, length), _cut(test, length), n_words)


def bigram_perplexity(words: Words, n_test: int) -> float:
    """Return the test perplexity of a model that knows the last word alone.

    Counts of pairs, with the frequencies of words where pairs are rare (Witten and
    Bell 1991): after a word that was seen n times before t different ones, the next is
    new with probability t / (n + t).
    """
    ids = words.train.ravel()
    # The added 0.1 gives a positive probability to words that the training text lacks;
    # otherwise one of them makes the perplexity infinite.
    alone = np.bincount(ids, minlength=words.n_words) + 0.1
    alone = alone / alone.sum()
    pairs = np.zeros((words.n_words, words.n_words))
    # An indexed sum would count a repeated pair once. Sequences follow each other in
    # the text, so pairs across their borders are real pairs.
    np.add.at(pairs, (ids[:-1], ids[1:]), 1)
    n, t = pairs.sum(axis=1, keepdims=True), (pairs > 0).sum(axis=1, keepdims=True)
    t = np.maximum(t, 1)  # after a word that was never seen, all are new
    odds = (pairs + t * alone) / (n + t)
    test = words.test[:n_test]
    return float(np.exp(-np.log(odds[test[:, :-1], test[:, 1:]]).mean()))


def _draw_words(n_words: int, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw words from a chain of order two.

    The next word is one of four that the word before the last selects, so the last
    word is uninformative and a model must look back by two.
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
