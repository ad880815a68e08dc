"""Digits for the experiments: scikit-learn's own, or MNIST from the data folder."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenheads.experiments._data import data_file, read_idx

MNIST = tuple(
    f"mnist/{part}-{what}-ubyte.gz"
    for part in ("train", "t10k")
    for what in ("images-idx3", "labels-idx1")
)


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
        order = rng.permutation(len(images))
        pixels = images[order].reshape(-1, 8, 8).astype(np.float32) / 16
        first, then = slice(n_train), slice(n_train, n_train + n_test)
        return Split(
            pixels[first], classes[order][first], pixels[then], classes[order][then]
        )
    parts: list[Any] = []
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


def scramble(
    images: NDArray[np.float32], rng: np.random.Generator
) -> NDArray[np.float32]:
    """Return images of no class: the quarters of each, moved to other places."""
    half = images.shape[-1] // 2
    top, bottom = slice(half), slice(half, 2 * half)
    places = [(top, top), (top, bottom), (bottom, top), (bottom, bottom)]
    out = np.empty_like(images)
    for image, made in zip(images, out, strict=True):
        # Rotate the list of places: no quarter stays.
        by = int(rng.integers(1, 4))
        for place, source in zip(places, places[by:] + places[:by], strict=True):
            made[place] = image[source]
    return out
