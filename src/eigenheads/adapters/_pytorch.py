"""PyTorch's own ``nn.MultiheadAttention``, alone or inside its transformer layers."""

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eigenheads._checks import Got, fail
from eigenheads.adapters._attention_call import AttentionCall, merge_masks
from eigenheads.adapters._family import (
    AbstractFamily,
    AttentionLayer,
    Change,
    Projection,
    Record,
    Wanted,
    hooked,
)
from eigenheads.adapters._variants import (
    AbstractVariant,
    SwappedModule,
    attend_swapped,
    restore_class,
    swap_class,
)

_SIGNATURE = inspect.signature(nn.MultiheadAttention.forward)
_NESTED = "_nested_before_swap"  # attribute of encoders with swapped layers


class SwappedMultihead(SwappedModule):
    """``nn.MultiheadAttention`` with another attention in its heads.

    A row that sees no key returns zeros before the output projection; the original
    returns NaN.
    """

    # nn.TransformerEncoderLayer reads this before it takes its fast path, which would
    # never call this module.
    _qkv_same_embed_dim = property(lambda self: False)

    def _reset_parameters(self: Any) -> None:
        """Draw the weights anew, with the true value of `_qkv_same_embed_dim`."""
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
        """Attend like ``nn.MultiheadAttention``, except for the heads' attention."""
        if query.is_nested:
            hint = "Swap the whole nn.TransformerEncoder: it then passes plain tensors."
            got = Got("a nested tensor")
            fail("query", "a plain tensor", got, hint=hint)
        call = _read_call(
            self,
            (query, key, value),
            (attn_mask, key_padding_mask),
            is_causal=is_causal,
            wants_weights=need_weights,
        )
        output, weights = attend_swapped(self, call)
        merged = self.out_proj(output.transpose(1, 2).flatten(2))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if query.dim() == 2:
            return merged[0], None if weights is None else weights[0]
        return merged if self.batch_first else merged.transpose(0, 1), weights


def _read_call(
    module: Any,
    inputs: tuple[Tensor, Tensor, Tensor],
    masks: tuple[Tensor | None, Tensor | None],
    *,
    is_causal: bool,
    wants_weights: bool,
) -> AttentionCall:
    """Return one call of ``nn.MultiheadAttention``, from the arguments of `forward`."""
    query, key, _ = inputs
    batched = [_batch_first(x, module.batch_first) for x in inputs]
    heads = []
    for x, (matrix, bias) in zip(batched, _projections(module), strict=True):
        split = F.linear(x, matrix, bias)
        shape = (*split.shape[:-1], module.num_heads, module.head_dim)
        heads.append(split.view(shape).transpose(1, 2))
    queries, keys, values = heads
    return AttentionCall(
        queries=queries,
        keys=keys,
        values=values,
        mask=merge_masks(*masks, queries),
        is_causal=is_causal,
        is_self=query is key,
        scale=module.head_dim**-0.5,
        dropout=module.dropout if module.training else 0.0,
        wants_weights=wants_weights,
        tokens=batched[0],
    )


def _projections(module: Any) -> list[Projection]:
    if module.in_proj_weight is None:
        matrices = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    else:
        matrices = module.in_proj_weight.chunk(3)
    bias = module.in_proj_bias
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    return list(zip(matrices, biases, strict=True))


def _batch_first(x: Tensor, batch_first: bool) -> Tensor:
    if x.dim() == 2:
        return x.unsqueeze(0)
    return x if batch_first else x.transpose(0, 1)


