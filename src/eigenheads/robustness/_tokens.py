"""Corruption of tokens: whole patches of images, embedded tokens, and words."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from eigenheads._checks import (
    Got,
    check_choice,
    check_count,
    check_instance,
    check_number,
    fail,
)
from eigenheads._rng import check_generator
from eigenheads._typing import FloatArray
from eigenheads.robustness._corruptions import Pixels
from eigenheads.robustness._read import check_images

_LARGEST_ID: Final = 2**31 - 1
Flags = NDArray[np.bool_]

# --- Patches of images, whose places are known ---------------------------------------


def corrupt_patches(
    images: Pixels,
    kind: str,
    share: float,
    *,
    patch: int,
    rng: np.random.Generator,
) -> tuple[Pixels, Flags]:
    """Corrupt a share of the patches of each image, and return which.

    Parameters
    ----------
    images
        Array or tensor of shape ``(n, channels, height, width)``, entries from 0 to 1;
        height and width are multiples of `patch`.
    kind
        ``"replaced"``: by the patch at the same place of another image.
        ``"saturated"``: all ones. ``"shuffled"``: the chosen patches change places
        within their image. ``"occluded"``: one grey square anywhere, with this share of
        the area; a patch counts as corrupted if the square touches it.
    share
        Share of the patches, rounded to a whole number of them.
    patch
        Width of a patch in pixels.
    rng
        Random numbers.

    Returns
    -------
    corrupted
        Images of the same shape: a tensor on the same device, or an array in double
        precision.
    flags
        Corrupted patches ``(n, patches)``, row by row of the image.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> dark = np.zeros((1, 1, 4, 4))
    >>> found, flags = corrupt_patches(dark, "saturated", 0.25, patch=2, rng=rng)
    >>> found.sum(), flags.sum()
    (np.float64(4.0), np.int64(1))
    """
    check_choice("kind", kind, PATCH_CORRUPTIONS)
    share = check_number("share", share, minimum=0.0, maximum=1.0)
    patch = check_count("patch", patch)
    rng = check_generator(rng)
    x = check_images("images", images)
    if x.ndim != 4 or x.shape[-1] % patch or x.shape[-2] % patch:
        contract = f"of shape (n, channels, height, width), in multiples of {patch}"
        fail("images", contract, Got(x.shape))
    if kind == "occluded":
        changed, flags = _occlude(x, share, patch, rng)
    else:
        cut = _cut(x, patch)
        flags = _random_places(len(cut), cut.shape[1], share, rng)
        changed = _join(_CHANGES[kind](cut, flags, rng), x.shape)
    if isinstance(images, Tensor):
        return torch.from_numpy(changed).to(images), flags
    return changed, flags


def _cut(x: FloatArray, patch: int) -> FloatArray:
    """Return ``(n, patches, channels, patch, patch)``, row by row of the image."""
    n, channels, height, width = x.shape
    cut = x.reshape(n, channels, height // patch, patch, width // patch, patch)
    return cut.transpose(0, 2, 4, 1, 3, 5).reshape(n, -1, channels, patch, patch)


def _join(cut: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """Return the images of patches; the inverse of cutting."""
    n, channels, height, width = shape
    patch = cut.shape[-1]
    grid = cut.reshape(n, height // patch, width // patch, channels, patch, patch)
    return grid.transpose(0, 3, 1, 4, 2, 5).reshape(shape)


def _random_places(n: int, count: int, share: float, rng: np.random.Generator) -> Flags:
    flags = np.zeros((n, count), dtype=bool)
    chosen = rng.random((n, count)).argsort(1)[:, : round(share * count)]
    np.put_along_axis(flags, chosen, True, axis=1)
    return flags


def _exchange(cut: FloatArray, flags: Flags, rng: np.random.Generator) -> FloatArray:
    n, count = flags.shape
    if n < 2:
        contract = "at least two, so that patches can be exchanged"
        fail("images", contract, Got(f"{n}"))
    # A shift by at least one image never takes the image itself.
    donor = (np.arange(n)[:, None] + rng.integers(1, n, (n, count))) % n
    taken = cut[donor, np.arange(count)]
    return np.where(flags[..., None, None, None], taken, cut)


def _saturate(cut: FloatArray, flags: Flags, rng: np.random.Generator) -> FloatArray:
    return np.where(flags[..., None, None, None], 1.0, cut)


def _shuffle(cut: FloatArray, flags: Flags, rng: np.random.Generator) -> FloatArray:
    places = np.nonzero(flags)[1].reshape(len(flags), -1)
    # A rotation of a random order: no chosen patch stays where it was.
    places = rng.permuted(places, axis=1)
    rows = np.arange(len(flags))[:, None]
    cut = cut.copy()
    cut[rows, places] = cut[rows, np.roll(places, 1, axis=1)]
    return cut


_CHANGES: Final = {"replaced": _exchange, "saturated": _saturate, "shuffled": _shuffle}
PATCH_CORRUPTIONS: Final = (*_CHANGES, "occluded")


def _occlude(
    x: FloatArray, share: float, patch: int, rng: np.random.Generator
) -> tuple[FloatArray, Flags]:
    n, _, height, width = x.shape
    inside = []
    for side in (height, width):
        size = round(share**0.5 * side)
        start = rng.integers(0, side - size + 1, (n, 1))
        inside.append((np.arange(side) >= start) & (np.arange(side) < start + size))
    square = inside[0][:, None, :, None] & inside[1][:, None, None, :]
    touched: Flags = np.asarray(
        _cut(square.astype(np.float64), patch).any(axis=(2, 3, 4))
    )
    return np.where(square, 0.5, x), touched


# --- Embedded tokens and words -------------------------------------------------------


@contextmanager
def corrupting_tokens(
    model: nn.Module,
    layer: str,
    share: float,
    *,
    generator: torch.Generator | None = None,
) -> Iterator[None]:
    """Replace a share of the tokens that a layer of a model returns, in this context.

    A replaced token comes from another position or example of the same batch: the
    marginal distribution of the tokens is unchanged, but they carry no information
    about the example.

    Parameters
    ----------
    model
        A model.
    layer
        Name of its module that returns ``(batch, tokens, d)``, such as an embedding.
    share
        Share of the tokens to replace, 0 to 1.
    generator
        Random numbers.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Identity())
    >>> tokens = torch.arange(6.0).view(1, 6, 1)
    >>> with corrupting_tokens(model, "0", 1.0):
    ...     changed = model(tokens)
    >>> bool((changed != tokens).all())
    True
    """
    share = check_number("share", share, minimum=0.0, maximum=1.0)
    check_instance("model", model, nn.Module)
    check_random(generator)
    modules = dict(model.named_modules())
    check_choice("layer", layer, modules)

    def replace(module: nn.Module, given: Any, tokens: object) -> Tensor:
        if not isinstance(tokens, Tensor) or tokens.ndim != 3:
            got = Got(f"{layer!r}, which returns {_described(tokens)}")
            contract = "a layer that returns (batch, tokens, d)"
            fail("layer", contract, got)
        return _replaced(tokens, share, generator)

    handle = modules[layer].register_forward_hook(replace)
    try:
        yield
    finally:
        handle.remove()


def check_random(generator: object) -> None:
    """Raise unless `generator` is None or a generator of PyTorch."""
    if generator is not None and not isinstance(generator, torch.Generator):
        fail("generator", "a torch.Generator or None", generator)


def _described(output: object) -> str:
    if isinstance(output, Tensor):
        return f"shape {tuple(output.shape)}"
    return f"a {type(output).__name__}"


def _replaced(
    tokens: Tensor, share: float, generator: torch.Generator | None
) -> Tensor:
    batch, n_tokens, width = tokens.shape
    total = batch * n_tokens
    # The same number of tokens in each example, at random places.
    chosen = torch.rand(batch, n_tokens, generator=generator).argsort(1)
    chosen = (chosen < round(share * n_tokens)).to(tokens.device)
    # A shift by at least one place never takes the token itself.
    shift = torch.randint(1, max(total, 2), (total,), generator=generator)
    source = ((torch.arange(total) + shift) % total).to(tokens.device)
    drawn = tokens.reshape(total, width)[source].view_as(tokens)
    return torch.where(chosen[..., None], drawn, tokens)


def swap_words(
    ids: Tensor,
    share: float,
    *,
    replacement: int,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Replace a share of the words by one fixed word.

    The paper replaces words by "AAA".

    Parameters
    ----------
    ids
        Of any shape.
    share
        Probability that a word is swapped.
    replacement
        Id of the word that replaces it.
    generator
        Random numbers.

    Returns
    -------
    swapped
        Of the same shape.

    Examples
    --------
    >>> import torch
    >>> swap_words(torch.arange(3), 1.0, replacement=7).tolist()
    [7, 7, 7]
    """
    share = check_number("share", share, minimum=0.0, maximum=1.0)
    word = check_count("replacement", replacement, minimum=0, maximum=_LARGEST_ID)
    check_random(generator)
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.is_complex():
        fail("ids", "a tensor of whole numbers", ids)
    if ids.is_meta or ids.is_quantized or ids.layout != torch.strided:
        got = Got("none")
        fail("ids", "a dense tensor that holds numbers", got)
    hit = torch.rand(ids.shape, generator=generator).to(ids.device) < share
    return torch.where(hit, word, ids)
