"""Hugging Face models whose attention goes through the attention interface.

Transformers looks up attention functions by name and passes the calling module to them.
So one registered function serves all layers: one for capture, which passes calls to the
recorder of the module, and one for swaps, which applies the variant of the module.
"""

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NoReturn, final

import torch
from torch import Tensor, nn

from eigenheads._checks import Got, fail
from eigenheads._errors import how_to_get
from eigenheads.adapters._attention_call import AttentionCall
from eigenheads.adapters._family import (
    AbstractFamily,
    AttentionLayer,
    Projection,
    Record,
    Wanted,
    first_tensor,
    hooked,
    linear_parts,
)
from eigenheads.adapters._variants import (
    SWAP,
    AbstractVariant,
    ScaledVariant,
    SwapState,
    SymmetricVariant,
    attach,
    attend_swapped,
    detach,
    swap_state,
)

CAPTURING: Final = "eigenheads_capture"  # name of the function that captures
# Name of the function of swapped models, saved in config.json. Where it is not
# registered, `from_pretrained` refuses and shows the name, which tells what to call.
SWAPPED: Final = "eigenheads.adapters.load_swapped"
MARKER: Final = "eigenheads_attention"  # in config.json: the variant of each layer
# Attribute of modules with a configuration: their implementation before the swap.
BEFORE: Final = "_attention_before_swap"

# Arguments of some models that change the softmax in ways we do not support.
_NOT_CAPTURED = ("softcap", "s_aux", "position_bias")
_NOT_SWAPPED = ("softcap", "s_aux", "sinks", "cache", "block_mask")

# Projections to queries, keys, values and back, by the names that models use.
_SEPARATE = (
    ("q_proj", "k_proj", "v_proj", "o_proj"),  # Llama, Mistral, Qwen, ViT
    ("q_proj", "k_proj", "v_proj", "out_proj"),  # CLIP, BART, OPT
    ("q_lin", "k_lin", "v_lin", "out_lin"),  # DistilBERT
    ("query", "key", "value", "dense"),  # ALBERT
    ("query", "key", "value", None),  # BERT, RoBERTa: the parent has the last
)
_FUSED = (
    ("c_attn", "c_proj"),  # GPT-2
    ("qkv_proj", "o_proj"),  # Phi-3
    ("query_key_value", "dense"),  # GPT-NeoX
)
_CROSS_NAMES = ("crossattention", "cross_attn", "encoder_attn", "cross_attention")

# Recorders and inputs of the modules that are being captured.
_RECORDS: dict[nn.Module, Record] = {}
_TOKENS: dict[nn.Module, Tensor] = {}


@final
class HuggingFaceFamily(AbstractFamily):
    """Models of Transformers that use its attention interface."""

    name = "huggingface"
    checks_values = True

    def find(
        self, module: nn.Module, parent: nn.Module | None, name: str
    ) -> nn.Module | None:
        """Return the output projection if this is self-attention of such a model."""
        if not hasattr(getattr(module, "config", None), "_attn_implementation"):
            return None
        if _is_cross(module, name):
            return None
        for *inputs, output in (*_SEPARATE, *_FUSED):
            if all(_has_weight(module, key) for key in inputs):
                holder = module if output else getattr(parent, "output", None)
                dense = getattr(holder, output or "dense", None)
                if isinstance(dense, nn.Module):
                    return dense
        return None

    @contextmanager
    def prepare_capture(self, model: nn.Module) -> Iterator[None]:
        """Let the model attend through the capturing function."""
        configs = _configs(model)
        if not configs:
            yield
            return
        register()
        before = [config._attn_implementation_internal for config in configs]
        if any(str(name).startswith("eigenheads") for name in before):
            got = Got("a model whose attention was swapped")
            hint = "Capture it before the swap, or undo the swap."
            fail("model", "plain softmax attention", got, hint=hint)
        try:
            for config in configs:
                config._attn_implementation_internal = CAPTURING
            yield
        finally:
            for config, name in zip(configs, before, strict=True):
                config._attn_implementation_internal = name

    @contextmanager
    def capture(self, layer: AttentionLayer, record: Record) -> Iterator[None]:
        """Pass each call of the layer to `record`."""

        def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            _TOKENS[module] = first_tensor(args, kwargs)

        def checked(call: AttentionCall) -> None:
            if call.n_queries != call.n_keys:
                got = Got("a layer whose keys are not its own tokens")
                hint = "Leave it out with `layers`."
                fail("model", "made of self-attention", got, hint=hint)
            record(call)

        _RECORDS[layer.module] = checked
        try:
            with hooked(layer.module, before):
                yield
        finally:
            _RECORDS.pop(layer.module, None)
            _TOKENS.pop(layer.module, None)

    def projections(self, module: Any, n_heads: int, n_groups: int) -> list[Projection]:
        """Return the projections to queries, keys and values."""
        for *names, _ in _SEPARATE:
            if all(_has_weight(module, name) for name in names):
                return [linear_parts(getattr(module, str(name))) for name in names]
        name = next(name for name, _ in _FUSED if _has_weight(module, name))
        matrix, bias = linear_parts(getattr(module, name))
        parts = [part for part in (matrix, bias) if part is not None]
        if name == "query_key_value":  # queries, keys and values alternate by head
            cut = [
                [
                    x.flatten(0, 1)
                    for x in part.reshape(n_heads, 3, -1, *part.shape[1:]).unbind(1)
                ]
                for part in parts
            ]
        else:
            # Queries, then keys, then values; the latter two have one block per group.
            width = len(matrix) // (n_heads + 2 * n_groups)
            sizes = [n_heads * width, n_groups * width, n_groups * width]
            cut = [list(torch.split(part, sizes)) for part in parts]
        biases: list[Any] = cut[1] if bias is not None else [None] * 3
        return list(zip(cut[0], biases, strict=True))

    def check_swap(self, model: nn.Module, swaps: Wanted) -> None:
        """Raise unless the layers are in models that can be swapped and saved."""
        for layer, variant in swaps.items():
            if isinstance(variant, ScaledVariant) and not any(
                p.is_floating_point() for p in layer.module.parameters()
            ):
                contract = "with floating-point weights for to='scaled'"
                got = Got(f"{layer.name} without")
                fail("model", contract, got)
        register()
        for layer in swaps:
            _check_model_of(layer, model)

    def swap(self, layer: AttentionLayer, variant: AbstractVariant) -> None:
        """Give the module this variant; :meth:`finish_swap` routes the model to it."""
        n_heads = getattr(layer.module.config, "num_attention_heads", 1)
        attach(layer.module, variant, int(n_heads))

    def restore(self, layer: AttentionLayer) -> None:
        """Remove the variant from the module."""
        detach(layer.module)

    def finish_swap(self, model: nn.Module) -> None:
        """Route each model to the swapped attention, or back to its own."""
        for _, top in _pretrained_models(model):
            swaps = {
                path: swap_state(module).variant.record()
                for path, module in top.named_modules()
                if isinstance(getattr(module, SWAP, None), SwapState)
                and hasattr(module, "config")
            }
            if swaps:
                _route(top)
                marker = {"original": getattr(top, BEFORE).name, "layers": swaps}
                setattr(top.config, MARKER, marker)
            else:
                _unroute(top)


