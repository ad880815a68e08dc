"""RPC-Attention as a layer."""

import math
from collections.abc import Callable
from functools import cache
from types import FunctionType, MethodType
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from eigenheads._checks import check_flag, fail
from eigenheads.nn._layers import AbstractAttention, Heads, Tokens
from eigenheads.nn._pursuit import (
    Multiplier,
    PursuitDiagnostics,
    PursuitMonitor,
    PursuitResult,
    PursuitSettings,
    QuerySteps,
    Threshold,
    pursue,
)
from eigenheads.nn._visibility import Visibility


class RPCAttention(AbstractAttention):
    r"""RPC-Attention: self-attention with a robust PCA of the keys.

    In our experiments the layer neither finds corrupted tokens nor makes models more
    robust than symmetric attention; the page of the paper (teo2024) has the numbers.

    Each head returns :func:`rpc_attention` of its keys and values: `n_iter` rounds of
    robust PCA of the keys, whose low-rank step is a symmetric attention.

    Parameters
    ----------
    d_model
        Width of the tokens.
    n_heads
        Number of heads; must divide `d_model`.
    n_iter
        Number of softmaxes; the cost is that of `n_iter` attentions.
    sparsity
        :math:`\lambda`; larger values flag fewer entries, infinity none. ``"auto"``
        flags 1 % of the entries of clean Gaussian keys.
    threshold
        ``"paper"`` or ``"reference"``, as in :func:`rpc_attention`.
    multiplier
        ``"paper"`` or ``"admm"``, as in :func:`rpc_attention`.
    symmetric
        Whether the cleaned keys serve as queries, as in the symmetric models of the
        paper; otherwise the queries of `qkv` are compared with the cleaned keys.
    query_steps
        Softmaxes that the queries enter if not `symmetric`: ``"last"``, or ``"every"``
        as in the asymmetric models of the paper.
    recompute
        Whether the backward pass computes the iterations again instead of storing
        them; then memory does not grow with `n_iter`.
    **options
        ``qkv_bias``, ``attn_drop`` (in the last softmax only), ``proj_drop``,
        ``is_causal``, ``device``, ``dtype`` as in :class:`SymmetricAttention`.

    Notes
    -----
    Parameter names and layouts are those of timm's attention, so that its state dicts
    load; the third of ``qkv`` that computes queries has no effect if `symmetric`.

    In training the layer measures every tenth call. A :class:`PursuitWarning` appears
    once per layer if 100 calls flagged nothing, or if the mean weight of a token on
    itself exceeds 0.99. Compiled calls are not measured; call :meth:`diagnostics`.

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
        multiplier: Multiplier = "paper",
        symmetric: bool = True,
        query_steps: QuerySteps = "last",
        recompute: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(d_model, n_heads, **options)
        self._settings = PursuitSettings.read(
            n_iter, sparsity, threshold, multiplier, query_steps
        )
        check_flag("symmetric", symmetric)
        check_flag("recompute", recompute)
        if symmetric and query_steps == "every":
            contract = "'last' for symmetric=True, which uses no queries"
            fail("query_steps", contract, query_steps)
        self.threshold = threshold
        self.symmetric = symmetric
        self.recompute = recompute
        # An infinite threshold flags nothing on purpose: no warning about that.
        self._monitor = PursuitMonitor(has_flagged=sparsity == math.inf)
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
            Overrides the setting of the layer.

        Returns
        -------
        mixed
            Of the shape of `x`.
        """
        heads = self._heads(x)
        visibility = self._visibility(heads[1], attn_mask, is_causal)
        # Measuring has side effects: never in compiled calls or in evaluation.
        if not self.training or torch.compiler.is_compiling():
            pursuit = self._pursue(heads, visibility)
        else:
            measure = self._monitor.wants()
            pursuit = self._pursue(heads, visibility, measure=measure)
            if pursuit.diagnostics is not None:
                self._monitor.add(pursuit.diagnostics, n_tokens=x.shape[1])
        return self._merge(pursuit.output)

    @torch.no_grad()
    def diagnostics(
        self,
        x: Tokens,
        attn_mask: Tensor | None = None,
        *,
        is_causal: bool | None = None,
    ) -> PursuitDiagnostics:
        """Return measurements of each iteration on these tokens, per head."""
        heads = self._heads(x)
        visibility = self._visibility(heads[1], attn_mask, is_causal)
        pursuit = self._pursue(heads, visibility, measure=True)
        assert pursuit.diagnostics is not None
        return pursuit.diagnostics

    def attention_weights(
        self,
        x: Tokens,
        attn_mask: Tensor | None = None,
        *,
        is_causal: bool | None = None,
    ) -> Float[Tensor, "batch heads tokens tokens"]:
        """Return the weights of the last softmax, without dropout."""
        heads = self._heads(x)
        visibility = self._visibility(heads[1], attn_mask, is_causal)
        cleaned = self._pursue(heads, visibility).cleaned
        queries = cleaned if self.symmetric else heads[0]
        weights = visibility.weights(queries, cleaned, scale=self.d_head**-0.5)
        return weights.to(cleaned.dtype)

    def extra_repr(self) -> str:
        """Describe the layer in ``print(model)``."""
        text = (
            f"{super().extra_repr()}, n_iter={self.n_iter}, sparsity={self.sparsity!r}"
            f", threshold={self.threshold!r}, symmetric={self.symmetric}"
        )
        for name, usual in (("multiplier", "paper"), ("query_steps", "last")):
            value = getattr(self._settings, name)
            text += "" if value == usual else f", {name}={value!r}"
        return text + (", recompute=True" if self.recompute else "")

    def _bind_forward(self) -> None:
        """Give the layer a `forward` for its `n_iter`; see :func:`specialized`."""
        forward = specialized(type(self).forward, self.n_iter)
        self.__dict__["forward"] = MethodType(forward, self)

    # The bound `forward` is made again after copying and unpickling.
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
        visibility: Visibility,
        *,
        measure: bool = False,
    ) -> PursuitResult:
        q, k, v = heads
        return pursue(
            k,
            v,
            None if self.symmetric else q,
            settings=self._settings,
            visibility=visibility,
            scale=self.d_head**-0.5,
            measure=measure,
            dropout=self._dropout,
            recompute=self.recompute,
        )


@cache
def specialized(function: Callable[..., Any], setting: int) -> Callable[..., Any]:
    """Return a copy of `function` with its own code object for `setting`.

    ``torch.compile`` caches compiled code by the code object of the outermost function.
    After eight versions it gives up and runs that function uncompiled. A pursuit is
    unrolled, so each number of iterations is a version, and all layers share one
    ``forward``. Copies keep compiled layers from falling back.

    Examples
    --------
    >>> def double(x): return 2 * x
    >>> specialized(double, 3)(5), specialized(double, 3) is specialized(double, 3)
    (10, True)
    """
    assert isinstance(function, FunctionType)
    copy = FunctionType(
        function.__code__.replace(co_name=f"{function.__name__}_{setting}"),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__doc__ = function.__doc__
    return copy
