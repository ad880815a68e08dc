"""Mode and device of modules, for everything that runs models of others."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """Put a module into evaluation mode, and back module by module."""
    # Modes may differ between modules, so each is restored by itself.
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
    """Return the device of a module's first parameter or buffer."""
    if isinstance(model, nn.Module):
        for tensor in chain(model.parameters(), model.buffers()):
            return tensor.device
    return torch.device("cpu")
