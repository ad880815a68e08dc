"""Self-attention layers under timm's parameter names: symmetric and scaled."""

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eigenheads._checks import (
    Got,
    check_choice,
    check_count,
    check_flag,
    check_instance,
    check_number,
    fail,
)
from eigenheads._limits import MAX_WORK
from eigenheads.nn._visibility import Visibility

# Widest layer: its projections have 4 GiB of float32 numbers.
_WIDEST = 2**14

Tokens = Float[Tensor, "batch tokens d_model"]
Heads = Float[Tensor, "batch heads tokens d_head"]


def check_not_meta(x: Tensor) -> None:
    """Raise if `x` is on the device ``meta``, which autocast does not support."""
    if x.device.type == "meta":
        got = Got("a tensor on the device meta")
        fail("x", "a tensor that holds numbers", got)


def check_factory(device: object, dtype: object) -> None:
    """Raise unless parameters can be made on a device, in a dtype of real numbers."""
    is_dtype = isinstance(dtype, torch.dtype) and dtype.is_floating_point
    if dtype is not None and not is_dtype:
        fail("dtype", "a floating-point dtype of PyTorch, or None", dtype)
    try:
        torch.empty(0, device=device)  # type: ignore[call-overload]
    except Exception:  # what a device must be differs between builds of PyTorch
        fail("device", "an available device of PyTorch", device)


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
        d_model = check_count("d_model", d_model, maximum=_WIDEST)
        self.n_heads = check_count("n_heads", n_heads)
        if d_model % self.n_heads:
            divisors = [d for d in range(1, d_model + 1) if d_model % d == 0]
            contract = f"a divisor of `d_model`={d_model}"
            hint = f"Divisors of {d_model}: {divisors}."
            fail("n_heads", contract, n_heads, hint=hint)
        self.d_model = d_model
        self.is_causal = is_causal
        for name, p in (("attn_drop", attn_drop), ("proj_drop", proj_drop)):
            check_number(name, p, minimum=0.0, maximum=1.0)
        check_flag("qkv_bias", qkv_bias)
        check_flag("is_causal", is_causal)
        check_factory(device, dtype)
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
    def _dropout(self) -> float:
        return self.attn_drop.p if self.training else 0.0

    def extra_repr(self) -> str:
        """Describe the layer in ``print(model)``."""
        return f"n_heads={self.n_heads}, is_causal={self.is_causal}"

    def _heads(self, x: Tokens) -> tuple[Heads, Heads, Heads]:
        """Return queries, keys and values."""
        check_instance("x", x, Tensor)
        if not x.is_floating_point() or x.layout != torch.strided:
            got = Got(f"dtype {x.dtype}, layout {x.layout}")
            fail("x", "a dense tensor of floats", got)
        if x.ndim != 3 or x.shape[-1] != self.d_model or 0 in x.shape:
            contract = f"of shape (batch, tokens, {self.d_model}), without empty axes"
            fail("x", contract, Got(tuple(x.shape)))
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
        check_not_meta(x)
        is_cast = torch.is_autocast_enabled(x.device.type)
        if x.device != weight.device or (x.dtype != weight.dtype and not is_cast):
            contract = f"{weight.dtype} on {weight.device}, as the weights"
            fail("x", contract, Got(f"{x.dtype} on {x.device}"))

    def _merge(self, heads: Heads) -> Tokens:
        """Return the heads side by side, projected."""
        merged: Tensor = self.proj(heads.transpose(1, 2).flatten(2))
        dropped: Tensor = self.proj_drop(merged)
        return dropped

    def _visibility(
        self, keys: Heads, attn_mask: Tensor | None, is_causal: bool | None
    ) -> Visibility:
        causal = self.is_causal if is_causal is None else is_causal
        return Visibility.read(attn_mask, is_causal=causal, keys=keys)


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
        self.kind = check_choice("kind", kind, ("scalar", "matrix"))
        self.n_tokens = n_tokens
        shape: tuple[int, ...] = ()
        if kind == "matrix":
            size = check_count("n_tokens", n_tokens)
            if self.n_heads * size * size > MAX_WORK:
                contract = f"at most {MAX_WORK} numbers over all heads"
                got = Got(f"{self.n_heads} heads, {size} tokens")
                fail("n_tokens", contract, got)
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
        S = correction(k, self.scaling, visibility, scale)
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
) -> Heads:
    """Return scaled attention; `scaling` is one number, or one matrix per head."""
    keys, values = visibility.hide(keys), visibility.hide(values)
    # A free matrix per head, or a multiple of symmetric attention, which fused
    # attention computes without forming the matrix.
    if scaling.ndim:
        S = _matrix(scaling, visibility).to(values.dtype)
        values = values - (S @ values).to(values.dtype)
    else:
        average = visibility.attend(keys, keys, values, scale=scale)
        values = values - scaling.to(values.dtype) * average
    return visibility.attend(queries, keys, values, scale=scale, dropout=dropout)


def correction(
    keys: Heads, scaling: Tensor, visibility: Visibility, scale: float
) -> Tensor:
    """Return :math:`S`; hidden keys must be zero already."""
    if scaling.ndim:
        return _matrix(scaling, visibility)
    return scaling * visibility.weights(keys, keys, scale=scale)


def _matrix(scaling: Tensor, visibility: Visibility) -> Tensor:
    """Return :math:`S`, zero where the mask hides."""
    n, size = visibility.n_keys, scaling.shape[-1]
    if n > size:
        contract = f"of at most `n_tokens`={size} tokens"
        fail("x", contract, Got(f"{n} tokens"))
    matrix = scaling[:, :n, :n]
    visible = visibility.as_booleans(matrix.device)
    return matrix if visible is None else matrix.masked_fill(~visible, 0.0)
