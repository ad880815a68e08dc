"""Read data: images with classes, loaders, ids of words; and run models."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from eigenheads._checks import (
    Got,
    as_numpy,
    fail,
)
from eigenheads._errors import UsageError
from eigenheads._typing import FloatArray

_OF_NUMPY: Final = (torch.float16, torch.float32, torch.float64)


@dataclass(frozen=True)
class ImageSet:
    """Images with entries 0 to 1, and their classes."""

    x: Tensor
    y: Tensor


def read_images(data: Sequence[Any]) -> ImageSet:
    """Return images and classes as tensors, or raise."""
    if len(data) != 2:
        contract = "a pair (images, classes), or ids of words"
        fail("data", contract, Got(f"{len(data)} things"))
    x = _pixels("data[0]", data[0])
    classes = read_array("data[1]", data[1])
    if classes.dtype.kind not in "iuf":
        fail("data[1]", "classes, whole numbers", classes)
    y = torch.as_tensor(classes)
    if y.shape != x.shape[:1] or y.is_floating_point() or bool((y < 0).any()):
        contract = f"{len(x)} whole numbers >= 0: a class for each image"
        fail("data[1]", contract, classes)
    return ImageSet(x, y.long())


def read_outliers(outliers: object, shape: Any) -> ImageSet | Iterable[Any] | None:
    """Return images of none of the classes, of this shape if it is known."""
    if outliers is None or _is_loader(outliers):
        return outliers  # type: ignore[return-value]
    foreign = _pixels("outliers", outliers)
    if shape is not None and foreign.shape[1:] != shape:
        contract = f"images of shape {tuple(shape)}"
        fail("outliers", contract, Got(tuple(foreign.shape[1:])))
    return ImageSet(foreign, torch.zeros(len(foreign)).long())


def _is_loader(data: object) -> bool:
    is_held = isinstance(data, Sequence | Tensor | np.ndarray)
    return isinstance(data, Iterable) and not is_held


def read_batches(loader: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of a loader as checked images and classes."""
    is_empty = True
    for batch in loader:
        if not isinstance(batch, Sequence) or len(batch) != 2:
            contract = "a loader of pairs (images, classes)"
            fail("data", contract, Got(f"batches of {type(batch).__name__}"))
        read = read_images(batch)
        is_empty = False
        yield read.x, read.y
    if is_empty:
        fail("data", "a loader with at least one batch", Got("none"))


def read_words(data: object) -> Tensor:
    """Return ids of words ``(n, tokens)``, or raise."""
    array = read_array("data", data)
    if array.dtype.kind not in "iuf":
        fail("data", "ids of words, whole numbers", array)
    ids = torch.as_tensor(array)
    if ids.ndim != 2 or ids.shape[1] < 2 or ids.is_floating_point() or not len(ids):
        contract = "a pair (images, classes), or ids of words of shape (n, tokens >= 2)"
        fail("data", contract, array)
    return ids.long()


def read_array(name: str, values: object) -> Any:
    """Return values as an array; formats that NumPy lacks in single precision."""
    if isinstance(values, Tensor):
        if values.is_nested or values.layout != torch.strided:
            got = Got("a nested or sparse tensor")
            fail(name, "a dense tensor that holds numbers", got)
        values = values.detach().resolve_neg()
        if values.is_floating_point() and values.dtype not in _OF_NUMPY:
            values = values.float()
    elif isinstance(values, list | tuple) and _holds_masked(values):
        contract = "arrays without masked entries"
        got, hint = Got("a list with masked ones"), "Drop or fill them."
        fail(name, contract, got, hint=hint)
    try:
        return as_numpy(name, values)
    except TypeError:
        fail(name, "an array of numbers", values, error=TypeError)


def _holds_masked(values: object) -> bool:
    if isinstance(values, list | tuple):
        return any(map(_holds_masked, values))
    return bool(np.ma.is_masked(values))


def check_images(name: str, images: object) -> FloatArray:
    """Return images as float64, or raise unless they are a batch with entries 0..1."""
    array = read_array(name, images)
    if array.dtype.kind not in "biuf":
        fail(name, "an array of numbers", images, error=TypeError)
    array = array.astype(np.float64)
    if array.ndim < 3 or 0 in array.shape:
        contract = "numbers of shape (n, …, height, width)"
        fail(name, contract, array)
    low, high = float(array.min()), float(array.max())
    if not (low >= 0 and high <= 1):
        hint = "Put normalisation into the model, so that budgets mean pixels."
        got = Got(f"entries from {low:g} to {high:g}")
        fail(name, "entries from 0 to 1", got, hint=hint)
    return array


class OnlyClasses(nn.Module):
    """A model that can answer some classes only, as on a set without the others."""

    def __init__(self, model: Any, classes: Sequence[int]) -> None:
        super().__init__()
        self.model, self.classes = model, list(classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits; those of the other classes are minus infinity."""
        logits = logits_of(self.model)(x)
        if max(self.classes) >= logits.shape[1]:
            contract = f"numbers below {logits.shape[1]}, that of the model's classes"
            fail("classes", contract, max(self.classes))
        hidden = torch.ones(logits.shape[1], dtype=torch.bool, device=logits.device)
        hidden[self.classes] = False
        return logits.masked_fill(hidden, -torch.inf)


def _pixels(name: str, images: object) -> Tensor:
    dtype = images.dtype if isinstance(images, Tensor) else torch.float32
    # Models take no floats of eight bits.
    dtype = dtype if dtype.is_floating_point and dtype.itemsize > 1 else torch.float32
    return torch.from_numpy(check_images(name, images)).to(dtype)


def logits_of(model: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    """Return a function to logits, also for outputs with an attribute ``logits``."""

    def run(x: Tensor) -> Tensor:
        try:
            output = model(x)
        except UsageError:
            raise
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            got = Got(f"one that raised {error!r}"[:300])
            contract = "a function that takes the data"
            fail("model", contract, got)
        logits: Tensor = getattr(output, "logits", output)
        if not isinstance(logits, Tensor):
            contract = "a function that returns logits, or an output with them"
            got = Got(type(output).__name__)
            fail("model", contract, got)
        return logits

    return run