@final
class TorchFamily(AbstractFamily):
    """Models with ``nn.MultiheadAttention``."""

    name = "torch"

    def find(
        self, module: nn.Module, parent: nn.Module | None, name: str
    ) -> nn.Module | None:
        """Return the output projection if this is self-attention of PyTorch."""
        if not isinstance(module, nn.MultiheadAttention):
            return None
        is_cross = isinstance(parent, nn.TransformerDecoderLayer) and (
            name == "multihead_attn"
        )
        return None if is_cross else module.out_proj

    @contextmanager
    def prepare_capture(self, model: nn.Module) -> Iterator[None]:
        """Switch off the fused path, which never calls the attention module."""
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(before)

    def capture(
        self, layer: AttentionLayer, record: Record
    ) -> AbstractContextManager[None]:
        """Return a context in which each call of the layer is passed to `record`."""

        def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            record(_read_arguments(module, args, kwargs))

        return hooked(layer.module, before)

    @contextmanager
    def edit(self, layer: AttentionLayer, change: Change) -> Iterator[None]:
        """Replace what the heads pass to the output projection, inside this context."""

        def after(
            module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
        ) -> tuple[Tensor, Tensor | None]:
            # The module multiplies by the projection itself and never calls it.
            call = _read_arguments(module, args, kwargs)
            heads = call.attended[1].transpose(1, 2).flatten(2)
            moved = F.linear(change(heads) - heads, module.out_proj.weight)
            moved = moved if module.batch_first else moved.transpose(0, 1)
            return result[0] + moved, result[1]

        handle = layer.module.register_forward_hook(after, with_kwargs=True)
        try:
            with self.prepare_capture(layer.module):
                yield
        finally:
            handle.remove()

    def projections(self, module: Any, n_heads: int, n_groups: int) -> list[Projection]:
        """Return the projections to queries, keys and values."""
        return _projections(module)

    def check_swap(self, model: nn.Module, swaps: Wanted) -> None:
        """Raise unless all layers can be given these variants, or restored."""
        for layer, variant in swaps.items():
            reason = "" if variant is None else _reason_against_swap(layer.module)
            if reason:
                contract = "without parts that a swap would lose"
                got = Got(f"{layer.name or 'the model'} with {reason}")
                hint = "Leave it out with `layers`."
                fail("model", contract, got, hint=hint)

    def swap(self, layer: AttentionLayer, variant: AbstractVariant) -> None:
        """Give the layer this variant."""
        module: Any = layer.module
        swap_class(module, SwappedMultihead, variant, module.num_heads)

    def restore(self, layer: AttentionLayer) -> None:
        """Give the layer its original attention back."""
        restore_class(layer.module)

    def finish_swap(self, model: nn.Module) -> None:
        """Stop encoders from passing nested tensors to swapped layers, or allow it.

        With padding in evaluation mode ``nn.TransformerEncoder`` makes a nested tensor,
        which only the fast path of its layers accepts.
        """
        for encoder in model.modules():
            if not isinstance(encoder, nn.TransformerEncoder):
                continue
            # Remember the encoder's own setting once, so that restoring is exact.
            if any(isinstance(module, SwappedModule) for module in encoder.modules()):
                if not hasattr(encoder, _NESTED):
                    setattr(encoder, _NESTED, encoder.use_nested_tensor)
                encoder.use_nested_tensor = False
            elif hasattr(encoder, _NESTED):
                encoder.use_nested_tensor = getattr(encoder, _NESTED)
                delattr(encoder, _NESTED)


def _read_arguments(
    module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> AttentionCall:
    """Return a call of self-attention, or raise if the module does something else."""
    # Arguments may come by position or by name; bind them as `forward` does.
    bound = _SIGNATURE.bind(module, *args, **kwargs)
    bound.apply_defaults()
    values = bound.arguments
    inputs = (values["query"], values["key"], values["value"])
    _check_capture(module, inputs)
    masks = (values["attn_mask"], values["key_padding_mask"])
    same = (inputs[0],) * 3  # equal tensors may be different objects
    return _read_call(module, same, masks, is_causal=False, wants_weights=False)


def _check_capture(module: Any, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    """Raise unless this is a call of plain self-attention."""
    query, key, value = inputs
    if not (_same(query, key) and _same(query, value)):
        got = Got("an nn.MultiheadAttention called with keys of other tokens")
        hint = "Leave cross-attention out with `layers`."
        fail("model", "made of self-attention", got, hint=hint)
    if type(module).forward is not nn.MultiheadAttention.forward:
        got = Got(f"{type(module).__name__}, which has a forward of its own")
        fail("model", "plain softmax attention", got)
    if module.bias_k is not None or module.add_zero_attn:
        got = Got("an nn.MultiheadAttention with add_bias_kv or add_zero_attn")
        fail("model", "attention from tokens to tokens", got)


def _same(first: Tensor, second: Tensor) -> bool:
    return first is second or torch.equal(first, second)


def _reason_against_swap(module: nn.Module) -> str:
    """Return why a module cannot be swapped, or an empty text."""
    assert isinstance(module, nn.MultiheadAttention)
    if module.bias_k is not None or module.add_zero_attn:
        return "keys that are not tokens (add_bias_kv or add_zero_attn)"
    forwards = (nn.MultiheadAttention.forward, SwappedMultihead.forward)
    if type(module).forward not in forwards:
        return f"a forward of its own ({type(module).__name__})"
    return ""
