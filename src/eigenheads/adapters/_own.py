"""The layers of :mod:`eigenheads.nn`: what meets in their last softmax."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from eigenheads.adapters._heads import Call, first_tensor
from eigenheads.adapters._timm import head_weights as head_weights
from eigenheads.nn import RPCAttention, ScaledAttention
from eigenheads.nn._projections import AbstractAttention
from eigenheads.nn._scaled import correction


def output_projection(
    module: nn.Module, parent: nn.Module | None, name: str
) -> nn.Module | None:
    """Return the output projection if this is a layer of ours, else None."""
    return module.proj if isinstance(module, AbstractAttention) else None


def prepared(model: nn.Module) -> nullcontext[None]:
    """Nothing to prepare."""
    return nullcontext()


@contextmanager
def watched(
    module: nn.Module, record: Callable[[Call], None], *, owner: str
) -> Iterator[None]:
    """Record each call of the module."""

    def see(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        record(_read(module, args, kwargs))

    handle = module.register_forward_pre_hook(see, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _read(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    tokens = first_tensor(args, kwargs)
    mask = kwargs.get("attn_mask", args[1] if len(args) > 1 else None)
    is_causal = kwargs.get("is_causal")
    q, k, v = module._heads(tokens)
    visibility = module._visibility(k, mask, is_causal)
    scale = module.d_head**-0.5
    if isinstance(module, RPCAttention):
        k = module._pursue((q, k, v), mask, is_causal).cleaned
        q = k if module.symmetric else q
    elif isinstance(module, ScaledAttention):
        k = visibility.hide(k)
        S = correction(k, module.scaling, visibility, scale, owner=module._owner)
        v = v - S.to(v.dtype) @ v
    else:
        q = k
    bias = visibility.rows(torch.arange(visibility.n_keys))
    bias = bias.expand((*(1,) * (4 - bias.ndim), *bias.shape)).to(tokens.device)
    unmasked = visibility.bias is None and not visibility.is_causal
    return Call(tokens, q, k, v, None if unmasked else bias, scale)
