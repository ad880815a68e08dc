"""The layers of :mod:`eigenheads.nn`."""

from torch import nn

from eigenheads.nn._projections import AbstractAttention


def output_projection(
    module: nn.Module, parent: nn.Module | None, name: str
) -> nn.Module | None:
    """Return the output projection if this is a layer of ours, else None."""
    return module.proj if isinstance(module, AbstractAttention) else None
