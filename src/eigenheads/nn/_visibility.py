"""Attention masks: one type that reads them all, for averages and for softmaxes."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from eigenheads._checks import (
    Got,
    check_count,
    check_flag,
    check_instance,
    fail,
)


@dataclass(frozen=True)
class Visibility:
    """Visibility of tokens to each other: an attention mask.

    What a mask hides is decided in this module only. Rows are tokens, columns are keys.
    A mask of booleans shows a key where it is ``True``, as in
    :func:`torch.nn.functional.scaled_dot_product_attention`; a mask of numbers is added
    to the scores, and hides a key where the exponential of the number is zero.

    Attributes
    ----------
    n_keys
        Number of keys.
    is_causal
        Whether each token sees itself and all earlier tokens, and nothing else. Then
        `visible` and `bias` are None.
    visible
        Boolean tensor of shape ``(…, 1 or n_keys, n_keys)``; None if every token is
        visible, or if `is_causal`.
    bias
        Numbers added to the scores, of the same shape; ``-inf`` hides a key.

    Examples
    --------
    >>> import torch
    >>> keys = torch.zeros(1, 2, 3, 4)  # batch, heads, tokens, d_head
    >>> padding = torch.tensor([True, True, False])
    >>> Visibility.read(padding, is_causal=True, keys=keys).visible.int()
    tensor([[[[1, 0, 0],
              [1, 1, 0],
              [1, 1, 0]]]], dtype=torch.int32)
    """

    n_keys: int
    is_causal: bool = False
    visible: Tensor | None = None
    bias: Tensor | None = None

    @classmethod
    def read(
        cls,
        attn_mask: Tensor | None,
        *,
        is_causal: bool,
        keys: Tensor,
        n_queries: int | None = None,
    ) -> "Visibility":
        """Return the masks of one attention call as one object.

        Parameters
        ----------
        attn_mask
            Broadcasts to ``(batch, heads, n_keys, n_keys)``; None hides nothing.
        is_causal
            Whether to hide later tokens as well.
        keys
            Keys of the call, ``(batch, heads, n_keys, d_head)``.
        n_queries
            Number of queries, if it differs from the number of keys.
        """
        check_flag("is_causal", is_causal)
        check_axes_of("keys", keys, 4, n_queries)
        check_devices(attn_mask, keys)
        n_keys = keys.shape[-2]
        n_queries = n_keys if n_queries is None else n_queries
        if is_causal and n_queries > n_keys:
            got = Got(f"{n_queries} queries and {n_keys} keys")
            contract = "the last of the tokens whose keys are given if `is_causal`"
            fail("queries", contract, got)
        # Without a mask tensor, causality stays a flag: fused kernels take it as such,
        # and means become running sums.
        if attn_mask is None:
            return cls(n_keys, is_causal)
        _check_mask(attn_mask, keys, n_queries)
        mask = attn_mask.reshape((1,) * (4 - attn_mask.ndim) + attn_mask.shape)
        # From here on `visible` and `bias` carry everything, causality included.
        visible = is_visible(mask)
        if is_causal:
            visible = visible & causal_mask(n_keys, n_keys, keys.device)
        dtype = torch.promote_types(keys.dtype, torch.float32)
        numbers = 0.0 if mask.dtype == torch.bool else mask.to(dtype)
        hidden = torch.tensor(-torch.inf, dtype=dtype, device=keys.device)
        return cls(n_keys, False, visible, torch.where(visible, numbers, hidden))

    def live(self) -> Tensor | None:
        """Return which tokens are seen by any token, or None if all are."""
        return None if self.visible is None else self.visible.any(-2)

    def hide(self, x: Tensor) -> Tensor:
        """Return `x` with zeros for tokens that no token sees, even if they are NaN."""
        live = self.live()
        return x if live is None else x.masked_fill(~live.unsqueeze(-1), 0.0)

    def mean(self, per_token: Tensor) -> Tensor:
        """Return each row's mean over the tokens that it sees, ``(…, rows, 1)``."""
        # Three cases, from general to cheap: any mask, causal, none.
        if self.visible is not None:
            weights = self.visible.to(per_token.dtype)
            total = weights @ per_token.unsqueeze(-1)
            return total / weights.sum(-1, keepdim=True).clamp_min(1.0)
        if self.is_causal:
            count = torch.arange(1, self.n_keys + 1, device=per_token.device)
            return (per_token.cumsum(-1) / count).unsqueeze(-1)
        return per_token.mean(-1, keepdim=True).unsqueeze(-1)

    def median(self, per_token: Tensor) -> Tensor:
        """Return each row's median over the tokens that it sees, ``(…, rows, 1)``."""
        visible = self.as_booleans(per_token.device)
        if visible is None:
            return middle(per_token.unsqueeze(-2).sort(-1).values)
        # Hidden tokens sort to the end, so the middle of the first `count` is it.
        ordered = (
            torch.where(visible, per_token.unsqueeze(-2), torch.inf).sort(-1).values
        )
        count = visible.sum(-1, keepdim=True).expand(*ordered.shape[:-1], 1)
        lower = ordered.gather(-1, ((count - 1) // 2).clamp_min(0))
        upper = ordered.gather(-1, (count // 2).clamp_max(self.n_keys - 1))
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
        # Choose the cheapest form that the fused kernel accepts: its causal flag, a
        # boolean mask, or a bias.
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

    def weights(self, queries: Tensor, keys: Tensor, *, scale: float) -> Tensor:
        """Return the explicit softmax of the scores; queries are the last rows.

        It is computed in single precision at least, as models do. A row that sees no
        key is zero.
        """
        scores = scale * (queries @ keys.transpose(-2, -1))
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if self.bias is not None or self.is_causal:
            index = torch.arange(self.n_keys - queries.shape[-2], self.n_keys)
            scores = scores + self.rows(index).to(scores)
        return scores.softmax(-1).nan_to_num(0.0)

    def rows(self, index: Tensor) -> Tensor:
        """Return the numbers added to the scores of some tokens, ``(…, 1 or rows, n)``.

        Parameters
        ----------
        index
            Indices of the tokens.
        """
        if self.bias is not None:
            # One row serves every token, and all rows in order need no indexing.
            whole = self.bias.shape[-2] == 1 or len(index) == self.n_keys
            return self.bias if whole else self.bias[..., index.to(self.bias.device), :]
        bias = torch.zeros(1, self.n_keys)
        if self.is_causal:
            later = torch.arange(self.n_keys) > index.cpu().unsqueeze(-1)
            bias = bias.masked_fill(later, -torch.inf)
        return bias

    def as_booleans(self, device: torch.device) -> Tensor | None:
        """Return `visible`, also for a causal mask; None if all is visible."""
        if self.visible is None and self.is_causal:
            return causal_mask(self.n_keys, self.n_keys, device)
        return self.visible

    def as_bias(self) -> Tensor | None:
        """Return `bias` with four axes, also for a causal mask; None if all is visible.

        Its shape is ``(1 or batch, 1 or heads, 1 or n_keys, n_keys)``.
        """
        if self.bias is None and not self.is_causal:
            return None
        bias = self.rows(torch.arange(self.n_keys))
        return bias.reshape((1,) * (4 - bias.ndim) + bias.shape)

    @classmethod
    def from_padding(cls, padding: Tensor, *, is_causal: bool) -> "Visibility":
        """Return the mask of sequences with padding.

        Parameters
        ----------
        padding
            ``(batch, tokens)``, False for padding.
        is_causal
            Whether to hide later tokens as well.
        """
        check_axes_of("padding", padding, 2, None)
        if bool(padding.all()):
            return cls(padding.shape[1], is_causal)
        like = torch.empty(len(padding), 1, padding.shape[1], 1)
        return cls.read(padding[:, None, None, :], is_causal=is_causal, keys=like)

    def split(self, n_rows: int) -> tuple[Tensor, bool, Tensor | None]:
        """Return padding, causality, and the bias that these two do not explain.

        Parameters
        ----------
        n_rows
            Number of sequences.

        Returns
        -------
        padding
            ``(n_rows, n_keys)``, False for tokens that no token sees.
        is_causal
            Whether tokens see only themselves and earlier ones.
        rest
            None if the mask is padding, causality, or both; else the whole bias.
        """
        bias = self.as_bias()
        if bias is None:
            return torch.ones(n_rows, self.n_keys, dtype=torch.bool), False, None
        full = bias.expand(n_rows, bias.shape[1], self.n_keys, self.n_keys)
        visible = full.isfinite()
        padding = visible.any(1).any(1)
        # Rows of padding tokens are ignored.
        counts = padding[:, None, :, None]
        if not bool((full.masked_fill(~visible, 0.0) * counts).any()):
            # Two explanations in turn: padding alone, then padding and causality.
            for is_causal in (False, True):
                expected = padding[:, None, None, :]
                if is_causal:
                    expected = expected & causal_mask(
                        self.n_keys, self.n_keys, full.device
                    )
                if not bool(((expected != visible) & counts).any()):
                    return padding, is_causal, None
        return padding, False, full


def check_axes_of(name: str, x: Tensor, n_axes: int, n_queries: int | None) -> None:
    """Raise unless `x` is a dense tensor with `n_axes` axes; check `n_queries`."""
    check_instance(name, x, Tensor)
    if x.layout != torch.strided or x.ndim != n_axes or 0 in x.shape:
        got = Got(f"shape {tuple(x.shape)}, layout {x.layout}")
        contract = f"a dense tensor of {n_axes} axes, none of them empty"
        fail(name, contract, got)
    is_float = x.is_floating_point() or x.is_complex()
    if name == "padding" and (is_float or x.device.type == "meta"):
        got = Got(f"{x.dtype} on {x.device}")
        fail(name, "a tensor of booleans", got)
    # In a compiled graph sizes are symbols.
    if n_queries is not None and not torch.compiler.is_compiling():
        check_count("n_queries", n_queries)


def check_devices(mask: object, keys: Tensor) -> None:
    """Raise if keys hold no numbers and their mask does."""
    is_apart = isinstance(mask, Tensor) and mask.device.type != "meta"
    if is_apart and keys.device.type == "meta":
        fail("keys", "on the device of `attn_mask`", Got("meta"))


def is_visible(mask: Tensor) -> Tensor:
    """Return where a mask shows a key.

    Models write "hidden" as False, as ``-inf``, as the smallest number of their type,
    or as some large negative number: the exponential of all of these is zero.
    """
    return mask if mask.dtype == torch.bool else mask.detach().float().exp() > 0


def causal_mask(n_queries: int, n_keys: int, device: torch.device) -> Tensor:
    """Return True where a query, one of the last tokens, may see a key."""
    ones = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device)
    return ones.tril(n_keys - n_queries)


def middle(ordered: Tensor) -> Tensor:
    """Return the median of the last axis of ordered numbers, keeping the axis."""
    n = ordered.shape[-1]
    return (ordered[..., (n - 1) // 2, None] + ordered[..., n // 2, None]) / 2


def _check_mask(mask: Tensor, keys: Tensor, n_queries: int) -> None:
    n_keys = keys.shape[-2]
    check_instance("attn_mask", mask, Tensor)
    if mask.is_sparse or mask.device.type == "meta" != keys.device.type:
        fail("attn_mask", "a dense tensor that holds numbers", mask)
    if mask.dtype != torch.bool and not mask.is_floating_point():
        contract = "boolean (True may be seen) or floating point (added to the scores)"
        got = Got(f"dtype {str(mask.dtype).removeprefix('torch.')}")
        fail("attn_mask", contract, got, error=TypeError)
    full = (*keys.shape[:2], n_keys, n_keys)
    padded = (1,) * (4 - mask.ndim) + tuple(mask.shape)
    fits = mask.ndim <= 4 and all(
        size in (1, whole) for size, whole in zip(padded, full, strict=True)
    )
    per_token_rows = padded[-2] > 1 and n_queries > n_keys
    if not fits or padded[-1] != n_keys or per_token_rows:
        hint = "Give one row for all tokens, or one row per token (not per query)."
        contract = f"of a shape that broadcasts to {full}"
        fail("attn_mask", contract, Got(tuple(mask.shape)), hint=hint)
