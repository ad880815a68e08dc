"""Swap attention in Hugging Face models, through their attention interface.

A registered function gets the module that calls it, so one name serves all layers and
variants: what a module shall do is kept on the module.
"""

import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from torch import Tensor, nn

from eigenheads._checks import Got, fail
from eigenheads._extras import how_to_get
from eigenheads.adapters._sites import Site
from eigenheads.adapters._swap_heads import Asked
from eigenheads.adapters._swap_variants import (
    BEFORE,
    IMPLEMENTATION,
    SWAP,
    Scaled,
    Swap,
    Symmetric,
    Variant,
    answer,
    attach,
    detach,
)

try:
    from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel
    from transformers.masking_utils import AttentionMaskInterface, eager_mask
except ImportError as error:
    raise ImportError(
        "eigenheads.adapters: a Hugging Face model needs a newer `transformers`. "
        f"Run `{how_to_get('hf')}`."
    ) from error

MARKER: Final = "eigenheads_attention"  # in config.json: which layer has which variant
# What changes scores in ways that a pursuit does not know.
_UNKNOWN = ("softcap", "s_aux", "sinks", "cache", "block_mask")
_OWNER = "swapped attention"


@dataclass(frozen=True)
class Before:
    """The attention implementation that a module used before the swap."""

    implementation: str


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend for a module of a swapped model; the interface calls it."""
    before: Before | None = module.__dict__.get(BEFORE)
    if before is None:
        _fail_unrestored(owner=_OWNER, error=RuntimeError)
    if not hasattr(module, SWAP):
        arguments = (module, query, key, value, attention_mask)
        function = _function(module, before.implementation)
        return function(*arguments, scaling=scaling, dropout=dropout, **options)
    _refuse_unknown(module, key, options, n_queries=query.shape[-2])
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    bias = options.get("position_bias")
    if bias is not None:
        attention_mask = bias if attention_mask is None else attention_mask + bias
    if attention_mask is not None:  # a preallocated mask may be longer
        attention_mask = attention_mask[..., : key.shape[-2]]
    output, weights = answer(
        module,
        Asked(
            queries=query,
            keys=key,
            values=value,
            mask=attention_mask,
            # Otherwise the mask has it all, unless there is none and the model says so.
            is_causal=query.shape[-2] < key.shape[-2]
            or options.get("is_causal") is True,
            is_self=_is_self(module, query.shape[-2], key.shape[-2]),
            scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
            dropout=dropout if module.training else 0.0,
            wants_weights=bool(options.get("output_attentions")),
        ),
    )
    return output.transpose(1, 2).contiguous(), weights


# Without the eager mask a causal model would get no mask, and see the future.
AttentionInterface.register(IMPLEMENTATION, attend)
AttentionMaskInterface.register(IMPLEMENTATION, eager_mask)


def _fail_unrestored(*, owner: str, error: type[Exception] = ValueError) -> NoReturn:
    contract = "loaded with eigenheads.adapters.load_swapped"
    got = Got("one whose attention was swapped when it was saved, loaded as plain")
    fail("model", contract, got, owner=owner, error=error)


def _function(module: nn.Module, implementation: str) -> Callable[..., Any]:
    """Return what a layer that is not swapped uses: it has to take the eager mask."""
    if implementation == "eager":
        source: Any = sys.modules[type(module).__module__]
        return source.eager_attention_forward
    functions: Any = AttentionInterface
    return functions()["sdpa"]


def _is_self(module: nn.Module, n_queries: int, n_keys: int) -> bool:
    """Return whether the queries are of the last tokens that keys are given of.

    An encoder has more keys than queries only where keys were put before its own.
    """
    return n_queries == n_keys or bool(getattr(module, "is_causal", True))


def _refuse_unknown(
    module: nn.Module, key: Tensor, options: dict[str, Any], *, n_queries: int
) -> None:
    for name in _UNKNOWN:
        if options.get(name) is not None:
            contract = "None in a swapped layer"
            hint = "Leave this layer out with `layers`."
            fail(name, contract, options[name], owner=_OWNER, hint=hint)
    window, n_keys = options.get("sliding_window"), key.shape[-2]
    swap: Swap = getattr(module, SWAP)
    forgets = window is not None and n_queries < n_keys and n_keys >= window
    if forgets and not isinstance(swap.variant, Symmetric):
        contract = f"longer than the cached keys ({n_keys}) in a swapped layer"
        hint = "What was cut off had a part in cleaning the rest: use_cache=False."
        fail("sliding_window", contract, window, owner=_OWNER, hint=hint)


def check(site: Site, variant: Variant, *, owner: str) -> None:
    """Raise if this variant cannot be saved and loaded with its model."""
    if isinstance(variant, Scaled) and not any(
        p.is_floating_point() for p in site.module.parameters()
    ):
        contract = "with floating-point weights for to='scaled'"
        got = Got(f"{site.name} without")
        fail("model", contract, got, owner=owner)


def check_model(model: nn.Module, sites: list[Site], *, owner: str) -> None:
    """Raise unless the sites are in models that take an attention function."""
    for site in sites:
        inside = [top for path, top in tops(model) if _is_under(site.name, path)]
        if not inside:
            contract = "or contain a transformers.PreTrainedModel"
            got = Got(f"{site.name} ({type(site.module).__name__}) outside of one")
            fail("model", contract, got, owner=owner)
        implementation = inside[0].config._attn_implementation
        if implementation == IMPLEMENTATION and not hasattr(inside[0], BEFORE):
            _fail_unrestored(owner=owner)
        if not inside[0]._can_set_attn_implementation():
            contract = "a model that takes a function from the AttentionInterface"
            got = Got(f"{type(inside[0]).__name__}, which does not")
            fail("model", contract, got, owner=owner)


def tops(model: nn.Module) -> Iterator[tuple[str, PreTrainedModel]]:
    """Yield the outermost Hugging Face models in a model, with their paths."""
    found: list[str] = []
    for path, module in model.named_modules():
        inner = any(_is_under(path, outer) for outer in found)
        if isinstance(module, PreTrainedModel) and not inner:
            found.append(path)
            yield path, module


def _is_under(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")


def swap(site: Site, variant: Variant) -> None:
    """Give a module this variant; :func:`finish` makes the model ask for it."""
    config = site.module.config
    n_heads = getattr(config, "num_attention_heads", 1)
    attach(site.module, variant, int(n_heads))


def unswap(site: Site) -> None:
    """Take the variant from a module."""
    detach(site.module)


def finish(model: nn.Module) -> None:
    """Make each model use the swapped attention, or what it used before."""
    for _, top in tops(model):
        swaps = {
            path: getattr(module, SWAP).variant.record()
            for path, module in top.named_modules()
            if isinstance(getattr(module, SWAP, None), Swap)
            and hasattr(module, "config")
        }
        if swaps:
            _route(top)
            setattr(top.config, MARKER, {"original": _original(top), "layers": swaps})
        else:
            _unroute(top)


def _original(top: PreTrainedModel) -> str:
    before: Before = getattr(top, BEFORE)
    return before.implementation


def _route(top: PreTrainedModel) -> None:
    """Send the attention of all modules through :func:`attend`."""
    if hasattr(top, BEFORE):
        return
    # Twins are often built from one configuration object: they must not change, too.
    memo: dict[int, Any] = {}
    for module in top.modules():
        config = module.__dict__.get("config")
        if isinstance(config, PretrainedConfig):
            setattr(module, "config", copy.deepcopy(config, memo))  # noqa: B010 -- typed
            name = config._attn_implementation or "eager"
            setattr(module, BEFORE, Before(name))
    top.set_attn_implementation(IMPLEMENTATION)
    top.config.attn_implementation = IMPLEMENTATION  # this one is saved


def _unroute(top: PreTrainedModel) -> None:
    if not hasattr(top, BEFORE):
        return
    for module in top.modules():
        before = module.__dict__.get(BEFORE)
        if before is not None:
            config: Any = module.config
            config._attn_implementation_internal = before.implementation
            delattr(module, BEFORE)
    for name in (MARKER, "attn_implementation"):
        if name in top.config.__dict__:
            delattr(top.config, name)
