"""Swap attention in ``nn.MultiheadAttention``, alone or in transformer layers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eigenheads._checks import Got, fail
from eigenheads.adapters._sites import Site
from eigenheads.adapters._swap_class import Swapped, restore, switch
from eigenheads.adapters._swap_heads import OWNER, Asked
from eigenheads.adapters._swap_variants import Variant, answer

_NESTED = "_nested_before_swap"


class SwappedMultihead(Swapped):
    """``nn.MultiheadAttention`` whose heads do something else.

    A row that sees no key returns zeros before the output projection, where the
    original returns NaN.
    """

    # nn.TransformerEncoderLayer asks this before it takes its fast path, which would
    # never call this module.
    _qkv_same_embed_dim = property(lambda self: False)

    def _reset_parameters(self: Any) -> None:
        """Draw the weights anew; PyTorch asks there, too, and must hear the truth."""
        swapped = self.__class__
        self.__class__ = nn.MultiheadAttention
        try:
            self._reset_parameters()
        finally:
            self.__class__ = swapped

    def forward(
        self: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend as ``nn.MultiheadAttention`` does, up to what the heads compute."""
        if query.is_nested:
            hint = "Swap the whole nn.TransformerEncoder: it then makes none."
            got = Got("a nested tensor")
            fail("query", "a plain tensor", got, owner=OWNER, hint=hint)
        is_self, is_batched = query is key, query.dim() == 3
        inputs = [_batch_first(x, self.batch_first) for x in (query, key, value)]
        queries, keys, values = self._project(inputs)
        output, weights = answer(
            self,
            Asked(
                queries=queries,
                keys=keys,
                values=values,
                mask=_mask(attn_mask, key_padding_mask, queries),
                is_causal=is_causal,
                is_self=is_self,
                scale=self.head_dim**-0.5,
                dropout=self.dropout if self.training else 0.0,
                wants_weights=need_weights,
            ),
        )
        merged = self.out_proj(output.transpose(1, 2).flatten(2))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not is_batched:
            return merged[0], None if weights is None else weights[0]
        return merged if self.batch_first else merged.transpose(0, 1), weights

    def _project(self: Any, inputs: Sequence[Tensor]) -> list[Tensor]:
        if self.in_proj_weight is None:
            matrices = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        else:
            matrices = self.in_proj_weight.chunk(3)
        biases = (
            (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        )
        heads = []
        for x, matrix, bias in zip(inputs, matrices, biases, strict=True):
            split = F.linear(x, matrix, bias)
            shape = (*split.shape[:-1], self.num_heads, self.head_dim)
            heads.append(split.view(shape).transpose(1, 2))
        return heads


def check(site: Site, variant: Variant, *, owner: str) -> None:
    """Raise if this module cannot be swapped."""
    module = site.module
    assert isinstance(module, nn.MultiheadAttention)
    reason = ""
    if module.bias_k is not None or module.add_zero_attn:
        reason = "keys that are not tokens (add_bias_kv or add_zero_attn)"
    elif type(module).forward not in (
        nn.MultiheadAttention.forward,
        SwappedMultihead.forward,
    ):
        reason = f"a forward of its own ({type(module).__name__})"
    if reason:
        contract = "without what a swap would lose"
        got = Got(f"{site.name or 'the model'} with {reason}")
        hint = "Leave it out with `layers`."
        fail("model", contract, got, owner=owner, hint=hint)


def swap(site: Site, variant: Variant) -> None:
    """Give a module this variant."""
    module: Any = site.module
    switch(module, SwappedMultihead, variant, module.num_heads)


def unswap(site: Site) -> None:
    """Make a module what it was."""
    restore(site.module)


def finish(model: nn.Module) -> None:
    """Stop encoders from feeding nested tensors to swapped layers, or let them again.

    With padding in eval, ``nn.TransformerEncoder`` makes a nested tensor, which only
    the fast path of its layers takes.
    """
    for encoder in model.modules():
        if not isinstance(encoder, nn.TransformerEncoder):
            continue
        if any(isinstance(module, Swapped) for module in encoder.modules()):
            if not hasattr(encoder, _NESTED):
                setattr(encoder, _NESTED, encoder.use_nested_tensor)
            encoder.use_nested_tensor = False
        elif hasattr(encoder, _NESTED):
            encoder.use_nested_tensor = getattr(encoder, _NESTED)
            delattr(encoder, _NESTED)


def _batch_first(x: Tensor, batch_first: bool) -> Tensor:
    if x.dim() == 2:
        return x.unsqueeze(0)
    return x if batch_first else x.transpose(0, 1)


def _mask(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, queries: Tensor
) -> Tensor | None:
    """Return PyTorch's two masks as one that is added to the scores."""
    batch, heads = queries.shape[:2]
    parts = []
    if attn_mask is not None:
        rows = (
            attn_mask
            if attn_mask.dim() == 2
            else attn_mask.view(batch, heads, *attn_mask.shape[1:])
        )
        parts.append(_numbers(rows, queries))
    if key_padding_mask is not None:
        parts.append(_numbers(key_padding_mask.reshape(batch, 1, 1, -1), queries))
    if not parts:
        return None
    total = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    return total.reshape((1,) * (4 - total.dim()) + total.shape)


def _numbers(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    zeros = torch.zeros(mask.shape, dtype=like.dtype, device=like.device)
    return zeros.masked_fill(mask, -torch.inf)  # PyTorch's True hides
