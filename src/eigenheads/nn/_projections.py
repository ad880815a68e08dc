"""Base class of the layers: projections in and out, under timm's parameter names."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eigenheads._checks import (
    Got,
    check_count,
    check_flag,
    check_instance,
    check_number,
    fail,
)
from eigenheads.nn._visibility import Visibility

# Widest layer: its projections have 4 GiB of float32 numbers.
_WIDEST = 2**14

Tokens = Float[Tensor, "batch tokens d_model"]
Heads = Float[Tensor, "batch heads tokens d_head"]


def check_not_meta(x: Tensor, *, owner: str) -> None:
    """Raise if `x` is on the device ``meta``, which autocast does not support."""
    if x.device.type == "meta":
        got = Got("a tensor on the device meta")
        fail("x", "a tensor that holds numbers", got, owner=owner)


def check_factory(device: object, dtype: object, *, owner: str) -> None:
    """Raise unless parameters can be made on a device, in a dtype of real numbers."""
    is_dtype = isinstance(dtype, torch.dtype) and dtype.is_floating_point
    if dtype is not None and not is_dtype:
        fail("dtype", "a floating-point dtype of PyTorch, or None", dtype, owner=owner)
    try:
        torch.empty(0, device=device)  # type: ignore[call-overload]
    except Exception:  # what a device must be differs between builds of PyTorch
        fail("device", "an available device of PyTorch", device, owner=owner)


class AbstractAttention(nn.Module):
    """Projections to heads and back; subclasses define the attention between them.

    Parameters
    ----------
    d_model
        Width of the tokens.
    n_heads
        Number of heads; must divide `d_model`.
    qkv_bias
        Whether the projection to queries, keys and values has a bias.
    attn_drop, proj_drop
        Dropout of the attention weights, and of the output.
    is_causal
        Default of `is_causal` in calls: tokens see only themselves and earlier ones.
    device, dtype
        Forwarded to every parameter.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        qkv_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        is_causal: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        owner = self._owner
        d_model = check_count("d_model", d_model, owner=owner, maximum=_WIDEST)
        self.n_heads = check_count("n_heads", n_heads, owner=owner)
        if d_model % self.n_heads:
            divisors = [d for d in range(1, d_model + 1) if d_model % d == 0]
            contract = f"a divisor of `d_model`={d_model}"
            hint = f"Divisors of {d_model}: {divisors}."
            fail("n_heads", contract, n_heads, owner=owner, hint=hint)
        self.d_model = d_model
        self.is_causal = is_causal
        for name, p in (("attn_drop", attn_drop), ("proj_drop", proj_drop)):
            check_number(name, p, owner=owner, minimum=0.0, maximum=1.0)
        check_flag("qkv_bias", qkv_bias, owner=owner)
        check_flag("is_causal", is_causal, owner=owner)
        check_factory(device, dtype, owner=owner)
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=qkv_bias, **options)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(d_model, d_model, **options)
        self.proj_drop = nn.Dropout(proj_drop)

    @property
    def num_heads(self) -> int:
        """Number of heads, under timm's name."""
        return self.n_heads

    @property
    def d_head(self) -> int:
        """Width of each head."""
        return self.d_model // self.n_heads

    @property
    def _owner(self) -> str:
        return type(self).__name__

    @property
    def _dropout(self) -> float:
        return self.attn_drop.p if self.training else 0.0

    def extra_repr(self) -> str:
        """Describe the layer in ``print(model)``."""
        return f"n_heads={self.n_heads}, is_causal={self.is_causal}"

    def _heads(self, x: Tokens) -> tuple[Heads, Heads, Heads]:
        """Return queries, keys and values."""
        check_instance("x", x, Tensor, owner=self._owner)
        if not x.is_floating_point() or x.layout != torch.strided:
            got = Got(f"dtype {x.dtype}, layout {x.layout}")
            fail("x", "a dense tensor of floats", got, owner=self._owner)
        if x.ndim != 3 or x.shape[-1] != self.d_model or 0 in x.shape:
            contract = f"of shape (batch, tokens, {self.d_model}), without empty axes"
            fail("x", contract, Got(tuple(x.shape)), owner=self._owner)
        if not torch.compiler.is_compiling():
            self._check_place(x)
        batch, n_tokens, _ = x.shape
        # timm's layout: queries, keys and values one after the other, each by head.
        qkv = self.qkv(x).view(batch, n_tokens, 3, self.n_heads, self.d_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (batch, head, tokens, d_head)
        return q, k, v

    def _check_place(self, x: Tokens) -> None:
        """Raise unless `x` is where the weights are, in their dtype or autocast."""
        weight = self.qkv.weight
        check_not_meta(x, owner=self._owner)
        is_cast = torch.is_autocast_enabled(x.device.type)
        if x.device != weight.device or (x.dtype != weight.dtype and not is_cast):
            contract = f"{weight.dtype} on {weight.device}, as the weights"
            fail("x", contract, Got(f"{x.dtype} on {x.device}"), owner=self._owner)

    def _merge(self, heads: Heads) -> Tokens:
        """Return the heads side by side, projected."""
        merged: Tensor = self.proj(heads.transpose(1, 2).flatten(2))
        dropped: Tensor = self.proj_drop(merged)
        return dropped

    def _visibility(
        self, keys: Heads, attn_mask: Tensor | None, is_causal: bool | None
    ) -> Visibility:
        causal = self.is_causal if is_causal is None else is_causal
        return Visibility.read(
            attn_mask, is_causal=causal, keys=keys, owner=self._owner
        )
