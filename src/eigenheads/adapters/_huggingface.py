"""Hugging Face models whose attention goes through the attention interface."""

from torch import nn

# Projections to queries, keys, values and back, as the models name them.
_SEPARATE = (
    ("q_proj", "k_proj", "v_proj", "o_proj"),  # Llama, Mistral, Qwen, ViT
    ("q_proj", "k_proj", "v_proj", "out_proj"),  # CLIP, BART, OPT
    ("q_lin", "k_lin", "v_lin", "out_lin"),  # DistilBERT
    ("query", "key", "value", "dense"),  # ALBERT
    ("query", "key", "value", None),  # BERT, RoBERTa: the parent has the last
)
_FUSED = (
    ("c_attn", "c_proj"),  # GPT-2
    ("qkv_proj", "o_proj"),  # Phi-3
    ("query_key_value", "dense"),  # GPT-NeoX
)
_CROSS_NAMES = ("crossattention", "cross_attn", "encoder_attn", "cross_attention")


def output_projection(
    module: nn.Module, parent: nn.Module | None, name: str
) -> nn.Module | None:
    """Return the output projection if this is self-attention of a model, else None."""
    if not hasattr(getattr(module, "config", None), "_attn_implementation"):
        return None
    if _is_cross(module, name):
        return None
    for *inputs, output in (*_SEPARATE, *_FUSED):
        if all(_has_weight(module, key) for key in inputs):
            found = getattr(module, output, None) if output else _of_parent(parent)
            if isinstance(found, nn.Module):
                return found
    return None


def _is_cross(module: nn.Module, name: str) -> bool:
    return (
        name in _CROSS_NAMES
        or bool(getattr(module, "is_cross_attention", False))
        or "crossattention" in type(module).__name__.lower()
    )


def _has_weight(module: nn.Module, key: str | None) -> bool:
    projection = getattr(module, key, None) if key else None
    return getattr(getattr(projection, "weight", None), "ndim", 0) == 2


def _of_parent(parent: nn.Module | None) -> nn.Module | None:
    return getattr(getattr(parent, "output", None), "dense", None)
