"""Attention layers that a recipe can build a model with."""

import math
import re
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from torch import Tensor

from eigenheads.extend import check_choice, check_count, check_positive, fail
from eigenheads.extend.models import AbstractAttention
from eigenheads.nn import RPCAttention, ScaledAttention, SymmetricAttention

VARIANTS: Final = ("softmax", "symmetric", "rpc", "scaled-scalar", "scaled-matrix")
_OWNER: Final = "train"


class SoftmaxAttention(AbstractAttention):
    """Multi-head softmax self-attention with timm's parameter names."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """Mix tokens; of a mask, ``True`` lets a token see a key."""
        queries, keys, values = self._heads(x)
        visibility = self._visibility(keys, attn_mask, None)
        scale = self.d_head**-0.5
        mixed = visibility.attend(
            queries, keys, values, scale=scale, dropout=self._dropout
        )
        return self._merge(mixed)


@dataclass(frozen=True, kw_only=True)
class AttentionChoice:
    """Attention of every layer of a model.

    Attributes
    ----------
    variant
        One of ``softmax``, ``symmetric``, ``rpc``, ``scaled-scalar``,
        ``scaled-matrix``.
    layers
        Layers that get the variant: ``first``, ``all``, or the number of leading
        layers. The default is the paper's: for ``rpc`` the first layer of an image
        model and the first four of a language model; for the others all layers.
    rest
        Attention of the remaining layers: ``symmetric`` or ``softmax``.
    n_iter, sparsity, threshold, multiplier
        Options of ``rpc``, as in :class:`~eigenheads.nn.RPCAttention`. The default
        threshold is that of the authors' program, which made the printed numbers. With
        an infinite `sparsity` nothing is flagged.
    query_steps
        Softmaxes of ``rpc`` that queries enter: ``none`` (the cleaned keys serve as
        queries, as in the paper's symmetric models), ``last`` or ``every`` (its
        asymmetric models).
    """

    variant: str = "softmax"
    layers: str | None = None
    rest: str = "symmetric"
    n_iter: int = 4
    sparsity: float = 4.0
    threshold: str = "reference"
    multiplier: str = "paper"
    query_steps: str = "none"

    def __post_init__(self) -> None:
        """Check the options."""
        check_choice("variant", self.variant, VARIANTS, owner=_OWNER)
        check_choice("rest", self.rest, ("symmetric", "softmax"), owner=_OWNER)
        check_choice("threshold", self.threshold, ("paper", "reference"), owner=_OWNER)
        check_choice("multiplier", self.multiplier, ("paper", "admm"), owner=_OWNER)
        steps = ("none", "last", "every")
        check_choice("query_steps", self.query_steps, steps, owner=_OWNER)
        check_count("n_iter", self.n_iter, owner=_OWNER)
        is_endless = isinstance(self.sparsity, float) and self.sparsity == math.inf
        if not is_endless:  # with infinity nothing is flagged
            check_positive("sparsity", self.sparsity, owner=_OWNER)
        layers = self.layers
        if layers is None:
            return
        number = "0*[1-9][0-9]{0,8}"
        if not isinstance(layers, str) or not re.fullmatch(
            f"first|all|{number}", layers
        ):
            contract = "'first', 'all' or a number of layers"
            fail("layers", contract, layers, owner=_OWNER)

    @classmethod
    def read(cls, record: dict[str, Any]) -> Self:
        """Return the choice that :meth:`record` described."""
        return cls(**record)

    def record(self) -> dict[str, Any]:
        """Return the options as plain data."""
        return asdict(self)

    def n_leading(self, depth: int, default: int) -> int:
        """Return how many leading layers get the variant.

        `default` is the number of leading ``rpc`` layers of this kind of model.
        """
        if self.layers is None:
            return min(default, depth) if self.variant == "rpc" else depth
        if self.layers == "all":
            return depth
        return 1 if self.layers == "first" else min(int(self.layers), depth)

    def label(self, depth: int, default: int) -> str:
        """Return a short name of the attention of a whole model.

        Models with equal labels differ in nothing but their seeds and sizes.
        """
        if self.variant != "rpc":
            n_leading = self.n_leading(depth, default)
            where = "" if n_leading == depth else f", {n_leading} of {depth} layers"
            return self.variant + where
        n_leading = self.n_leading(depth, default)
        where = "all layers" if n_leading == depth else f"{n_leading} of {depth} layers"
        parts = [f"rpc n={self.n_iter}", where]
        # Only options that differ from the defaults are named.
        for name in ("sparsity", "threshold", "multiplier", "query_steps", "rest"):
            value = getattr(self, name)
            if value != getattr(type(self), name):
                shown = f"{value:g}" if isinstance(value, float) else value
                parts.append(f"{name} {shown}")
        return ", ".join(parts)

    def kinds(self, depth: int, default: int) -> list[str]:
        """Return the kind of attention of every layer."""
        n_leading = self.n_leading(depth, default)
        return [self.variant] * n_leading + [self.rest] * (depth - n_leading)

    def build(
        self, kind: str, d_model: int, n_heads: int, *, n_tokens: int, **options: Any
    ) -> AbstractAttention:
        """Return one attention layer."""
        if kind == "rpc":
            return RPCAttention(
                d_model,
                n_heads,
                n_iter=self.n_iter,
                sparsity=self.sparsity,
                threshold=self.threshold,  # type: ignore[arg-type]
                multiplier=self.multiplier,  # type: ignore[arg-type]
                symmetric=self.query_steps == "none",
                query_steps="every" if self.query_steps == "every" else "last",
                **options,
            )
        if kind == "symmetric":
            return SymmetricAttention(d_model, n_heads, **options)
        if kind == "scaled-scalar":
            return ScaledAttention(d_model, n_heads, kind="scalar", **options)
        if kind == "scaled-matrix":
            return ScaledAttention(
                d_model, n_heads, kind="matrix", n_tokens=n_tokens, **options
            )
        return SoftmaxAttention(d_model, n_heads, **options)
