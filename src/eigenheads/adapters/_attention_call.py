"""One call of an attention layer, in one form for every family of models."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from eigenheads._checks import Got, fail
from eigenheads.nn import Visibility
from eigenheads.nn._visibility import causal_mask, is_visible


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """Queries, keys and values of all heads, with the mask and scale of the call.

    Attributes
    ----------
    queries, keys, values
        Of shape ``(batch, heads, tokens, d_head)``. Keys and values may have fewer
        heads than queries (grouped queries).
    mask
        Broadcasts to ``(batch, heads, n_queries, n_keys)``: ``True`` where a query may
        see a key, or numbers to add to the scores; None hides nothing.
    is_causal
        Whether queries see no later tokens. Without a mask this hides later tokens;
        with fewer queries than keys it determines how the mask is read.
    scale
        Factor of the scores.
    is_self
        Whether the queries belong to the tokens of the last keys (self-attention).
    dropout
        Probability that a weight of the last softmax is dropped.
    wants_weights
        Whether the caller wants the attention weights as well.
    tokens
        Input of the layer, ``(batch, tokens, d_model)``; None where it is not known.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    mask: Tensor | None
    scale: float
    is_causal: bool = False
    is_self: bool = True
    dropout: float = 0.0
    wants_weights: bool = False
    tokens: Tensor | None = None

    @property
    def n_queries(self) -> int:
        """Number of queries."""
        return self.queries.shape[-2]

    @property
    def n_keys(self) -> int:
        """Number of keys."""
        return self.keys.shape[-2]

    def with_repeated_keys(self) -> "AttentionCall":
        """Return the call with as many heads of keys and values as of queries."""
        times = self.queries.shape[1] // self.keys.shape[1]
        if times == 1:
            return self
        keys, values = (
            x.repeat_interleave(times, dim=1) for x in (self.keys, self.values)
        )
        return replace(self, keys=keys, values=values)

    @cached_property
    def attended(self) -> tuple[Tensor, Tensor]:
        """Explicit softmax weights and outputs of the heads, without dropout."""
        call = with_key_rows(self.with_repeated_keys())
        weights = visibility_of(call).weights(call.queries, call.keys, scale=call.scale)
        return weights, weights.to(call.values.dtype) @ call.values


def visibility_of(call: AttentionCall) -> Visibility:
    """Return which tokens see which, for a call whose mask has one row per key.

    See :func:`with_key_rows`, which brings a call into that form.
    """
    return Visibility.read(
        call.mask, is_causal=call.is_causal, keys=call.keys, n_queries=call.n_queries
    )


def with_key_rows(call: AttentionCall) -> AttentionCall:
    """Return the call with a mask whose rows are the tokens of the keys.

    Cleaning or averaging keys needs to know what the token of each key sees. A mask
    with one row per query does not tell if there are more keys than queries. With
    cached keys the rows of earlier tokens follow from causality and padding; a mask
    that contains more than these is refused.
    """
    if call.mask is None:
        return replace(call, is_causal=call.is_causal and call.is_self)
    # Rule 1: empty places at the end of a preallocated cache are no tokens.
    if call.is_self and call.n_queries < call.n_keys:
        call = _without_unused_keys(call)
    mask = call.mask
    assert mask is not None
    # Rule 2: as many queries as keys; the mask has the rows, causality included.
    if call.is_self and call.n_queries == call.n_keys:
        return replace(call, is_causal=False)
    # Rule 3: one row serves all tokens, unless causality has to be added to it.
    if mask.shape[-2] == 1 and not (call.is_self and call.is_causal):
        return replace(call, is_causal=False)
    # Rule 4: cached keys; rebuild the rows of earlier tokens.
    if call.is_self and call.is_causal:
        return _with_cached_rows(call, mask)
    # Rule 5: keys of other tokens; all queries must see the same keys.
    if not bool((mask == mask[..., :1, :]).all()):
        contract = "the same for all queries where the keys are of other tokens"
        got = Got("a mask with rows that differ")
        fail("mask", contract, got)
    return replace(call, mask=mask[..., :1, :], is_causal=False)


def _without_unused_keys(call: AttentionCall) -> AttentionCall:
    """Drop the places of a preallocated cache that are still empty."""
    assert call.mask is not None
    visible = is_visible(call.mask)
    if bool(visible[..., -1, -1].any()):
        return call
    # The last visible key of a query is its own; later queries have theirs after it.
    place = torch.arange(1, call.n_keys + 1, device=visible.device)
    behind = torch.arange(visible.shape[-2] - 1, -1, -1, device=visible.device)
    end = ((visible * place).amax(-1) + behind) * visible.any(-1)
    n = max(int(end.max()), call.n_queries)
    keys, values = call.keys[..., :n, :], call.values[..., :n, :]
    return replace(call, keys=keys, values=values, mask=call.mask[..., :n])


def _with_cached_rows(call: AttentionCall, mask: Tensor) -> AttentionCall:
    # The last query sees every earlier token except padding.
    visible = is_visible(mask)
    padding = visible[..., -1:, :]
    causal = causal_mask(call.n_queries, call.n_keys, mask.device)
    sees_any = visible.any(-1, keepdim=True)
    plain = mask.dtype == torch.bool or bool((mask[visible] == 0).all())
    if not plain or not bool((visible == (padding & causal & sees_any)).all()):
        contract = "causal with padding where keys are cached"
        got = Got("a mask that hides or adds more")
        hint = "Earlier tokens' rows of it are unknown; pass `use_cache=False`."
        fail("attention_mask", contract, got, hint=hint)
    return replace(call, mask=padding, is_causal=True)


def without_keys(mask: Tensor | None, hidden: Tensor) -> Tensor:
    """Return a mask that also hides keys from all tokens, True in ``(batch, keys)``."""
    hidden = hidden[:, None, None, :]
    if mask is None:
        return ~hidden
    if mask.dtype == torch.bool:
        return mask & ~hidden
    return mask.masked_fill(hidden, -torch.inf)


def hidden_by_pytorch(mask: Tensor) -> Tensor:
    """Return the keys that a mask of PyTorch's own layers hides.

    There, ``True`` hides a key, contrary to the rest of PyTorch.
    """
    return mask if mask.dtype == torch.bool else ~is_visible(mask)


def merge_masks(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, queries: Tensor
) -> Tensor | None:
    """Return the two masks of ``nn.MultiheadAttention`` as one added to the scores.

    Parameters
    ----------
    attn_mask
        ``(rows, keys)`` or ``(batch · heads, rows, keys)``.
    key_padding_mask
        ``(batch, keys)``.
    queries
        ``(batch, heads, rows, d_head)``.
    """
    batch, heads = queries.shape[:2]
    parts = []
    if attn_mask is not None:
        is_shared = attn_mask.dim() == 2
        shape = (batch, heads, *attn_mask.shape[1:])
        parts.append(attn_mask if is_shared else attn_mask.view(shape))
    if key_padding_mask is not None:
        parts.append(key_padding_mask.reshape(batch, 1, 1, -1))
    total: Tensor | None = None
    for part in parts:
        numbers = part
        if part.dtype == torch.bool:
            # Booleans become numbers, so that both kinds of masks add up.
            zeros = torch.zeros(part.shape, dtype=queries.dtype, device=queries.device)
            numbers = zeros.masked_fill(part, -torch.inf)
        total = numbers if total is None else total + numbers
    if total is None:
        return None
    return total.reshape((1,) * (4 - total.dim()) + total.shape)
