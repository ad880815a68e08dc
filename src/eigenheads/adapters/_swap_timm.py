"""Swap attention in modules laid out as timm's: ``qkv``, ``proj``, ``num_heads``."""

import inspect
import math
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from eigenheads._checks import Got, fail
from eigenheads.adapters._sites import Site
from eigenheads.adapters._swap_class import Swapped, restore, switch
from eigenheads.adapters._swap_heads import Asked
from eigenheads.adapters._swap_variants import Variant, answer, plain_heads
from eigenheads.nn._masks import causal_mask

# Modules between heads and output, in timm's order; absent ones do nothing.
_AFTER = ("norm", "proj", "proj_drop")
_N_TRIED = 5
_TOLERANCE = 1e-4  # relative; rounding of float32 is 1e-6, a missing bias is not


class SwappedLayout(Swapped):
    """A module of timm's layout whose heads do something else."""

    def forward(
        self: Any, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attend as the module did, up to what the heads compute."""
        output, _ = answer(self, read_heads(self, x, attn_mask, is_causal))
        return merge(self, output)


def read_heads(
    module: Any, x: Tensor, attn_mask: Tensor | None, is_causal: bool
) -> Asked:
    """Return what the module asks its heads for."""
    qkv = module.qkv(x).unflatten(-1, (3, module.num_heads, -1))
    queries, keys, values = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    for_q, for_k = (getattr(module, name, None) for name in ("q_norm", "k_norm"))
    drop = getattr(module, "attn_drop", 0.0)
    return Asked(
        queries=queries if for_q is None else for_q(queries),
        keys=keys if for_k is None else for_k(keys),
        values=values,
        mask=_with_causal(attn_mask, x.shape[1]) if is_causal else attn_mask,
        is_causal=is_causal,
        is_self=True,
        scale=float(getattr(module, "scale", keys.shape[-1] ** -0.5)),
        dropout=float(getattr(drop, "p", drop)) if module.training else 0.0,
    )


def merge(module: Any, output: Tensor) -> Tensor:
    """Return what the module makes of its heads' outputs."""
    x = output.transpose(1, 2).flatten(2)
    for name in _AFTER:
        step = getattr(module, name, None)
        x = x if step is None else step(x)
    return x


def _with_causal(mask: Tensor | None, n: int) -> Tensor | None:
    if mask is None:
        return None
    visible = causal_mask(n, n, mask.device)
    if mask.dtype == torch.bool:
        return mask & visible
    return mask.masked_fill(~visible, -torch.inf)


def check(site: Site, variant: Variant, *, owner: str) -> None:
    """Raise if the module computes more than its layout says.

    Relative positions, rotations or gates would be lost silently. So the module is
    asked to mix a few random tokens, and has to agree with plain attention.
    """
    if isinstance(site.module, Swapped):
        return
    reason = _reason(site.module)
    if reason:
        contract = "of timm's layout without relative positions, rotations or gates"
        kind = type(site.module).__name__
        got = Got(f"{site.name or 'the model'} ({kind}) with {reason}")
        fail("model", contract, got, owner=owner, hint="Leave it out with `layers`.")


def _reason(module: Any) -> str:
    """Return why a module cannot be swapped, or nothing."""
    _, *others = inspect.signature(module.forward).parameters
    unknown = [name for name in others if name not in ("attn_mask", "is_causal")]
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
    generator = torch.Generator().manual_seed(0)
    shape = (1, _N_TRIED, module.qkv.in_features)
    x = torch.randn(shape, generator=generator).to(weight.device, torch.float32)
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.autocast(weight.device.type, enabled=False):
            x = x.to(weight.dtype)
            theirs = module.forward(x)
            ours = merge(module, plain_heads(read_heads(module, x, None, False))[0])
        if theirs.shape != ours.shape:
            return torch.inf
        size = theirs.abs().max().clamp_min(torch.finfo(theirs.dtype).tiny)
        error = float((theirs - ours).abs().max() / size)
        coarse = torch.finfo(theirs.dtype).eps / torch.finfo(torch.float32).eps
        return error / coarse  # as if in float32
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
        return torch.inf
    finally:
        for part, training in modes.items():
            part.training = training


def swap(site: Site, variant: Variant) -> None:
    """Give a module this variant."""
    module: Any = site.module
    switch(module, SwappedLayout, variant, module.num_heads)


def unswap(site: Site) -> None:
    """Make a module what it was."""
    restore(site.module)


def finish(model: nn.Module) -> None:
    """Do nothing: these modules are called by nobody but their parents."""
