"""Scaled attention: values minus a learned multiple of their average."""

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eigenheads._checks import Got, check_choice, check_count, fail
from eigenheads._limits import MAX_WORK
from eigenheads.nn._projections import AbstractAttention, Heads, Tokens
from eigenheads.nn._visibility import Visibility


class ScaledAttention(AbstractAttention):
    r"""Self-attention with values corrected by a learned matrix.

    .. math::

        H = \operatorname{softmax}(Q K^\top / \sqrt{D}) (I - S) V

    with :math:`S` a free matrix per head, or :math:`S = \alpha
    \operatorname{softmax}(K K^\top / \sqrt{D})` with one learned :math:`\alpha`.

    Parameters
    ----------
    d_model
        Width of the tokens.
    n_heads
        Number of heads; must divide `d_model`.
    kind
        ``"scalar"`` learns :math:`\alpha`, ``"matrix"`` learns :math:`S`.
    n_tokens
        Size of :math:`S` for ``kind="matrix"``; shorter inputs use its first rows and
        columns.
    **options
        ``qkv_bias``, ``attn_drop``, ``proj_drop``, ``is_causal``, ``device``,
        ``dtype`` as in :class:`SymmetricAttention`.

    Notes
    -----
    :math:`\alpha` and :math:`S` start at 0, where the layer is plain attention. A
    trained timm attention can be loaded (``strict=False``, because only ``scaling`` is
    new) and fine-tuned. :math:`S` is zero for hidden keys, and the mask applies twice:
    if *i* sees *j* and *j* sees *k*, then *k* influences *i*.

    Examples
    --------
    >>> import torch
    >>> ScaledAttention(8, 2, kind="matrix", n_tokens=5).scaling.shape
    torch.Size([2, 5, 5])
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        kind: Literal["scalar", "matrix"] = "scalar",
        n_tokens: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(d_model, n_heads, **options)
        self.kind = check_choice("kind", kind, ("scalar", "matrix"), owner=self._owner)
        self.n_tokens = n_tokens
        shape: tuple[int, ...] = ()
        if kind == "matrix":
            size = check_count("n_tokens", n_tokens, owner=self._owner)
            if self.n_heads * size * size > MAX_WORK:
                contract = f"at most {MAX_WORK} numbers over all heads"
                got = Got(f"{self.n_heads} heads, {size} tokens")
                fail("n_tokens", contract, got, owner=self._owner)
            shape = (self.n_heads, size, size)
        factory = {name: options.get(name) for name in ("device", "dtype")}
        self.scaling = nn.Parameter(torch.zeros(shape, **factory))

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
        q, k, v = self._heads(x)
        output = scaled_heads(
            q,
            k,
            v,
            scaling=self.scaling,
            visibility=self._visibility(k, attn_mask, is_causal),
            scale=self.d_head**-0.5,
            dropout=self._dropout,
            owner=self._owner,
        )
        return self._merge(output)

    def attention_weights(
        self,
        x: Tokens,
        attn_mask: Tensor | None = None,
        *,
        is_causal: bool | None = None,
    ) -> Float[Tensor, "batch heads tokens tokens"]:
        """Return the matrix that :meth:`forward` applies to the values.

        It is the softmax times :math:`I - S`, without dropout; rows sum to 1 only
        while :math:`S = 0`.

        Parameters
        ----------
        x
            Tokens. Rows of weights that NaN or infinity make undefined are zero.
        attn_mask, is_causal
            As in :meth:`forward`.
        """
        q, k, _ = self._heads(x)
        visibility = self._visibility(k, attn_mask, is_causal)
        k = visibility.hide(k)
        scale = self.d_head**-0.5
        weights = visibility.weights(q, k, scale=scale).to(q.dtype)
        S = correction(k, self.scaling, visibility, scale, owner=self._owner)
        return weights - weights @ S.to(q.dtype)

    def extra_repr(self) -> str:
        """Describe the layer in ``print(model)``."""
        size = "" if self.kind == "scalar" else f", n_tokens={self.n_tokens}"
        return f"{super().extra_repr()}, kind={self.kind!r}{size}"


def scaled_heads(
    queries: Heads,
    keys: Heads,
    values: Heads,
    *,
    scaling: Tensor,
    visibility: Visibility,
    scale: float,
    dropout: float,
    owner: str,
) -> Heads:
    """Return scaled attention; `scaling` is one number, or one matrix per head."""
    keys, values = visibility.hide(keys), visibility.hide(values)
    # A free matrix per head, or a multiple of symmetric attention, which fused
    # attention computes without forming the matrix.
    if scaling.ndim:
        S = _matrix(scaling, visibility, owner=owner).to(values.dtype)
        values = values - (S @ values).to(values.dtype)
    else:
        average = visibility.attend(keys, keys, values, scale=scale)
        values = values - scaling.to(values.dtype) * average
    return visibility.attend(queries, keys, values, scale=scale, dropout=dropout)


def correction(
    keys: Heads, scaling: Tensor, visibility: Visibility, scale: float, *, owner: str
) -> Tensor:
    """Return :math:`S`; hidden keys must be zero already."""
    if scaling.ndim:
        return _matrix(scaling, visibility, owner=owner)
    return scaling * visibility.weights(keys, keys, scale=scale)


def _matrix(scaling: Tensor, visibility: Visibility, *, owner: str) -> Tensor:
    """Return :math:`S`, zero where the mask hides."""
    n, size = visibility.n_keys, scaling.shape[-1]
    if n > size:
        contract = f"of at most `n_tokens`={size} tokens"
        fail("x", contract, Got(f"{n} tokens"), owner=owner)
    matrix = scaling[:, :n, :n]
    visible = visibility.as_booleans(matrix.device)
    return matrix if visible is None else matrix.masked_fill(~visible, 0.0)
