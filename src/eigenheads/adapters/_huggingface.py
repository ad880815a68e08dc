"""Hugging Face models whose attention goes through the attention interface."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn

from eigenheads._checks import Got, fail
from eigenheads.adapters._heads import (
    Call,
    by_head,
    first_tensor,
    hide,
    linear_parts,
    output_by_head,
)

# Our attention function in the interface of Transformers.
IMPLEMENTATION: Final = "eigenheads_capture"
# What some models hand over that changes the softmax in ways we do not follow.
_UNSUPPORTED = ("softcap", "s_aux", "position_bias")
_RECORDS: dict[nn.Module, Callable[[Call], None]] = {}
_TOKENS: dict[nn.Module, Tensor] = {}

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


@contextmanager
def prepared(model: nn.Module) -> Iterator[None]:
    """Let the model attend by our function; then by its own again."""
    configs = _configs(model)
    if not configs:
        yield
        return
    _register()
    before = [config._attn_implementation_internal for config in configs]
    swapped = [name for name in before if str(name).startswith("eigenheads")]
    if swapped:
        got = Got("a model whose attention was swapped")
        hint = "Capture it before the swap, or undo the swap."
        fail("model", "plain softmax attention", got, owner="capture_heads", hint=hint)
    try:
        for config in configs:
            config._attn_implementation_internal = IMPLEMENTATION
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation_internal = name


@contextmanager
def watched(
    module: nn.Module, record: Callable[[Call], None], *, owner: str
) -> Iterator[None]:
    """Record each call of the module."""

    def see(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        _TOKENS[module] = first_tensor(args, kwargs)

    def checked(call: Call) -> None:
        if call.queries.shape[-2] != call.keys.shape[-2]:
            got = Got("a layer whose keys are not its own tokens")
            hint = "Leave it out with `layers`."
            fail("model", "made of self-attention", got, owner=owner, hint=hint)
        record(call)

    handle = module.register_forward_pre_hook(see, with_kwargs=True)
    _RECORDS[module] = checked
    try:
        yield
    finally:
        handle.remove()
        _RECORDS.pop(module, None)
        _TOKENS.pop(module, None)


def head_weights(
    module: Any, output: nn.Module, n_heads: int, n_groups: int
) -> dict[str, Tensor | None]:
    """Return projections and biases, cut into heads; grouped ones repeated."""
    found = output_by_head(output, n_heads)
    for name, (matrix, bias) in zip(
        ("query", "key", "value"), _projections(module, n_heads, n_groups), strict=True
    ):
        groups = n_heads if name == "query" else n_groups
        for letter, part in (("w", matrix), ("b", bias)):
            found[f"{letter}_{name}"] = (
                None
                if part is None
                else by_head(part, groups).repeat_interleave(n_heads // groups, 0)
            )
    return found


def _projections(
    module: Any, n_heads: int, n_groups: int
) -> list[tuple[Tensor, Tensor | None]]:
    for *names, _ in _SEPARATE:
        if all(_has_weight(module, name) for name in names):
            return [linear_parts(getattr(module, str(name))) for name in names]
    name = next(name for name, _ in _FUSED if _has_weight(module, name))
    matrix, bias = linear_parts(getattr(module, name))
    both = [part for part in (matrix, bias) if part is not None]
    if name == "query_key_value":  # queries, keys and values head by head
        cut = [
            [
                x.flatten(0, 1)
                for x in part.reshape(n_heads, 3, -1, *part.shape[1:]).unbind(1)
            ]
            for part in both
        ]
    else:
        width = len(matrix) // (n_heads + 2 * n_groups)
        sizes = [n_heads * width, n_groups * width, n_groups * width]
        cut = [list(torch.split(part, sizes)) for part in both]
    biases: list[Any] = cut[1] if bias is not None else [None] * 3
    return list(zip(cut[0], biases, strict=True))


def _configs(model: nn.Module) -> list[Any]:
    """Return the distinct configurations that say how to attend."""
    found = {
        id(module.config): module.config
        for module in model.modules()
        if hasattr(getattr(module, "config", None), "_attn_implementation_internal")
    }
    return list(found.values())


def _register() -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    AttentionInterface.register(IMPLEMENTATION, _attend)
    # Without a mask function a decoder would get no mask, and see the future.
    AttentionMaskInterface.register(IMPLEMENTATION, eager_mask)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Attend as ``eager`` does, and record."""
    for name in _UNSUPPORTED:
        if options.get(name) is not None:
            got = Got(f"{type(module).__name__} with `{name}`")
            fail("model", "plain softmax attention", got, owner="capture_heads")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    bias = None if attention_mask is None else hide(attention_mask)
    if bias is not None:
        bias = bias[..., : key.shape[-2]]
    tokens = _TOKENS.get(module, query)
    call = Call(tokens, query, key, value, bias, scale)
    weights, outputs = call.attended
    if module in _RECORDS:
        _RECORDS[module](call)
    return outputs.transpose(1, 2).contiguous(), weights


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
