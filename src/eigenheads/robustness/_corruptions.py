"""Common corruptions of images of any size, at severities one to five.

Ten kinds of our own, small and array-based: their strengths are fractions of the pixel
range and of the side of the image, so that images of 8 and of 224 pixels lose about as
much. The kinds of ImageNet-C, with their published strengths, are in `_imagenet_c`.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from eigenheads._checks import (
    Got,
    check_choice,
    check_count,
    check_numbers,
    fail,
)
from eigenheads._rng import check_generator
from eigenheads._typing import FloatArray
from eigenheads.robustness._imagenet_c import KINDS, corrupt_as_imagenet_c

_OWNER = "corrupt"
SEVERITIES: Final = (1, 2, 3, 4, 5)
Corruption = Callable[[FloatArray, int, np.random.Generator], FloatArray]
Pixels = TypeVar("Pixels", NDArray[Any], Tensor)
_PREFIX = "imagenet-c/"


def _gaussian_noise(x: FloatArray, at: int, rng: np.random.Generator) -> FloatArray:
    return x + (0.08, 0.14, 0.2, 0.28, 0.38)[at] * rng.standard_normal(x.shape)


def _shot_noise(x: FloatArray, at: int, rng: np.random.Generator) -> FloatArray:
    # Poisson counts: the fewer photons, the noisier.
    photons = (60.0, 25.0, 12.0, 5.0, 3.0)[at]
    return rng.poisson(np.clip(x, 0.0, 1.0) * photons) / photons


def _impulse_noise(x: FloatArray, at: int, rng: np.random.Generator) -> FloatArray:
    share = (0.03, 0.06, 0.1, 0.17, 0.27)[at]
    hit = rng.random(x.shape) < share
    return np.where(hit, rng.integers(0, 2, x.shape), x)


def _blur(x: FloatArray, at: int, rng: np.random.Generator) -> FloatArray:
    sigma = (0.04, 0.06, 0.08, 0.11, 0.15)[at] * min(x.shape[-2:])
    return ndimage.gaussian_filter(x, sigma, axes=(-2, -1), mode="nearest")


def _motion_blur(x: FloatArray, at: int, rng: np.random.Generator) -> FloatArray:
    """Average along rows: one direction, as of a camera that moves sideways."""
    length = (0.12, 0.2, 0.3, 0.4, 0.5)[at] * x.shape[-1]
    size = max(2, round(length))
    return ndimage.uniform_filter1d(x, size, axis=-1, mode="nearest")


def _brightness(x: FloatArray, at: int, rng: np.random.Generator) -> FloatArray:
    return x + (0.1, 0.2, 0.3, 0.4, 0.5)[at]


def _contrast(x: FloatArray, at: int, rng: np.random.Generator) -> FloatArray:
    kept = (0.6, 0.45, 0.3, 0.2, 0.1)[at]
    mean = x.mean(axis=(-2, -1), keepdims=True)
    return mean + kept * (x - mean)


def _pixelate(x: FloatArray, at: int, rng: np.random.Generator) -> FloatArray:
    """Keep fewer pixels per side, each repeated (nearest neighbour)."""
    kept = (0.75, 0.6, 0.5, 0.4, 0.25)[at]
    for axis in (-2, -1):
        side = x.shape[axis]
        cells = max(1, round(kept * side))
        cell = np.arange(side) * cells // side
        middle = ((cell + 0.5) * side / cells).astype(int)
        x = np.take(x, middle, axis=axis)
    return x


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


def _translation(x: FloatArray, at: int, rng: np.random.Generator) -> FloatArray:
    """Shift by a share of the side in one of the four directions; edges repeat."""
    share = (0.06, 0.1, 0.15, 0.2, 0.25)[at]
    out = np.empty_like(x)
    for image, way, place in zip(x, rng.integers(0, 4, len(x)), out, strict=True):
        # Ways 0 to 3 are up, down, left, right.
        axis, sign = (-2, -1)[way // 2], (-1, 1)[way % 2]
        side = image.shape[axis]
        pixels = sign * max(1, round(share * side))
        index = np.clip(np.arange(side) - pixels, 0, side - 1)
        place[...] = np.take(image, index, axis=axis)
    return out


_KINDS: Final[dict[str, Corruption]] = {
    "gaussian noise": _gaussian_noise,
    "shot noise": _shot_noise,
    "impulse noise": _impulse_noise,
    "blur": _blur,
    "motion blur": _motion_blur,
    "brightness": _brightness,
    "contrast": _contrast,
    "pixelate": _pixelate,
    "occlusion": _occlusion,
    "translation": _translation,
}
CORRUPTIONS: Final = tuple(_KINDS)
IMAGENET_C: Final = tuple(_PREFIX + kind for kind in KINDS)


def corrupt(
    images: Pixels,
    kind: str,
    severity: int,
    rng: np.random.Generator,
) -> Pixels:
    """Return corrupted copies of images.

    Parameters
    ----------
    images
        Array or tensor of shape ``(n, …, height, width)``, entries from 0 to 1.
    kind
        One of :data:`CORRUPTIONS`, whose severities are our own, or of
        :data:`IMAGENET_C`, with the published severities.
    severity
        From 1 (mild) to 5.
    rng
        Random numbers; some kinds use none. The kinds of ImageNet-C draw one seed per
        image from it.

    Returns
    -------
    corrupted
        Of the same shape, entries from 0 to 1: a tensor on the same device, or an array
        in double precision.

    Notes
    -----
    Strengths of :data:`CORRUPTIONS` are fractions of the pixel range and of the image's
    side; on very small images (8 pixels) some severities of the geometric kinds
    coincide. The kinds of ImageNet-C are defined for 224 pixels and scale with the
    smaller side. Frost uses a synthetic texture instead of the published photographs,
    so its results are not comparable with published ones. The others follow the
    published descriptions and settings; interpolation and random numbers differ from
    the published program.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> noisy = corrupt(np.full((1, 8, 8), 0.5), "gaussian noise", 3, rng)
    >>> bool(0.1 < noisy.std() < 0.3)
    True
    """
    check_choice("kind", kind, (*CORRUPTIONS, *IMAGENET_C), owner=_OWNER)
    level = check_count("severity", severity, owner=_OWNER, maximum=5)
    rng = check_generator(rng, owner=_OWNER)
    array = check_images("images", images, owner=_OWNER)
    if kind in IMAGENET_C:
        given = images.detach() if isinstance(images, Tensor) else None
        source = torch.from_numpy(array) if given is None else given
        found = _published(source.float(), kind.removeprefix(_PREFIX), level, rng)
    else:
        found = torch.from_numpy(np.clip(_KINDS[kind](array, level - 1, rng), 0.0, 1.0))
    if isinstance(images, Tensor):
        return found.to(images)
    return found.double().numpy()


def _published(x: Tensor, kind: str, level: int, rng: np.random.Generator) -> Tensor:
    """Corrupt as in ImageNet-C; the axes between images and rows are channels."""
    seeds = rng.integers(2**62, size=len(x)).tolist()
    channels = x.reshape(len(x), -1, *x.shape[-2:])
    return corrupt_as_imagenet_c(channels, kind, level, seeds).reshape(x.shape)


def check_images(name: str, images: object, *, owner: str) -> FloatArray:
    """Return images as float64, or raise unless they are a batch with entries 0..1."""
    array = check_numbers(name, images, owner=owner)
    if array.ndim < 3 or 0 in array.shape:
        contract = "numbers of shape (n, …, height, width)"
        fail(name, contract, array, owner=owner)
    low, high = float(array.min()), float(array.max())
    if not (low >= 0 and high <= 1):
        hint = "Put normalisation into the model, so that budgets mean pixels."
        got = Got(f"entries from {low:g} to {high:g}")
        fail(name, "entries from 0 to 1", got, owner=owner, hint=hint)
    return array
