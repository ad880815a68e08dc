"""Inputs of small models: images of digits and their corruption, words, sentences.

Corruptions have the strengths of our measurements on record, as fractions of the pixel
range and of the image's side. The library's of these names have ImageNet-C's.
"""

import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from eigenheads.extend import FloatArray, generator
from eigenheads_papers._data import data_file, read_idx

MNIST: Final = tuple(
    f"mnist/{part}-{what}-ubyte.gz"
    for part in ("train", "t10k")
    for what in ("images-idx3", "labels-idx1")
)
TEXTS: Final = ("text/wikitext2-valid.txt", "text/wikitext2-test.txt")
POLARITY: Final = "text/sentence_polarity.zip"
_UNKNOWN: Final = "<unk>"


# --- Images --------------------------------------------------------------------------


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
class Digits:
    """Digits ``(n, 28, 28)`` as bytes, and their classes."""

    train: NDArray[np.uint8]
    train_classes: NDArray[np.int64]
    test: NDArray[np.uint8]
    test_classes: NDArray[np.int64]


def load_all_digits(data: str) -> Digits:
    """Return MNIST, or scikit-learn's digits enlarged to the size of MNIST's."""
    if data == "digits":
        from sklearn.datasets import load_digits

        images, classes = load_digits(return_X_y=True)
        pixels = (images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
        wide = np.pad(pixels.repeat(3, 1).repeat(3, 2), ((0, 0), (2, 2), (2, 2)))
        half = len(wide) // 2
        return Digits(wide[:half], classes[:half], wide[half:], classes[half:])
    parts = [read_idx(data_file(name)) for name in MNIST]
    return Digits(
        parts[0], parts[1].astype(np.int64), parts[2], parts[3].astype(np.int64)
    )


def linear_accuracy(
    train: NDArray[np.float32],
    train_classes: NDArray[np.int64],
    test: NDArray[np.float32],
    truth: NDArray[np.int64],
) -> float:
    """Return the accuracy of a ridge classifier on pixels, in percent."""
    from sklearn.linear_model import RidgeClassifier

    model = RidgeClassifier(alpha=10.0)
    model.fit(train.reshape(len(train), -1), train_classes)
    answers = model.predict(test.reshape(len(test), -1))
    return 100 * float(np.mean(answers == truth))


# --- Corruption of small images -------------------------------------------------------

_Change = Callable[[FloatArray, int, np.random.Generator], FloatArray]


def _gaussian_noise(x: FloatArray, at: int, rng: np.random.Generator) -> FloatArray:
    return x + (0.08, 0.14, 0.2, 0.28, 0.38)[at] * rng.standard_normal(x.shape)


def _impulse_noise(x: FloatArray, at: int, rng: np.random.Generator) -> FloatArray:
    hit = rng.random(x.shape) < (0.03, 0.06, 0.1, 0.17, 0.27)[at]
    return np.where(hit, rng.integers(0, 2, x.shape), x)


def _blur(x: FloatArray, at: int, rng: np.random.Generator) -> FloatArray:
    sigma = (0.04, 0.06, 0.08, 0.11, 0.15)[at] * min(x.shape[-2:])
    return ndimage.gaussian_filter(x, sigma, axes=(-2, -1), mode="nearest")


def _contrast(x: FloatArray, at: int, rng: np.random.Generator) -> FloatArray:
    mean = x.mean(axis=(-2, -1), keepdims=True)
    return mean + (0.6, 0.45, 0.3, 0.2, 0.1)[at] * (x - mean)


def _occlusion(x: FloatArray, at: int, rng: np.random.Generator) -> FloatArray:
    """Grey out one square at a random place; its area is a share of the image's."""
    share = (0.04, 0.08, 0.14, 0.2, 0.3)[at]
    x = x.copy()
    height, width = x.shape[-2:]
    tall, wide = (max(1, round(share**0.5 * side)) for side in (height, width))
    rows = rng.integers(0, height - tall + 1, len(x))
    columns = rng.integers(0, width - wide + 1, len(x))
    for image, row, column in zip(x, rows, columns, strict=True):
        image[..., row : row + tall, column : column + wide] = 0.5
    return x


_KINDS: Final[dict[str, _Change]] = {
    "gaussian noise": _gaussian_noise,
    "impulse noise": _impulse_noise,
    "blur": _blur,
    "contrast": _contrast,
    "occlusion": _occlusion,
}


def corrupt_small(
    images: NDArray[Any], kind: str, severity: int, rng: np.random.Generator
) -> FloatArray:
    """Return corrupted copies of images ``(n, …, height, width)`` in 0 to 1.

    Severities are 1 (mild) to 5.
    """
    x = np.asarray(images, dtype=np.float64)
    return np.clip(_KINDS[kind](x, severity - 1, rng), 0.0, 1.0)


# --- Words ---------------------------------------------------------------------------


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
        vocabulary = [word for word, _ in common.most_common(n_words - 1)]
        ids = {word: index for index, word in enumerate(vocabulary)}
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


# --- Sentences -----------------------------------------------------------------------


@dataclass(frozen=True)
class SentenceSplit:
    """Sentences for training and for the test, with their classes."""

    train: tuple[str, ...]
    train_classes: NDArray[np.int64]
    test: tuple[str, ...]
    test_classes: NDArray[np.int64]


@dataclass(frozen=True)
class LabelledSentences:
    """Sentences and their classes, 0 or 1."""

    texts: tuple[str, ...]
    classes: NDArray[np.int64]

    def split(self, n_train: int, n_test: int, seed: int) -> SentenceSplit:
        """Return a random split; both parts together may not be larger than the set."""
        order = generator(seed).permutation(len(self.texts))
        first, then = order[:n_train], order[n_train : n_train + n_test]
        return SentenceSplit(
            tuple(self.texts[i] for i in first),
            self.classes[first],
            tuple(self.texts[i] for i in then),
            self.classes[then],
        )


def load_sentences(data: str) -> LabelledSentences:
    """Return sentences of film reviews, or some that templates make."""
    if data == "templates":
        return _from_templates()
    texts: list[str] = []
    counts = []
    with zipfile.ZipFile(data_file(POLARITY)) as archive:
        for kind in ("neg", "pos"):
            raw = archive.read(f"sentence_polarity/rt-polarity.{kind}")
            lines = raw.decode("latin-1").splitlines()
            stripped = [line.strip() for line in lines if line.strip()]
            texts += stripped
            counts.append(len(stripped))
    return LabelledSentences(tuple(texts), np.repeat([0, 1], counts))


def _from_templates() -> LabelledSentences:
    things = ("film", "plot", "cast", "music", "ending", "camera")
    good = ("moving", "clever", "warm", "brilliant", "charming")
    bad = ("dull", "clumsy", "cold", "tedious", "shallow")
    texts, classes = [], []
    for thing in things:
        for second in things:
            for label, words in enumerate((bad, good)):
                for word in words:
                    texts.append(f"the {thing} is {word} and so is the {second}")
                    classes.append(label)
    return LabelledSentences(tuple(texts), np.array(classes))
