"""Kinds of attention that a trained layer can be given, and how a module holds one."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Final, Literal, Self, final

import torch
from torch import Tensor, nn

from eigenheads._checks import Got, check_choice, check_count, fail
from eigenheads.adapters._attention_call import (
    AttentionCall,
    visibility_of,
    with_key_rows,
)
from eigenheads.nn._layers import correction, scaled_heads
from eigenheads.nn._pursuit import (
    Multiplier,
    PursuitDiagnostics,
    PursuitMonitor,
    PursuitSettings,
    QuerySteps,
    Threshold,
    check_head_tensors,
    pursue,
)

SWAP: Final = "attention_swap"  # attribute of a swapped module
SCALING: Final = "attention_scaling"  # its parameter, if it learns one

Attended = tuple[Tensor, Tensor | None]  # outputs of the heads; weights if wanted


@dataclass(frozen=True, kw_only=True)
class AbstractVariant(ABC):
    """A kind of attention: subclasses hold its checked options and its formula."""

    to: ClassVar[str]

    @property
    def queries_used(self) -> Literal["own", "keys"]:
        """Queries of the last softmax: the model's own, or the keys."""
        return "own"

    @property
    def is_identity(self) -> bool:
        """True if a layer computes the original attention until it is trained."""
        return False

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> Self:
        """Return the variant with these options, or raise and list the known ones."""
        names = [entry.name for entry in fields(cls)]
        for name in options:
            if name not in names:
                listed = ", ".join(names) or "none"
                contract = f"an option of to={cls.to!r} ({listed})"
                fail(name, contract, options[name], error=TypeError)
        return cls(**options)

    def record(self) -> dict[str, Any]:
        """Return the options as plain data."""
        return {"to": self.to, **asdict(self)}

    def settings(self) -> str:
        """Return the options as text, without `queries`."""
        return ", ".join(
            f"{name}={value!r}"
            for name, value in asdict(self).items()
            if name != "queries" and value is not None
        )

    def scaling_shape(self, n_heads: int) -> tuple[int, ...] | None:
        """Return the shape of the parameter that the variant learns, or None."""
        return None

    @abstractmethod
    def attend(self, call: AttentionCall, module: nn.Module) -> Attended:
        """Return the heads' outputs, and the weights if the call requests them."""


@final
@dataclass(frozen=True, kw_only=True)
class PursuitVariant(AbstractVariant):
    """RPC-Attention: the keys are cleaned before the last softmax."""

    to: ClassVar[str] = "rpc"
    n_iter: int = 4
    sparsity: float | Literal["auto"] = 4.0
    threshold: Threshold = "paper"
    multiplier: Multiplier = "paper"
    queries: Literal["own", "keys"] = "own"
    query_steps: QuerySteps = "last"
    recompute: bool = False

    def __post_init__(self) -> None:
        """Check the options, once per swap."""
        check_choice("queries", self.queries, ("own", "keys"))
        if self.queries == "keys" and self.query_steps == "every":
            contract = "'last' for queries='keys', which drops the queries"
            fail("query_steps", contract, self.query_steps)
        _ = self._pursuit

    @property
    def queries_used(self) -> Literal["own", "keys"]:
        """Queries of the last softmax: the model's own, or the keys."""
        return self.queries

    @property
    def is_identity(self) -> bool:
        """True if the pursuit is one plain softmax."""
        is_plain = self.n_iter == 1 and self.sparsity == math.inf
        return is_plain and self.queries == "own"

    @cached_property
    def _pursuit(self) -> PursuitSettings:
        return PursuitSettings.read(
            self.n_iter,
            self.sparsity,
            self.threshold,
            self.multiplier,
            self.query_steps,
        )

    def attend(self, call: AttentionCall, module: nn.Module) -> Attended:
        """Return the heads' outputs, and the weights if the call requests them."""
        if self.queries == "keys":
            _refuse_cross(call, "rpc with queries='keys'")
        # The pursuit cleans the keys of all tokens, so it needs a mask row per key.
        call = with_key_rows(call)
        moving = call.queries if self.queries == "own" else None
        check_head_tensors(call.keys, call.values, moving)
        if self.query_steps == "every" and call.n_queries != call.n_keys:
            contract = "as many as the keys for query_steps='every'"
            got = Got(f"{call.n_queries} queries and {call.n_keys} keys")
            hint = "Queries of cached tokens are unknown; pass `use_cache=False`."
            fail("queries", contract, got, hint=hint)
        visibility, state = visibility_of(call), swap_state(module)
        pursuit = pursue(
            call.keys,
            call.values,
            moving,
            settings=self._pursuit,
            visibility=visibility,
            scale=call.scale,
            measure=state.measures(module.training),
            dropout=call.dropout,
            recompute=self.recompute,
        )
        if pursuit.diagnostics is not None:
            state.add(pursuit.diagnostics, call, module.training)
        # With cached keys only the last rows are needed.
        last = slice(-call.n_queries, None)
        weights = None
        if call.wants_weights:
            queries = (pursuit.cleaned if moving is None else moving)[..., last, :]
            weights = visibility.weights(queries, pursuit.cleaned, scale=call.scale)
            weights = weights.to(call.values.dtype)
        return pursuit.output[..., last, :], weights


