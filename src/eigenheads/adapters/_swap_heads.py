"""What an attention is asked for, in one form for every family of models."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eigenheads._checks import Got, fail
from eigenheads.nn._masks import causal_mask

OWNER = "swapped attention"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Queries, keys and values of all heads, and who sees whom.

    Attributes
    ----------
    queries, keys, values
        Of shape ``(batch, heads, tokens, d_head)``, with as many heads each.
    mask
        Broadcasts to ``(batch, heads, n_queries, n_keys)``: ``True`` where a query may
        see a key, or numbers to add to the scores; None hides nothing.
    is_causal
        Whether the queries' tokens see no later ones. Without a mask it hides them;
        with fewer queries than keys it says how to read the mask.
    is_self
        Whether the queries come from the tokens of the last keys.
    scale
        What the scores are multiplied by.
    dropout
        Probability that a weight of the last softmax is dropped.
    wants_weights
        Whether to return the weights, too.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    mask: Tensor | None
    is_causal: bool
    is_self: bool
    scale: float
    dropout: float = 0.0
    wants_weights: bool = False

    @property
    def n_queries(self) -> int:
        """Number of queries."""
        return self.queries.shape[-2]

    @property
    def n_keys(self) -> int:
        """Number of keys."""
        return self.keys.shape[-2]


def by_token(asked: Asked) -> Asked:
    """Return the same with a mask whose rows are the keys' tokens, not the queries'.

    Cleaning or averaging keys asks what a key's own token sees, so a mask with a row
    for each query does not do if the keys are more. With cached keys the rows of
    earlier tokens follow from causality and padding; a mask that is more than that is
    refused.
    """
    mask = asked.mask
    if mask is None:
        return replace(asked, is_causal=asked.is_causal and asked.is_self)
    if asked.is_self and asked.n_queries < asked.n_keys:
        asked = _without_unused_keys(asked)
        assert asked.mask is not None
        mask = asked.mask
    if asked.is_self and asked.n_queries == asked.n_keys:
        return replace(asked, is_causal=False)
    if mask.shape[-2] == 1 and not (asked.is_self and asked.is_causal):
        return replace(asked, is_causal=False)
    if asked.is_self and asked.is_causal:
        return _from_cache(asked, mask)
    if not bool((mask == mask[..., :1, :]).all()):
        contract = "the same for all queries where the keys are of other tokens"
        got = Got("a mask with rows that differ")
        fail("mask", contract, got, owner=OWNER)
    return replace(asked, mask=mask[..., :1, :], is_causal=False)


def is_visible(mask: Tensor) -> Tensor:
    """Return where a mask lets through; numbers whose exponential is zero hide."""
    return mask if mask.dtype == torch.bool else mask.detach().float().exp() > 0


def _without_unused_keys(asked: Asked) -> Asked:
    """Drop the places of a preallocated cache that are still empty."""
    assert asked.mask is not None
    visible = is_visible(asked.mask)
    if bool(visible[..., -1, -1].any()):
        return asked
    # A query's last visible key is its own; the queries after it have theirs behind.
    place = torch.arange(1, asked.n_keys + 1, device=visible.device)
    behind = torch.arange(visible.shape[-2] - 1, -1, -1, device=visible.device)
    end = ((visible * place).amax(-1) + behind) * visible.any(-1)
    n = max(int(end.max()), asked.n_queries)
    keys, values = asked.keys[..., :n, :], asked.values[..., :n, :]
    return replace(asked, keys=keys, values=values, mask=asked.mask[..., :n])


def _from_cache(asked: Asked, mask: Tensor) -> Asked:
    visible = is_visible(mask)
    padding = visible[..., -1:, :]
    causal = causal_mask(asked.n_queries, asked.n_keys, mask.device)
    some = visible.any(-1, keepdim=True)
    plain = mask.dtype == torch.bool or bool((mask[visible] == 0).all())
    if not plain or not bool((visible == (padding & causal & some)).all()):
        contract = "causal with padding where keys are cached"
        got = Got("a mask that hides or adds more")
        hint = "Earlier tokens' rows of it are unknown; pass `use_cache=False`."
        fail("attention_mask", contract, got, owner=OWNER, hint=hint)
    return replace(asked, mask=padding, is_causal=True)
