"""RPC-Attention as a layer."""

import math
from types import MethodType
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from eigenheads.nn._diagnostics import Monitor, PursuitDiagnostics
from eigenheads.nn._projections import (
    AbstractAttention,
    Heads,
    Tokens,
    softmax_weights,
)
from eigenheads.nn._pursuit import Found, Settings, Threshold, pursue
from eigenheads.nn._specialize import specialized


class RPCAttention(AbstractAttention):
    r"""Self-attention that removes corrupted entries of the keys.

    Each head returns :func:`rpc_attention` of its keys and values: `n_iter` rounds of
    robust PCA of the keys, whose low-rank step is a symmetric attention.

    Parameters
    ----------
    d_model
        Width of the tokens.
    n_heads
        Number of heads; must divide `d_model`.
    n_iter
        Number of softmaxes; the cost is that of so many attentions.
    sparsity
        :math:`\lambda`; more flags less, infinity nothing. ``"auto"`` flags 1 % of the
        entries of clean Gaussian keys.
    threshold
        ``"paper"`` or ``"reference"``, as in :func:`rpc_attention`.
    symmetric
        Whether the last softmax compares the cleaned keys with themselves, as in the
        paper; otherwise the queries meet them there.
    recompute
        Whether the backward pass computes the iterations again instead of keeping
        them: memory between the passes no longer grows with `n_iter`.
    **options
        ``qkv_bias``, ``attn_drop`` (in the last softmax only), ``proj_drop``,
        ``is_causal``, ``device``, ``dtype`` as in :class:`SymmetricAttention`.

    Notes
    -----
    Parameter names and layouts are those of timm's attention, so that its state dicts
    load; the third of ``qkv`` that makes queries has no effect if `symmetric`.

    In training every tenth call is measured. A :class:`PursuitWarning` says, once a
    layer, that 100 calls flagged nothing, or that tokens put more than 0.99 of their
    weight on themselves. Compiled calls are not watched; ask :meth:`diagnostics`.

    Examples
    --------
    >>> import torch
    >>> layer = RPCAttention(8, 2, n_iter=2, sparsity="auto")
    >>> layer(torch.randn(1, 5, 8)).shape
    torch.Size([1, 5, 8])
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_iter: int = 4,
        sparsity: float | Literal["auto"] = 4.0,
        threshold: Threshold = "paper",
        symmetric: bool = True,
        recompute: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(d_model, n_heads, **options)
        self._settings = Settings.read(n_iter, sparsity, threshold, owner=self._owner)
        self.threshold = threshold
        self.symmetric = symmetric
        self.recompute = recompute
        # Who asks for an infinite threshold knows that nothing is flagged.
        self._monitor = Monitor(has_flagged=sparsity == math.inf)
        self._bind_forward()

    @property
    def n_iter(self) -> int:
        """Number of softmaxes."""
        return self._settings.n_iter

    @property
    def sparsity(self) -> float | Literal["auto"]:
        """Sparsity of the pursuit."""
        return self._settings.sparsity

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
            Tokens.
        attn_mask
            Broadcasts to ``(batch, heads, tokens, tokens)``: ``True`` where a token
            (row) may see a key (column), or numbers to add to the scores. Padding is
            one row, ``(batch, 1, 1, tokens)``.
        is_causal
            Overrides the layer's own setting.

        Returns
        -------
        mixed
            Of the shape of `x`.
        """
        heads = self._heads(x)
        if not self.training or torch.compiler.is_compiling():
            found = self._pursue(heads, attn_mask, is_causal)
        else:
            measure = self._monitor.wants()
            found = self._pursue(heads, attn_mask, is_causal, measure=measure)
            if found.diagnostics is not None:
                self._monitor.see(found.diagnostics, n_tokens=x.shape[1])
        return self._merge(found.output)

    @torch.no_grad()
    def diagnostics(
        self,
        x: Tokens,
        attn_mask: Tensor | None = None,
        *,
        is_causal: bool | None = None,
    ) -> PursuitDiagnostics:
        """Return what each iteration does to these tokens, head by head."""
        found = self._pursue(self._heads(x), attn_mask, is_causal, measure=True)
        assert found.diagnostics is not None
        return found.diagnostics

    def attention_weights(
        self,
        x: Tokens,
        attn_mask: Tensor | None = None,
        *,
        is_causal: bool | None = None,
    ) -> Float[Tensor, "batch heads tokens tokens"]:
        """Return the weights of the last softmax, without dropout."""
        heads = self._heads(x)
        cleaned = self._pursue(heads, attn_mask, is_causal).cleaned
        visibility = self._visibility(cleaned, attn_mask, is_causal)
        asking = cleaned if self.symmetric else heads[0]
        return softmax_weights(asking, cleaned, visibility, self.d_head**-0.5)

    def extra_repr(self) -> str:
        """Describe the layer in ``print(model)``."""
        text = (
            f"{super().extra_repr()}, n_iter={self.n_iter}, sparsity={self.sparsity!r}"
            f", threshold={self.threshold!r}, symmetric={self.symmetric}"
        )
        return text + (", recompute=True" if self.recompute else "")

    def _bind_forward(self) -> None:
        """Give the layer a `forward` for its `n_iter` (see :mod:`._specialize`)."""
        forward = specialized(type(self).forward, self.n_iter)
        self.__dict__["forward"] = MethodType(forward, self)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "forward"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._bind_forward()

    def _replicate_for_data_parallel(self) -> "RPCAttention":
        replica: RPCAttention = super()._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        replica._bind_forward()
        return replica

    def _pursue(
        self,
        heads: tuple[Heads, Heads, Heads],
        attn_mask: Tensor | None,
        is_causal: bool | None,
        *,
        measure: bool = False,
    ) -> Found:
        q, k, v = heads
        return pursue(
            k,
            v,
            settings=self._settings,
            queries=None if self.symmetric else q,
            attn_mask=attn_mask,
            is_causal=self._causal(is_causal),
            measure=measure,
            dropout=self._dropout,
            recompute=self.recompute,
            owner=self._owner,
        )
