"""Corruptions of small images with the strengths of our measurements on record.

Strengths are fractions of the pixel range and of the image's side. The library's
corruptions of these names have the strengths of ImageNet-C.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from eigenheads.extend import FloatArray

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
