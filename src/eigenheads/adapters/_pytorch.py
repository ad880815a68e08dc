"""PyTorch's own ``nn.MultiheadAttention``, alone or inside its transformer layers."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eigenheads._checks import Got, fail
from eigenheads.adapters._heads import Call, by_head, hide, output_by_head

_SIGNATURE = inspect.signature(nn.MultiheadAttention.forward)


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


@contextmanager
def prepared(model: nn.Module) -> Iterator[None]:
    """Switch off the fused path, which never calls the attention module."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def watched(
    module: nn.Module, record: Callable[[Call], None], *, owner: str
) -> Iterator[None]:
    """Record each call of the module."""

    def see(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = _SIGNATURE.bind(module, *args, **kwargs)
        given.apply_defaults()
        record(_read(module, given.arguments, owner=owner))

    handle = module.register_forward_pre_hook(see, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def head_weights(
    module: Any, output: nn.Module, n_heads: int, n_groups: int
) -> dict[str, Tensor | None]:
    """Return projections and biases, cut into heads."""
    names, (matrices, biases) = ("query", "key", "value"), _projections(module)
    found: dict[str, Tensor | None] = output_by_head(output, n_heads)
    for name, matrix, bias in zip(names, matrices, biases, strict=True):
        found[f"w_{name}"] = by_head(matrix, n_heads)
        found[f"b_{name}"] = None if bias is None else by_head(bias, n_heads)
    return found


def _projections(module: Any) -> tuple[tuple[Tensor, ...], tuple[Tensor | None, ...]]:
    if module.in_proj_weight is not None:
        matrices = module.in_proj_weight.chunk(3)
    else:
        matrices = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    bias = module.in_proj_bias
    return matrices, (None,) * 3 if bias is None else bias.chunk(3)


def _read(module: Any, given: dict[str, Any], *, owner: str) -> Call:
    query, key, value = (given[name] for name in ("query", "key", "value"))
    if not (_same(query, key) and _same(query, value)):
        got = Got("an nn.MultiheadAttention called with keys of other tokens")
        hint = "Leave cross-attention out with `layers`."
        fail("model", "made of self-attention", got, owner=owner, hint=hint)
    if type(module).forward is not nn.MultiheadAttention.forward:
        got = Got(f"{type(module).__name__}, which has a forward of its own")
        fail("model", "plain softmax attention", got, owner=owner)
    if module.bias_k is not None or module.add_zero_attn:
        got = Got("an nn.MultiheadAttention with add_bias_kv or add_zero_attn")
        fail("model", "attention from tokens to tokens", got, owner=owner)
    tokens = (
        query.unsqueeze(0 if module.batch_first else 1) if query.ndim == 2 else query
    )
    if not module.batch_first:
        tokens = tokens.transpose(0, 1)
    n_heads = module.num_heads
    matrices, biases = _projections(module)
    shape = (*tokens.shape[:2], n_heads, -1)
    q, k, v = (
        F.linear(tokens, matrix, bias).reshape(shape).transpose(1, 2)
        for matrix, bias in zip(matrices, biases, strict=True)
    )
    bias = _bias(given["attn_mask"], given["key_padding_mask"], tokens, n_heads)
    return Call(tokens, q, k, v, bias, module.head_dim**-0.5)


def _same(first: Tensor, second: Tensor) -> bool:
    return first is second or torch.equal(first, second)


def _bias(
    attn_mask: Tensor | None, padding: Tensor | None, tokens: Tensor, n_heads: int
) -> Tensor | None:
    """Return both masks as numbers to add; True hides here, unlike elsewhere."""
    total = None
    if attn_mask is not None:
        total = _numbers(attn_mask)
        if total.ndim == 3:
            total = total.reshape(len(tokens), n_heads, *total.shape[1:])
        total = total.expand((*(1,) * (4 - total.ndim), *total.shape))
    if padding is not None:
        rows = _numbers(padding.reshape(len(tokens), 1, 1, -1))
        total = rows if total is None else total + rows
    return total


def _numbers(mask: Tensor) -> Tensor:
    return hide(~mask if mask.dtype == torch.bool else mask)