@dataclass(frozen=True)
class PreviousImplementation:
    """Name of the attention implementation that a module used before the swap."""

    name: str

    def __reduce__(self) -> tuple[Any, ...]:
        return (_unpickle_previous, (self.name,))


def _unpickle_previous(name: str) -> PreviousImplementation:
    """Register our functions as well: an unpickled model needs them."""
    register()
    return PreviousImplementation(name)


def is_unrestored(module: nn.Module) -> bool:
    """Return whether a module was saved swapped, and loaded without `load_swapped`."""
    config = getattr(module, "config", None)
    name = getattr(config, "_attn_implementation", None)
    return name == SWAPPED and not hasattr(module, BEFORE)


@cache
def _transformers() -> Any:
    """Import Transformers when a model needs it: that takes seconds."""
    try:
        import transformers
        import transformers.masking_utils
    except ImportError as error:
        raise ImportError(
            "eigenheads.adapters: a Hugging Face model needs a newer `transformers`. "
            f"Run `{how_to_get('hf')}`."
        ) from error
    return transformers


def register() -> None:
    """Register our attention functions with Transformers."""
    library = _transformers()
    masks = library.masking_utils
    for name, function in ((CAPTURING, _attend_captured), (SWAPPED, _attend_swapped)):
        library.AttentionInterface.register(name, function)
        # Without a mask function a decoder would get no mask, and see the future.
        masks.AttentionMaskInterface.register(name, masks.eager_mask)