@final
@dataclass(frozen=True, kw_only=True)
class SymmetricVariant(AbstractVariant):
    """Symmetric attention: the keys serve as queries."""

    to: ClassVar[str] = "symmetric"

    @property
    def queries_used(self) -> Literal["own", "keys"]:
        """Queries of the last softmax: the model's own, or the keys."""
        return "keys"

    def attend(self, call: AttentionCall, module: nn.Module) -> Attended:
        """Return the heads' outputs, and the weights if the call requests them."""
        _refuse_cross(call, "symmetric attention")
        call = with_key_rows(call)
        return plain_attention(
            replace(call, queries=call.keys[..., -call.n_queries :, :])
        )


@final
@dataclass(frozen=True, kw_only=True)
class ScaledVariant(AbstractVariant):
    """Scaled attention: values minus a learned multiple of their average."""

    to: ClassVar[str] = "scaled"
    kind: Literal["scalar", "matrix"] = "scalar"
    n_tokens: int | None = None

    def __post_init__(self) -> None:
        """Check the options, once per swap."""
        check_choice("kind", self.kind, ("scalar", "matrix"))
        if self.kind == "matrix":
            check_count("n_tokens", self.n_tokens)

    @property
    def is_identity(self) -> bool:
        """True: the learned multiple starts at zero."""
        return True

    def scaling_shape(self, n_heads: int) -> tuple[int, ...]:
        """Return the shape of the parameter that the variant learns."""
        if self.kind == "scalar":
            return ()
        assert self.n_tokens is not None
        return (n_heads, int(self.n_tokens), int(self.n_tokens))

    def attend(self, call: AttentionCall, module: nn.Module) -> Attended:
        """Return the heads' outputs, and the weights if the call requests them."""
        call = with_key_rows(call)
        visibility, scaling = visibility_of(call), getattr(module, SCALING)
        output = scaled_heads(
            call.queries,
            call.keys,
            call.values,
            scaling=scaling,
            visibility=visibility,
            scale=call.scale,
            dropout=call.dropout,
        )
        if not call.wants_weights:
            return output, None
        # Fused attention returns no weights: compute them explicitly where wanted.
        keys = visibility.hide(call.keys)
        weights = visibility.weights(call.queries, keys, scale=call.scale)
        S = correction(keys, scaling, visibility, call.scale)
        return output, (weights - weights @ S.to(weights)).to(output.dtype)


VARIANTS: Final[dict[str, type[AbstractVariant]]] = {
    kind.to: kind for kind in (PursuitVariant, SymmetricVariant, ScaledVariant)
}


def plain_attention(call: AttentionCall) -> Attended:
    """Return softmax attention, fused; the mask has one row per key."""
    visibility = visibility_of(call)
    keys, values = visibility.hide(call.keys), visibility.hide(call.values)
    output = visibility.attend(
        call.queries, keys, values, scale=call.scale, dropout=call.dropout
    )
    if not call.wants_weights:
        return output, None
    weights = visibility.weights(call.queries, keys, scale=call.scale)
    return output, weights.to(output.dtype)


def _refuse_cross(call: AttentionCall, what: str) -> None:
    if not call.is_self:
        contract = f"of the tokens of the keys for {what}"
        got = Got("queries of other tokens (cross-attention)")
        hint = "Leave this layer out with `layers`, or swap it to 'rpc'."
        fail("queries", contract, got, hint=hint)


