"""The layout of timm's attention: ``qkv``, ``proj``, ``num_heads``; timm not needed.

Two families have it: modules of timm and their like, and the layers of
:mod:`eigenheads.nn`.
"""

import inspect
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from numbers import Real
from typing import Any, final

import torch
from torch import Tensor, nn

from eigenheads._checks import Got, fail
from eigenheads._rng import torch_generator
from eigenheads.adapters._attention_call import AttentionCall
from eigenheads.adapters._family import (
    AbstractFamily,
    AttentionLayer,
    Projection,
    Record,
    Wanted,
    first_tensor,
    hooked,
)
from eigenheads.adapters._variants import (
    AbstractVariant,
    SwappedModule,
    attend_swapped,
    plain_attention,
    restore_class,
    swap_class,
)
from eigenheads.nn import RPCAttention, ScaledAttention, Visibility
from eigenheads.nn._layers import AbstractAttention, correction

# Modules between heads and output, in timm's order; absent ones do nothing.
_AFTER = ("norm", "proj", "proj_drop")
_N_TRIED = 5
_TOLERANCE = 1e-4  # relative; rounding of float32 is 1e-6, a missing bias is larger


class SwappedLayout(SwappedModule):
    """A module of timm's layout with another attention in its heads."""

    def forward(
        self: Any, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attend like the original module, except for the heads' attention."""
        output, _ = attend_swapped(self, _read_call(self, x, attn_mask, is_causal))
        return _merge(self, output)


def _read_call(
    module: Any, x: Tensor, attn_mask: Tensor | None, is_causal: bool
) -> AttentionCall:
    """Return one call of the module, from the arguments of its ``forward``."""
    # (batch, tokens, 3, heads, d_head) to three of (batch, heads, tokens, d_head).
    qkv = module.qkv(x).unflatten(-1, (3, module.num_heads, -1))
    queries, keys, values = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    for_q, for_k = (getattr(module, name, None) for name in ("q_norm", "k_norm"))
    queries = queries if for_q is None else for_q(queries)
    keys = keys if for_k is None else for_k(keys)
    if is_causal and attn_mask is not None:
        # Both hide: one mask has it all.
        read = Visibility.read(attn_mask, is_causal=True, keys=keys)
        attn_mask = read.bias
    drop = getattr(module, "attn_drop", 0.0)
    return AttentionCall(
        queries=queries,
        keys=keys,
        values=values,
        mask=attn_mask,
        is_causal=is_causal,
        scale=float(getattr(module, "scale", keys.shape[-1] ** -0.5)),
        dropout=float(getattr(drop, "p", drop)) if module.training else 0.0,
        tokens=x,
    )


def _merge(module: Any, output: Tensor) -> Tensor:
    """Return the output of the module, from the outputs of its heads."""
    x = output.transpose(1, 2).flatten(2)
    for name in _AFTER:
        step = getattr(module, name, None)
        x = x if step is None else step(x)
    return x


def _argument(
    args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str
) -> Any:
    return kwargs.get(name, args[place] if len(args) > place else None)


def _fused_projections(module: Any) -> list[Projection]:
    matrices = module.qkv.weight.chunk(3)
    biases = (None,) * 3 if module.qkv.bias is None else module.qkv.bias.chunk(3)
    return list(zip(matrices, biases, strict=True))


@final
class TimmFamily(AbstractFamily):
    """Modules with ``qkv``, ``proj`` and ``num_heads``, as in timm."""

    name = "timm"
    checks_values = True

    def find(
        self, module: nn.Module, parent: nn.Module | None, name: str
    ) -> nn.Module | None:
        """Return the output projection if the module has timm's layout."""
        qkv, proj = getattr(module, "qkv", None), getattr(module, "proj", None)
        if not (isinstance(qkv, nn.Linear) and isinstance(proj, nn.Linear)):
            return None
        if not isinstance(getattr(module, "num_heads", None), int):
            return None
        return proj

    @contextmanager
    def capture(self, layer: AttentionLayer, record: Record) -> Iterator[None]:
        """Pass each call to `record`; refuse modules that compute something else."""

        def after(
            module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor
        ) -> None:
            mask = _argument(args, kwargs, 1, "attn_mask")
            mask = mask if isinstance(mask, Tensor) else None
            call = _read_call(module, first_tensor(args, kwargs), mask, False)
            _check_output(module, call, result)
            record(call)

        handle = layer.module.register_forward_hook(after, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    def projections(self, module: Any, n_heads: int, n_groups: int) -> list[Projection]:
        """Return the projections to queries, keys and values."""
        return _fused_projections(module)

    def check_swap(self, model: nn.Module, swaps: Wanted) -> None:
        """Raise if a module computes more than its layout shows.

        Relative positions, rotations or gates would be lost silently. So each module is
        run on a few random tokens, and has to agree with plain attention.
        """
        for layer, variant in swaps.items():
            if variant is None or isinstance(layer.module, SwappedModule):
                continue
            reason = _reason_against_swap(layer.module)
            if reason:
                contract = (
                    "of timm's layout without relative positions, rotations or gates"
                )
                kind = type(layer.module).__name__
                got = Got(f"{layer.name or 'the model'} ({kind}) with {reason}")
                hint = "Leave it out with `layers`."
                fail("model", contract, got, hint=hint)

    def swap(self, layer: AttentionLayer, variant: AbstractVariant) -> None:
        """Give the layer this variant."""
        module: Any = layer.module
        swap_class(module, SwappedLayout, variant, module.num_heads)

    def restore(self, layer: AttentionLayer) -> None:
        """Give the layer its original attention back."""
        restore_class(layer.module)


def _check_output(module: Any, call: AttentionCall, result: object) -> None:
    """Compare plain attention with the output of the module."""
    _, outputs = call.attended
    mixed = module.proj(outputs.transpose(1, 2).flatten(2))
    if isinstance(result, Tensor) and result.shape == mixed.shape:
        tolerance = 1e-3 if mixed.dtype.itemsize >= 4 else 5e-2
        if (mixed - result).abs().nan_to_num(0.0).max() <= tolerance * (
            1 + result.abs().nan_to_num(0.0).max()
        ):
            return
    name = type(module).__name__
    got = Got(f"{name}, which has qkv and proj but returns something else")
    hint = "Relative positions, rotary positions and gates are not supported there."
    fail("model", "plain softmax attention", got, hint=hint)


def _reason_against_swap(module: Any) -> str:
    """Return why a module cannot be swapped, or an empty text."""
    _, *arguments = inspect.signature(module.forward).parameters
    unknown = [name for name in arguments if name not in ("attn_mask", "is_causal")]
    if unknown:
        return f"a forward that takes {', '.join(unknown)}"
    if not isinstance(getattr(module, "scale", 1.0), Real):
        return "a scale that is not a number"
    difference = _difference(module)
    if difference <= _TOLERANCE:
        return ""
    if math.isinf(difference):
        return "a forward that does not run on a few tokens"
    return f"an output that differs from plain attention by {difference:.1g}"


@torch.no_grad()
def _difference(module: Any) -> float:
    """Return the relative difference to plain attention; infinity if it cannot run."""
    weight = module.qkv.weight
    generator = torch_generator(0)
    shape = (1, _N_TRIED, module.qkv.in_features)
    x = torch.randn(shape, generator=generator).to(weight.device, torch.float32)
    # Dropout and batch statistics would differ between the two runs.
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.autocast(weight.device.type, enabled=False):
            x = x.to(weight.dtype)
            theirs = module.forward(x)
            ours = _merge(
                module, plain_attention(_read_call(module, x, None, False))[0]
            )
        if theirs.shape != ours.shape:
            return torch.inf
        size = theirs.abs().max().clamp_min(torch.finfo(theirs.dtype).tiny)
        error = float((theirs - ours).abs().max() / size)
        # Half precision rounds more: compare on the scale of single precision.
        coarse = torch.finfo(theirs.dtype).eps / torch.finfo(torch.float32).eps
        return error / coarse  # as if in float32
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
        return torch.inf
    finally:
        for part, training in modes.items():
            part.training = training


@final
class EigenheadsFamily(AbstractFamily):
    """Layers of :mod:`eigenheads.nn`; capture takes the arrays of the last softmax."""

    name = "eigenheads"

    def find(
        self, module: nn.Module, parent: nn.Module | None, name: str
    ) -> nn.Module | None:
        """Return the output projection if this is a layer of :mod:`eigenheads.nn`."""
        return module.proj if isinstance(module, AbstractAttention) else None

    def capture(
        self, layer: AttentionLayer, record: Record
    ) -> AbstractContextManager[None]:
        """Return a context in which each call of the layer is passed to `record`."""

        def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            record(_read_own_call(module, args, kwargs))

        return hooked(layer.module, before)

    def projections(self, module: Any, n_heads: int, n_groups: int) -> list[Projection]:
        """Return the projections to queries, keys and values."""
        return _fused_projections(module)

    def check_swap(self, model: nn.Module, swaps: Wanted) -> None:
        """Raise: these layers are made with their attention."""
        for layer in swaps:
            contract = "without layers of eigenheads.nn among those to swap"
            got = Got(f"{layer.name or 'the model'} ({type(layer.module).__name__})")
            hint = "Make another layer and load its state dict; their names agree."
            fail("model", contract, got, hint=hint)

    def swap(self, layer: AttentionLayer, variant: AbstractVariant) -> None:
        """Never called: :meth:`check_swap` raises."""
        raise NotImplementedError

    def restore(self, layer: AttentionLayer) -> None:
        """Never called: :meth:`check_swap` raises."""
        raise NotImplementedError


def _read_own_call(
    module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> AttentionCall:
    tokens = first_tensor(args, kwargs)
    mask = _argument(args, kwargs, 1, "attn_mask")
    q, k, v = module._heads(tokens)
    visibility = module._visibility(k, mask, kwargs.get("is_causal"))
    scale = module.d_head**-0.5
    # Capture what the last softmax compares, which differs by layer.
    if isinstance(module, RPCAttention):
        k = module._pursue((q, k, v), visibility).cleaned
        q = k if module.symmetric else q
    elif isinstance(module, ScaledAttention):
        k = visibility.hide(k)
        S = correction(k, module.scaling, visibility, scale)
        v = v - S.to(v.dtype) @ v
    else:
        q = k
    return AttentionCall(
        queries=q,
        keys=k,
        values=v,
        mask=visibility.bias,
        is_causal=visibility.is_causal,
        scale=scale,
        tokens=tokens,
    )
