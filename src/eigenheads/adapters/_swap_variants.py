"""Kinds of attention that a trained layer can be given, with their options."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Final, Literal, Self

import torch
from torch import Tensor, nn

from eigenheads._checks import Got, check_choice, check_count, fail
from eigenheads.adapters._swap_heads import OWNER, Asked, by_token
from eigenheads.nn._diagnostics import Monitor, PursuitDiagnostics
from eigenheads.nn._masks import Visibility, read_masks
from eigenheads.nn._projections import softmax_weights
from eigenheads.nn._pursuit import Settings, Threshold, check_heads, pursue
from eigenheads.nn._scaled import correction, scaled_heads

SWAP: Final = "attention_swap"  # attribute of a swapped module
SCALING: Final = "attention_scaling"  # its parameter, if it learns one
# Hugging Face: name of the registered function. It is kept in config.json; where
# nothing of this name is registered, `from_pretrained` refuses to load and shows it,
# so it says what to call.
IMPLEMENTATION: Final = "eigenheads.adapters.load_swapped"
BEFORE: Final = "_attention_before_swap"  # attribute of every module with a config

Answer = tuple[Tensor, Tensor | None]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A kind of attention; subclasses are its options and its formula."""

    to: ClassVar[str]

    def __post_init__(self) -> None:
        """Check the options."""

    @property
    def queries_used(self) -> Literal["own", "keys"]:
        """Whether the last softmax asks with the model's queries or with the keys."""
        return "own"

    @classmethod
    def read(cls, options: Mapping[str, Any], *, owner: str) -> Self:
        """Return the variant with these options, or raise and name the known ones."""
        known = [entry.name for entry in fields(cls)]
        for name in options:
            if name not in known:
                listed = ", ".join(known) or "none"
                contract = f"an option of to={cls.to!r} ({listed})"
                fail(name, contract, options[name], owner=owner, error=TypeError)
        return cls(**options)

    def record(self) -> dict[str, Any]:
        """Return the options as plain data."""
        return {"to": self.to, **asdict(self)}

    def settings(self) -> str:
        """Return the options in words, without whose queries are used."""
        return ", ".join(
            f"{name}={value!r}"
            for name, value in asdict(self).items()
            if name != "queries" and value is not None
        )

    def scaling_shape(self, n_heads: int) -> tuple[int, ...] | None:
        """Return the shape of the parameter that it learns, or None."""
        return None

    def answer(self, asked: Asked, module: nn.Module) -> Answer:
        """Return the heads' outputs, and the weights if they are wanted."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Pursuit(Variant):
    """RPC-Attention: the keys are cleaned before the last softmax."""

    to: ClassVar[str] = "rpc"
    n_iter: int = 4
    sparsity: float | Literal["auto"] = 4.0
    threshold: Threshold = "paper"
    queries: Literal["own", "keys"] = "own"
    recompute: bool = False

    def __post_init__(self) -> None:
        """Check the options."""
        check_choice("queries", self.queries, ("own", "keys"), owner="swap_attention")
        self._settings(owner="swap_attention")

    @property
    def queries_used(self) -> Literal["own", "keys"]:
        """Whether the last softmax asks with the model's queries or with the keys."""
        return self.queries

    def _settings(self, *, owner: str) -> Settings:
        return Settings.read(self.n_iter, self.sparsity, self.threshold, owner=owner)

    def answer(self, asked: Asked, module: nn.Module) -> Answer:
        """Return the heads' outputs, and the weights if they are wanted."""
        if self.queries == "keys":
            _refuse_cross(asked, "rpc with queries='keys'")
        asked = by_token(asked)
        own = asked.queries if self.queries == "own" else None
        check_heads(asked.keys, asked.values, own, owner=OWNER)
        swap: Swap = getattr(module, SWAP)
        found = pursue(
            asked.keys,
            asked.values,
            settings=self._settings(owner=OWNER),
            queries=own,
            attn_mask=asked.mask,
            is_causal=asked.is_causal,
            scale=asked.scale,
            measure=swap.measures(module.training),
            dropout=asked.dropout,
            recompute=self.recompute,
            owner=OWNER,
        )
        if found.diagnostics is not None:
            swap.see(found.diagnostics, asked, module.training)
        asking = found.cleaned if own is None else own
        last = slice(-asked.n_queries, None)
        weights = None
        if asked.wants_weights:
            asking = asking[..., last, :]
            weights = softmax_weights(asking, found.cleaned, _who(asked), asked.scale)
        return found.output[..., last, :], weights


@dataclass(frozen=True, kw_only=True)
class Symmetric(Variant):
    """Symmetric attention: the keys are their own queries."""

    to: ClassVar[str] = "symmetric"

    @property
    def queries_used(self) -> Literal["own", "keys"]:
        """Whether the last softmax asks with the model's queries or with the keys."""
        return "keys"

    def answer(self, asked: Asked, module: nn.Module) -> Answer:
        """Return the heads' outputs, and the weights if they are wanted."""
        _refuse_cross(asked, "symmetric attention")
        asked = by_token(asked)
        asking = asked.keys[..., -asked.n_queries :, :]
        return plain_heads(replace(asked, queries=asking))


