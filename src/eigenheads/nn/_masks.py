"""Who sees whom: every kind of mask as one object, for averages and for softmaxes."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from eigenheads._checks import Got, fail


@dataclass(frozen=True)
class Visibility:
    """What a pursuit needs to know about its mask.

    Attributes
    ----------
    n_keys
        Number of keys.
    is_causal
        Whether a token sees only itself and earlier ones, and nothing else is hidden.
    visible
        ``(…, 1 or n_keys, n_keys)``, or None if all is visible or causal.
    bias
        What is added to the scores, of the same shape; ``-inf`` hides.
    """

    n_keys: int
    is_causal: bool = False
    visible: Tensor | None = None
    bias: Tensor | None = None

    def live(self) -> Tensor | None:
        """Return which tokens anyone sees, or None if all are seen."""
        return None if self.visible is None else self.visible.any(-2)

    def hide(self, x: Tensor) -> Tensor:
        """Return `x` with zeros for tokens that nobody sees, whatever they hold."""
        live = self.live()
        return x if live is None else x.masked_fill(~live.unsqueeze(-1), 0.0)

    def mean(self, per_token: Tensor) -> Tensor:
        """Return each row's mean over the tokens that it sees, ``(…, rows, 1)``."""
        if self.visible is not None:
            seen = self.visible.to(per_token.dtype)
            total = seen @ per_token.unsqueeze(-1)
            return total / seen.sum(-1, keepdim=True).clamp_min(1.0)
        if self.is_causal:
            count = torch.arange(1, self.n_keys + 1, device=per_token.device)
            return (per_token.cumsum(-1) / count).unsqueeze(-1)
        return per_token.mean(-1, keepdim=True).unsqueeze(-1)

    def median(self, per_token: Tensor) -> Tensor:
        """Return each row's median over the tokens that it sees, ``(…, rows, 1)``."""
        visible = self.visible
        if visible is None and self.is_causal:
            visible = causal_mask(self.n_keys, self.n_keys, per_token.device)
        if visible is None:
            return middle(per_token.unsqueeze(-2).sort(-1).values)
        seen = torch.where(visible, per_token.unsqueeze(-2), torch.inf).sort(-1).values
        count = visible.sum(-1, keepdim=True).expand(*seen.shape[:-1], 1)
        lower = seen.gather(-1, ((count - 1) // 2).clamp_min(0))
        upper = seen.gather(-1, (count // 2).clamp_max(self.n_keys - 1))
        return torch.where(count > 0, (lower + upper) / 2, 0.0)

    def attend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        scale: float,
        dropout: float = 0.0,
    ) -> Tensor:
        """Return fused softmax attention under this mask; queries are the last rows."""
        options: dict[str, Any] = {"scale": scale, "dropout_p": dropout}
        n_queries = queries.shape[-2]
        if self.bias is not None:
            rows = self.rows(torch.arange(self.n_keys - n_queries, self.n_keys))
            shape = (*queries.shape[:-1], self.n_keys)
            options["attn_mask"] = rows.to(values.dtype).expand(shape)
        elif self.is_causal and n_queries == self.n_keys:
            options["is_causal"] = True
        elif self.is_causal and n_queries > 1:
            options["attn_mask"] = causal_mask(n_queries, self.n_keys, keys.device)
        return F.scaled_dot_product_attention(queries, keys, values, **options)

    def rows(self, index: Tensor) -> Tensor:
        """Return what is added to the scores of some tokens, ``(…, 1 or rows, n)``."""
        if self.bias is not None:
            whole = self.bias.shape[-2] == 1 or len(index) == self.n_keys
            return self.bias if whole else self.bias[..., index.to(self.bias.device), :]
        bias = torch.zeros(1, self.n_keys)
        if self.is_causal:
            later = torch.arange(self.n_keys) > index.cpu().unsqueeze(-1)
            bias = bias.masked_fill(later, -torch.inf)
        return bias


def read_masks(
    attn_mask: Tensor | None,
    is_causal: bool,
    *,
    keys: Tensor,
    n_queries: int,
    owner: str,
) -> Visibility:
    """Return the masks of a call as one object, or raise if their shape is wrong."""
    n_keys = keys.shape[-2]
    if is_causal and n_queries > n_keys:
        got = Got(f"{n_queries} queries and {n_keys} keys")
        contract = "the last of the tokens whose keys are given if `is_causal`"
        fail("queries", contract, got, owner=owner)
    if attn_mask is None:
        return Visibility(n_keys, is_causal)
    _check_mask(attn_mask, keys, n_queries, owner=owner)
    mask = attn_mask.reshape((1,) * (4 - attn_mask.ndim) + attn_mask.shape)
    # A number whose exponential is zero hides, as -inf does.
    visible = mask if mask.dtype == torch.bool else mask.detach().float().exp() > 0
    if is_causal:
        visible = visible & causal_mask(n_keys, n_keys, keys.device)
    dtype = torch.promote_types(keys.dtype, torch.float32)
    numbers = 0.0 if mask.dtype == torch.bool else mask.to(dtype)
    hidden = torch.tensor(-torch.inf, dtype=dtype, device=keys.device)
    return Visibility(n_keys, False, visible, torch.where(visible, numbers, hidden))


def _check_mask(mask: Tensor, keys: Tensor, n_queries: int, *, owner: str) -> None:
    n_keys = keys.shape[-2]
    if mask.dtype != torch.bool and not mask.is_floating_point():
        contract = "boolean (True may be seen) or floating point (added to the scores)"
        got = Got(f"dtype {str(mask.dtype).removeprefix('torch.')}")
        fail("attn_mask", contract, got, owner=owner, error=TypeError)
    full = (*keys.shape[:2], n_keys, n_keys)
    padded = (1,) * (4 - mask.ndim) + tuple(mask.shape)
    fits = mask.ndim <= 4 and all(
        size in (1, whole) for size, whole in zip(padded, full, strict=True)
    )
    per_token_rows = padded[-2] > 1 and n_queries > n_keys
    if not fits or padded[-1] != n_keys or per_token_rows:
        hint = "One row hides keys from all; otherwise a row is a token, not a query."
        contract = f"of a shape that broadcasts to {full}"
        fail("attn_mask", contract, Got(tuple(mask.shape)), owner=owner, hint=hint)


def causal_mask(n_queries: int, n_keys: int, device: torch.device) -> Tensor:
    """Return True where a query, one of the last tokens, may see a key."""
    ones = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device)
    return ones.tril(n_keys - n_queries)


def middle(ordered: Tensor) -> Tensor:
    """Return the median of the last axis of ordered numbers, keeping the axis."""
    n = ordered.shape[-1]
    return (ordered[..., (n - 1) // 2, None] + ordered[..., n // 2, None]) / 2
