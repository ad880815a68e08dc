"""Corruptions of images by name: the list, the check of a name, and the call."""

from types import MappingProxyType
from typing import Any, Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigenheads._checks import check_choice, check_count, check_text, fail
from eigenheads._rng import check_generator
from eigenheads.robustness._imagenet_c import KINDS, corrupt_seeded
from eigenheads.robustness._read import check_images

_OWNER = "corrupt"
SEVERITIES: Final = (1, 2, 3, 4, 5)
Pixels = TypeVar("Pixels", NDArray[Any], Tensor)
#: What each corruption of images does, by name.
CORRUPTIONS: Final = MappingProxyType(
    {name: about for name, (_, about) in KINDS.items()}
)
IMAGENET_C: Final = tuple(CORRUPTIONS)[:15]
# Earlier names: of the same corruptions, and of weaker or stronger ones.
_SAME: Final = {
    "shot noise": "shot_noise",
    **{f"imagenet-c/{k}": k for k in IMAGENET_C},
}
_GONE: Final = {
    "gaussian noise": "gaussian_noise",
    "impulse noise": "impulse_noise",
    "blur": "defocus_blur",
    "motion blur": "motion_blur",
}


def check_corruption(name: str, kind: str, *, owner: str) -> str:
    """Return the name of a corruption of images, or raise."""
    kind = check_text(name, kind, owner=owner)
    if kind in _GONE:
        hint = f"Use {_GONE[kind]!r}; its severities are those of ImageNet-C."
        fail(name, "a corruption of `CORRUPTIONS`", kind, owner=owner, hint=hint)
    return check_choice(name, _SAME.get(kind, kind), list(CORRUPTIONS), owner=owner)


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
        A name in :data:`CORRUPTIONS`: one of the fifteen of ImageNet-C
        (:data:`IMAGENET_C`) with their published severities, ``"occlusion"`` or
        ``"translation"``.
    severity
        From 1 (mild) to 5.
    rng
        Random numbers: one seed per image is drawn from it.

    Returns
    -------
    corrupted
        Of the same shape, entries from 0 to 1: a tensor on the same device, or an array
        in double precision, computed in single precision.

    Notes
    -----
    The severities of ImageNet-C are for images of 224 pixels. On other images lengths
    scale with the smaller side, and strengths of noise, light, contrast and compression
    stay. CIFAR-10-C, for images of 32 pixels, has severities of its own, mostly weaker,
    which are not used here: results are not comparable with its published ones.

    Kinds without random numbers give the pixels of the published program at 224 pixels.
    Frost uses a synthetic texture instead of photographs, so its results are not
    comparable with published ones.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> noisy = corrupt(np.full((1, 8, 8), 0.5), "gaussian_noise", 3, rng)
    >>> bool(0.1 < noisy.std() < 0.3)
    True
    >>> CORRUPTIONS["pixelate"]
    'larger pixels'
    """
    kind = check_corruption("kind", kind, owner=_OWNER)
    level = check_count("severity", severity, owner=_OWNER, maximum=5)
    rng = check_generator(rng, owner=_OWNER)
    array = check_images("images", images, owner=_OWNER)
    seeds = rng.integers(2**62, size=len(array)).tolist()
    if isinstance(images, Tensor):
        return corrupt_seeded(images, kind, level, seeds)
    return corrupt_seeded(torch.from_numpy(array), kind, level, seeds).numpy()
