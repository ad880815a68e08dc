"""Digits on black or on photographs, and patches that are corrupted."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from eigenheads_papers._data import data_file, read_idx
from eigenheads_papers.teo2024._inputs import MNIST

SIDE = 28
# Share of the columns of the photographs whose crops are used in training.
_TRAINED = 0.6
Images = NDArray[np.float32]
Flags = NDArray[np.bool_]


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


def compose(
    digits: NDArray[np.uint8],
    *,
    photographs: bool,
    trained: bool,
    rng: np.random.Generator,
) -> Images:
    """Return images ``(n, channels, 28, 28)`` with entries 0 to 1.

    Parameters
    ----------
    digits
        Bytes.
    photographs
        Whether a digit of a random light colour lies on a darkened crop of one of
        scikit-learn's two photographs, instead of white on black.
    trained
        Whether the crops are of the part of the photographs for training.
    rng
        Random numbers.
    """
    ink = digits.astype(np.float32)[:, None] / np.float32(255)
    if not photographs:
        return ink
    from sklearn.datasets import load_sample_images

    both = np.stack(load_sample_images().images).astype(np.float32) / 255
    border = round(_TRAINED * both.shape[2])
    part = both[:, :, :border] if trained else both[:, :, border:]
    which = rng.integers(0, len(part), len(ink))
    rows = rng.integers(0, part.shape[1] - SIDE + 1, len(ink))
    columns = rng.integers(0, part.shape[2] - SIDE + 1, len(ink))
    crops = np.stack(
        [
            part[one, row : row + SIDE, column : column + SIDE]
            for one, row, column in zip(which, rows, columns, strict=True)
        ]
    ).transpose(0, 3, 1, 2)
    color = rng.uniform(0.7, 1.0, (len(ink), 3, 1, 1)).astype(np.float32)
    return ((1 - ink) * 0.7 * crops + ink * color).astype(np.float32)


def random_places(n: int, count: int, k: int, rng: np.random.Generator) -> Flags:
    """Return `k` random places of `count` in each of `n` rows."""
    flags = np.zeros((n, count), dtype=bool)
    chosen = rng.random((n, count)).argsort(1)[:, :k]
    np.put_along_axis(flags, chosen, True, axis=1)
    return flags


def median_filtered(images: Images) -> Images:
    """Return images after a 3 × 3 median filter per channel."""
    return ndimage.median_filter(images, size=(1, 1, 3, 3), mode="nearest")


def linear_accuracy(
    train: Images,
    train_classes: NDArray[np.int64],
    test: Images,
    truth: NDArray[np.int64],
) -> float:
    """Return the accuracy of a ridge classifier on pixels, in percent."""
    from sklearn.linear_model import RidgeClassifier

    model = RidgeClassifier(alpha=10.0)
    model.fit(train.reshape(len(train), -1), train_classes)
    found = model.predict(test.reshape(len(test), -1))
    return 100 * float(np.mean(found == truth))
