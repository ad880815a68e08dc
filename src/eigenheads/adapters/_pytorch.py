"""PyTorch's own ``nn.MultiheadAttention``, alone or inside its transformer layers."""

from torch import nn


def output_projection(
    module: nn.Module, parent: nn.Module | None, name: str
) -> nn.Module | None:
    """Return the output projection if this is self-attention of PyTorch, else None."""
    if not isinstance(module, nn.MultiheadAttention):
        return None
    is_cross = isinstance(parent, nn.TransformerDecoderLayer) and (
        name == "multihead_attn"
    )
    return None if is_cross else module.out_proj