def _attend_captured(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend as ``eager`` does, and record the call."""
    for name in _NOT_CAPTURED:
        if options.get(name) is not None:
            got = Got(f"{type(module).__name__} with `{name}`")
            fail("model", "plain softmax attention", got)
    if module not in _RECORDS:
        function = _own_function(module, "sdpa")
        arguments = (module, query, key, value, attention_mask)
        return function(*arguments, scaling=scaling, **options)
    mask = None if attention_mask is None else attention_mask[..., : key.shape[-2]]
    call = AttentionCall(
        queries=query,
        keys=key,
        values=value,
        mask=mask,
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        tokens=_TOKENS.get(module, query),
    )
    _RECORDS[module](call)
    weights, outputs = call.attended
    return outputs.transpose(1, 2).contiguous(), weights


def _attend_swapped(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend by the variant of the module, or by its own implementation."""
    before: PreviousImplementation | None = module.__dict__.get(BEFORE)
    if before is None:
        _fail_unrestored(error=RuntimeError)
    if not hasattr(module, SWAP):
        arguments = (module, query, key, value, attention_mask)
        function = _own_function(module, before.name)
        return function(*arguments, scaling=scaling, dropout=dropout, **options)
    n_queries, n_keys = query.shape[-2], key.shape[-2]
    _refuse_unsupported(module, options, n_queries=n_queries, n_keys=n_keys)
    bias = options.get("position_bias")
    if bias is not None:
        attention_mask = bias if attention_mask is None else attention_mask + bias
    if attention_mask is not None:  # a preallocated mask may be longer
        attention_mask = attention_mask[..., :n_keys]
    call = AttentionCall(
        queries=query,
        keys=key,
        values=value,
        mask=attention_mask,
        # With as many queries as keys the mask includes causality, if there is a mask.
        is_causal=n_queries < n_keys or options.get("is_causal") is True,
        # Encoders have more keys than queries only where keys were prepended.
        is_self=n_queries == n_keys or bool(getattr(module, "is_causal", True)),
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        dropout=dropout if module.training else 0.0,
        wants_weights=bool(options.get("output_attentions")),
    )
    output, weights = attend_swapped(module, call.with_repeated_keys())
    return output.transpose(1, 2).contiguous(), weights


def _own_function(module: nn.Module, implementation: str) -> Callable[..., Any]:
    """Return the attention of a layer that is not swapped: it takes the eager mask."""
    if implementation == "eager":
        source: Any = sys.modules[type(module).__module__]
        return source.eager_attention_forward
    return _transformers().AttentionInterface()["sdpa"]


def _refuse_unsupported(
    module: nn.Module, options: dict[str, Any], *, n_queries: int, n_keys: int
) -> None:
    for name in _NOT_SWAPPED:
        if options.get(name) is not None:
            contract = "None in a swapped layer"
            hint = "Leave this layer out with `layers`."
            fail(name, contract, options[name], hint=hint)
    window = options.get("sliding_window")
    forgets = window is not None and n_queries < n_keys and n_keys >= window
    if forgets and not isinstance(swap_state(module).variant, SymmetricVariant):
        contract = f"longer than the cached keys ({n_keys}) in a swapped layer"
        hint = "Pass `use_cache=False`: dropped keys took part in the cleaning."
        fail("sliding_window", contract, window, hint=hint)


def _check_model_of(layer: AttentionLayer, model: nn.Module) -> None:
    """Raise unless the layer is in a model that takes an attention function."""
    inside = [
        top for path, top in _pretrained_models(model) if _is_under(layer.name, path)
    ]
    if not inside:
        contract = "or contain a transformers.PreTrainedModel"
        got = Got(f"{layer.name} ({type(layer.module).__name__}) outside of one")
        fail("model", contract, got)
    (top, *_) = inside
    if is_unrestored(top):
        _fail_unrestored()
    if not top._can_set_attn_implementation():
        contract = "a model that takes a function from the AttentionInterface"
        got = Got(f"{type(top).__name__}, which does not")
        fail("model", contract, got)


def _pretrained_models(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the outermost Hugging Face models in a model, with their paths."""
    kind = _transformers().PreTrainedModel
    outermost: list[str] = []
    for path, module in model.named_modules():
        is_inner = any(_is_under(path, outer) for outer in outermost)
        if isinstance(module, kind) and not is_inner:
            outermost.append(path)
            yield path, module


def _is_under(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")


def _route(top: Any) -> None:
    """Send the attention of all modules through the swapped function."""
    if hasattr(top, BEFORE):
        return
    # Models are often built from one configuration object: others must not change.
    # One memo for all modules: those that shared a configuration share its copy.
    memo: dict[int, Any] = {}
    kind = _transformers().PretrainedConfig
    for module in top.modules():
        config = module.__dict__.get("config")
        if isinstance(config, kind):
            module.config = copy.deepcopy(config, memo)
            name = config._attn_implementation or "eager"
            setattr(module, BEFORE, PreviousImplementation(name))
    top.set_attn_implementation(SWAPPED)
    top.config.attn_implementation = SWAPPED  # this one is saved


def _unroute(top: Any) -> None:
    if not hasattr(top, BEFORE):
        return
    for module in top.modules():
        before = module.__dict__.get(BEFORE)
        if before is not None:
            module.config._attn_implementation_internal = before.name
            delattr(module, BEFORE)
    for name in (MARKER, "attn_implementation"):
        if name in top.config.__dict__:
            delattr(top.config, name)


def _fail_unrestored(*, error: type[Exception] = ValueError) -> NoReturn:
    contract = "loaded with eigenheads.adapters.load_swapped"
    got = Got("one whose attention was swapped when it was saved, loaded as plain")
    fail("model", contract, got, error=error)


def _configs(model: nn.Module) -> list[Any]:
    """Return the distinct configurations that choose an attention function."""
    configs = {
        id(module.config): module.config
        for module in model.modules()
        if hasattr(getattr(module, "config", None), "_attn_implementation_internal")
    }
    return list(configs.values())


def _is_cross(module: nn.Module, name: str) -> bool:
    return (
        name in _CROSS_NAMES
        or bool(getattr(module, "is_cross_attention", False))
        or "crossattention" in type(module).__name__.lower()
    )


def _has_weight(module: nn.Module, key: str | None) -> bool:
    projection = getattr(module, key, None) if key else None
    return getattr(getattr(projection, "weight", None), "ndim", 0) == 2
