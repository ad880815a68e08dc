"""Read what users give: images with classes, ids of words; run a model in batches."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from eigenheads._checks import Got, fail
from eigenheads.robustness._corruptions import check_images


@dataclass(frozen=True)
class Images:
    """Images with entries 0 to 1, their classes, and images of no class."""

    x: Tensor
    y: Tensor
    outliers: Tensor | None


def read_images(data: Sequence[Any], outliers: object, *, owner: str) -> Images:
    """Return images and classes as tensors, or raise in the name of `owner`."""
    if len(data) != 2:
        contract = "a pair (images, classes), or ids of words"
        fail("data", contract, Got(f"{len(data)} things"), owner=owner)
    x = _pixels("data[0]", data[0], owner=owner)
    y = torch.as_tensor(_array(data[1]))
    if y.shape != x.shape[:1] or y.is_floating_point() or bool((y < 0).any()):
        contract = f"{len(x)} whole numbers >= 0: a class for each image"
        fail("data[1]", contract, _array(data[1]), owner=owner)
    foreign = None if outliers is None else _pixels("outliers", outliers, owner=owner)
    if foreign is not None and foreign.shape[1:] != x.shape[1:]:
        contract = f"images of shape {tuple(x.shape[1:])}"
        fail("outliers", contract, Got(tuple(foreign.shape[1:])), owner=owner)
    return Images(x, y.long(), foreign)


def read_words(data: object, *, owner: str) -> Tensor:
    """Return ids of words ``(n, tokens)``, or raise in the name of `owner`."""
    ids = torch.as_tensor(_array(data))
    if ids.ndim != 2 or ids.shape[1] < 2 or ids.is_floating_point() or not len(ids):
        contract = "a pair (images, classes), or ids of words of shape (n, tokens >= 2)"
        fail("data", contract, _array(data), owner=owner)
    return ids.long()


def _array(values: object) -> Any:
    return (
        values.detach().cpu().numpy()
        if isinstance(values, Tensor)
        else (np.asarray(values))
    )


def _pixels(name: str, images: object, *, owner: str) -> Tensor:
    dtype = images.dtype if isinstance(images, Tensor) else torch.float32
    dtype = dtype if dtype.is_floating_point else torch.float32
    return torch.from_numpy(check_images(name, _array(images), owner=owner)).to(dtype)


def logits_of(model: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    """Return a function to logits, whatever the model's output carries them in."""

    def run(x: Tensor) -> Tensor:
        output = model(x)
        logits: Tensor = getattr(output, "logits", output)
        return logits

    return run


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """Put a module into evaluation mode, and back module by module."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    before = [module.training for module in modules]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module, training in zip(modules, before, strict=True):
            module.training = training


def device_of(model: object) -> torch.device:
    """Return where a module's first parameter or buffer lies."""
    if isinstance(model, nn.Module):
        for tensor in chain(model.parameters(), model.buffers()):
            return tensor.device
    return torch.device("cpu")
