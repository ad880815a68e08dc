"""Symmetric attention: the keys serve as queries."""

from jaxtyping import Float
from torch import Tensor

from eigenheads.nn._projections import AbstractAttention, Tokens


class SymmetricAttention(AbstractAttention):
    r"""Self-attention whose queries are the keys.

    .. math::

        H = \operatorname{softmax}(K K^\top / \sqrt{D}) V

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

    Notes
    -----
    Parameter names and layouts are those of timm's attention, so that its state dicts
    load; the third of ``qkv`` that computes queries has no effect.

    See Also
    --------
    RPCAttention : the same with corrupted entries of the keys removed first.

    Examples
    --------
    >>> import torch
    >>> SymmetricAttention(8, 2)(torch.zeros(1, 5, 8)).shape
    torch.Size([1, 5, 8])
    """

    def forward(
        self,
        x: Tokens,
        attn_mask: Tensor | None = None,
        *,
        is_causal: bool | None = None,
    ) -> Tokens:
        """Mix tokens.

        Parameters
        ----------
        x
            Tokens. NaN or infinity in a token make the outputs that see it NaN.
        attn_mask
            Broadcasts to ``(batch, heads, tokens, tokens)``: ``True`` where a token
            (row) may see a key (column), or numbers to add to the scores.
        is_causal
            Overrides the setting of the layer.

        Returns
        -------
        mixed
            Of the shape of `x`.
        """
        _, k, v = self._heads(x)
        visibility = self._visibility(k, attn_mask, is_causal)
        k, v = visibility.hide(k), visibility.hide(v)
        scale = self.d_head**-0.5
        return self._merge(
            visibility.attend(k, k, v, scale=scale, dropout=self._dropout)
        )

    def attention_weights(
        self,
        x: Tokens,
        attn_mask: Tensor | None = None,
        *,
        is_causal: bool | None = None,
    ) -> Float[Tensor, "batch heads tokens tokens"]:
        """Return the softmax weights that :meth:`forward` uses, without dropout.

        Parameters
        ----------
        x
            Tokens. Rows of weights that NaN or infinity make undefined are zero.
        attn_mask, is_causal
            As in :meth:`forward`.
        """
        _, k, _ = self._heads(x)
        visibility = self._visibility(k, attn_mask, is_causal)
        k = visibility.hide(k)
        return visibility.weights(k, k, scale=self.d_head**-0.5).to(k.dtype)