@dataclass
class SwapState:
    """State of a swapped module: its variant, and measurements of its calls."""

    variant: AbstractVariant
    monitor: PursuitMonitor = field(default_factory=PursuitMonitor)
    is_watched: bool = False
    last: PursuitDiagnostics | None = None
    screen: Any = None  # the shared ScreenModule of a model with screened tokens

    def __post_init__(self) -> None:
        """Keep the monitor quiet where flagging nothing is intended."""
        if getattr(self.variant, "sparsity", None) == math.inf:
            self.monitor.has_flagged = True

    def measures(self, training: bool) -> bool:
        """Return whether to measure this call."""
        if torch.compiler.is_compiling():
            return False
        return (training and self.monitor.wants()) or self.is_watched

    def add(
        self, diagnostics: PursuitDiagnostics, call: AttentionCall, training: bool
    ) -> None:
        """Add a measured call; in training, warn if it shows a failure."""
        self.last = diagnostics
        if training:
            self.monitor.add(diagnostics, n_tokens=call.n_keys)


def swap_state(module: nn.Module) -> SwapState:
    """Return the state of a swapped module."""
    state: SwapState = getattr(module, SWAP)
    return state


def attend_swapped(module: nn.Module, call: AttentionCall) -> Attended:
    """Return the attention of a swapped module, by its variant."""
    dtype = call.values.dtype  # autocast may leave rotated queries and keys wider
    call = replace(call, queries=call.queries.to(dtype), keys=call.keys.to(dtype))
    return swap_state(module).variant.attend(call, module)


def attach(module: nn.Module, variant: AbstractVariant, n_heads: int) -> None:
    """Give a module a variant, and the parameter that the variant learns."""
    before: SwapState | None = getattr(module, SWAP, None)
    if before is not None and before.variant == variant:
        return  # keep its learned parameter
    detach(module)
    setattr(module, SWAP, SwapState(variant))
    shape = variant.scaling_shape(n_heads)
    if shape is not None:
        # The parameter takes dtype and device of the layer, and starts at zero.
        like = next(p for p in module.parameters() if p.is_floating_point())
        module.register_parameter(SCALING, nn.Parameter(like.new_zeros(shape)))


def detach(module: nn.Module) -> None:
    """Remove the variant and its parameter from a module."""
    for name in (SWAP, SCALING):
        if hasattr(module, name):
            delattr(module, name)


class SwappedModule:
    """Base of mixins that give a module another ``forward``.

    The class of a swapped module becomes a subclass of its original class. So the
    module stays the same object: parameters, hooks, optimizers and ``isinstance`` work
    as before, and restoring is exact.
    """

    original_class: type[nn.Module]
    mixin: type["SwappedModule"]

    def extra_repr(self) -> str:
        """Describe the layer in ``print(model)``."""
        variant = swap_state(self).variant  # type: ignore[arg-type]
        before = super().extra_repr()  # type: ignore[misc]
        what = f"attention={variant.to!r}, queries={variant.queries_used!r}"
        return ", ".join(text for text in (before, what, variant.settings()) if text)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # The class is made at run time, so pickle needs a function that makes it again.
        reduced: Any = super().__reduce_ex__(protocol)
        return (_new_swapped, (self.original_class, self.mixin), *reduced[2:])


_CLASSES: dict[tuple[Any, Any], Any] = {}


def swap_class(
    module: nn.Module,
    mixin: type[SwappedModule],
    variant: AbstractVariant,
    n_heads: int,
) -> None:
    """Give a module a variant and the ``forward`` of `mixin`."""
    attach(module, variant, n_heads)
    if not isinstance(module, SwappedModule):
        module.__class__ = _swapped_class(type(module), mixin)


def restore_class(module: Any) -> None:
    """Give a module its original class back, and remove the variant."""
    original = getattr(module, "original_class", None)
    if original is not None:
        module.__class__ = original
        detach(module)


def _swapped_class(original: Any, mixin: Any) -> Any:
    """Return the class with `mixin` before `original`; equal arguments, same class."""
    if (original, mixin) not in _CLASSES:
        name = f"Swapped{original.__name__}"
        parts = {"original_class": original, "mixin": mixin, "__doc__": mixin.__doc__}
        _CLASSES[original, mixin] = type(name, (mixin, original), parts)
    return _CLASSES[original, mixin]


def _new_swapped(original: Any, mixin: Any) -> Any:
    swapped = _swapped_class(original, mixin)
    return swapped.__new__(swapped)
