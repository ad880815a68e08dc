"""The layout of timm's attention: ``qkv``, ``proj``, ``num_heads``; timm not needed."""

from torch import nn


def output_projection(
    module: nn.Module, parent: nn.Module | None, name: str
) -> nn.Module | None:
    """Return the output projection if this is laid out as timm's, else None."""
    qkv, proj = getattr(module, "qkv", None), getattr(module, "proj", None)
    if not (isinstance(qkv, nn.Linear) and isinstance(proj, nn.Linear)):
        return None
    if not isinstance(getattr(module, "num_heads", None), int):
        return None
    return proj
