"""What was captured of one layer, as NumPy arrays."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from eigenheads.adapters._heads import attend

Numbers = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class CapturedLayer:
    r"""One attention layer of a model on a batch, head by head.

    Attributes
    ----------
    name, layer
        Path of the attention module in the model, and its index from 0.
    queries, keys, values
        ``(batch, heads, tokens, d_head)``: what meets in the softmax, after rotary
        positions and norms of heads, before scaling; grouped keys and values are
        repeated for each head of the queries.
    weights
        ``(batch, heads, tokens, tokens)``: softmax, masked.
    outputs
        ``(batch, heads, tokens, d_head)``: before the output projection.
    tokens
        ``(batch, tokens, d_model)``: what enters the attention, after the norm of
        layers that have one before it.
    mask
        ``(batch, tokens)``: False for padding, which no token sees.
    is_causal
        Whether tokens see only themselves and earlier ones.
    scale
        Factor of the scores, usually :math:`1/\sqrt{D}`.
    w_query, w_key, w_value
        ``(heads, d_head, d_model)``: the projections, those of groups repeated.
    w_output
        ``(heads, d_model, d_head)``: head :math:`h` adds
        ``w_output[h] @ outputs[:, h]`` to the layer's result.
    b_query, b_key, b_value, b_output
        Biases, ``(heads, d_head)`` and ``(d_model,)``, or None.
    bias
        ``(batch, 1 or heads, tokens, tokens)``, added to the scores, if `mask` and
        `is_causal` do not say all (sliding windows, masks of your own); else None.

    Notes
    -----
    Of padding, the arrays hold whatever the model computed; use `mask`. For layers of
    :mod:`eigenheads.nn` queries, keys and values are those of their last softmax: the
    cleaned keys of RPC-Attention, the corrected values of scaled attention.
    """

    name: str
    layer: int
    queries: Numbers
    keys: Numbers
    values: Numbers
    weights: Numbers
    outputs: Numbers
    tokens: Numbers
    mask: NDArray[np.bool_]
    is_causal: bool
    scale: float
    w_query: Numbers
    w_key: Numbers
    w_value: Numbers
    w_output: Numbers
    b_query: Numbers | None = None
    b_key: Numbers | None = None
    b_value: Numbers | None = None
    b_output: Numbers | None = None
    bias: Numbers | None = None

    @property
    def n_heads(self) -> int:
        """Number of heads."""
        return self.queries.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = (getattr(self, field.name) for field in fields(self))
        return sum(a.nbytes for a in arrays if isinstance(a, np.ndarray))

    def additions(self) -> Numbers | None:
        """Return what masks add to the scores, or None if all tokens see all."""
        if self.bias is not None:
            return self.bias
        if self.mask.all() and not self.is_causal:
            return None
        n = self.mask.shape[1]
        seen = self.mask[:, None, None, :]
        if self.is_causal:
            seen = seen & np.tri(n, dtype=bool)
        return np.where(seen, 0.0, -np.inf).astype(self.queries.dtype)

    def recompute(self) -> Numbers:
        """Return the outputs from queries, keys, values and masks alone.

        Examples
        --------
        >>> import torch
        >>> from eigenheads.adapters import capture_heads
        >>> layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        >>> (captured,) = capture_heads(layer, torch.ones(1, 3, 8))
        >>> bool(np.allclose(captured.recompute(), captured.outputs, atol=1e-6))
        True
        """
        q, k, v = map(torch.from_numpy, (self.queries, self.keys, self.values))
        added = self.additions()
        bias = None if added is None else torch.from_numpy(added)
        return attend(q, k, v, bias=bias, scale=self.scale)[1].numpy()

    def mixed(self) -> Numbers:
        """Return what the layer returns: the heads' outputs, projected and summed."""
        total = np.einsum("bhnv,hdv->bnd", self.outputs, self.w_output, optimize=True)
        return total if self.b_output is None else total + self.b_output


def read_masks(
    bias: Numbers | None, n_rows: int, n_tokens: int
) -> tuple[NDArray[np.bool_], bool, Numbers | None]:
    """Return padding, whether the mask is causal, and the bias if these say not all."""
    if bias is None:
        return np.ones((n_rows, n_tokens), dtype=bool), False, None
    shape = (n_rows, bias.shape[1], n_tokens, n_tokens)
    full = np.broadcast_to(bias, shape)
    visible = np.isfinite(full)
    mask: NDArray[np.bool_] = np.asarray(visible.any(axis=(1, 2)))
    # What padding itself sees is nobody's business.
    asked = mask[:, None, :, None]
    plain = not np.any(full, where=visible & asked)
    for is_causal in (False, True):
        seen = np.broadcast_to(mask[:, None, None, :], shape)
        if is_causal:
            seen = seen & np.tri(n_tokens, dtype=bool)
        if plain and not np.any((seen != visible) & asked):
            return mask, is_causal, None
    return mask, False, np.array(full)