@dataclass(frozen=True, kw_only=True)
class Scaled(Variant):
    """Scaled attention: values minus a learned multiple of their average."""

    to: ClassVar[str] = "scaled"
    kind: Literal["scalar", "matrix"] = "scalar"
    n_tokens: int | None = None

    def __post_init__(self) -> None:
        """Check the options."""
        owner = "swap_attention"
        check_choice("kind", self.kind, ("scalar", "matrix"), owner=owner)
        if self.kind == "matrix":
            check_count("n_tokens", self.n_tokens, owner=owner)

    def scaling_shape(self, n_heads: int) -> tuple[int, ...]:
        """Return the shape of the parameter that it learns."""
        if self.kind == "scalar":
            return ()
        assert self.n_tokens is not None
        return (n_heads, int(self.n_tokens), int(self.n_tokens))

    def answer(self, asked: Asked, module: nn.Module) -> Answer:
        """Return the heads' outputs, and the weights if they are wanted."""
        asked = by_token(asked)
        visibility, scaling = _who(asked), getattr(module, SCALING)
        output = scaled_heads(
            asked.queries,
            asked.keys,
            asked.values,
            scaling=scaling,
            visibility=visibility,
            scale=asked.scale,
            dropout=asked.dropout,
            owner=OWNER,
        )
        if not asked.wants_weights:
            return output, None
        keys = visibility.hide(asked.keys)
        weights = softmax_weights(asked.queries, keys, visibility, asked.scale)
        S = correction(keys, scaling, visibility, asked.scale, owner=OWNER)
        return output, weights - weights @ S


VARIANTS: Final[dict[str, type[Variant]]] = {
    kind.to: kind for kind in (Pursuit, Symmetric, Scaled)
}


@dataclass
class Swap:
    """What a swapped module carries: its variant, and an eye on it."""

    variant: Variant
    monitor: Monitor = field(default_factory=Monitor)
    is_watched: bool = False
    last: PursuitDiagnostics | None = None

    def measures(self, training: bool) -> bool:
        """Return whether to measure this call."""
        if torch.compiler.is_compiling():
            return False
        return (training and self.monitor.wants()) or self.is_watched

    def see(self, found: PursuitDiagnostics, asked: Asked, training: bool) -> None:
        """Take in a measured call, and warn in training if that is due."""
        self.last = found
        if training:
            self.monitor.see(found, n_tokens=asked.n_keys)


def answer(module: nn.Module, asked: Asked) -> Answer:
    """Return what the variant of a swapped module makes of its heads."""
    swap: Swap = getattr(module, SWAP)
    dtype = asked.values.dtype  # autocast may leave rotated queries and keys wider
    queries, keys = asked.queries.to(dtype), asked.keys.to(dtype)
    return swap.variant.answer(replace(asked, queries=queries, keys=keys), module)


def plain_heads(asked: Asked) -> Answer:
    """Return softmax attention as it is; the mask has a row for each token."""
    visibility = _who(asked)
    keys, values = visibility.hide(asked.keys), visibility.hide(asked.values)
    output = visibility.attend(
        asked.queries, keys, values, scale=asked.scale, dropout=asked.dropout
    )
    if not asked.wants_weights:
        return output, None
    return output, softmax_weights(asked.queries, keys, visibility, asked.scale)


def attach(module: nn.Module, variant: Variant, n_heads: int) -> None:
    """Give a module a variant, and the parameter that the variant learns."""
    before: Swap | None = getattr(module, SWAP, None)
    if before is not None and before.variant == variant:
        return  # what it has learned stays
    detach(module)
    setattr(module, SWAP, Swap(variant))
    shape = variant.scaling_shape(n_heads)
    if shape is not None:
        like = next(p for p in module.parameters() if p.is_floating_point())
        module.register_parameter(SCALING, nn.Parameter(like.new_zeros(shape)))


def detach(module: nn.Module) -> None:
    """Take the variant and its parameter from a module."""
    for name in (SWAP, SCALING):
        if hasattr(module, name):
            delattr(module, name)


def _who(asked: Asked) -> Visibility:
    return read_masks(
        asked.mask,
        asked.is_causal,
        keys=asked.keys,
        n_queries=asked.n_queries,
        owner=OWNER,
    )


def _refuse_cross(asked: Asked, what: str) -> None:
    if not asked.is_self:
        contract = f"of the tokens of the keys for {what}"
        got = Got("queries of other tokens (cross-attention)")
        hint = "Leave this layer out with `layers`, or swap it to 'rpc'."
        fail("queries", contract, got, owner=OWNER, hint=hint)
