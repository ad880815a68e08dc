"""Load Hugging Face models that were saved with swapped attention."""

from pathlib import Path
from typing import Any

from torch import nn

from eigenheads._checks import Got, fail
from eigenheads.adapters._family import AttentionLayer
from eigenheads.adapters._huggingface import MARKER, SWAPPED, register
from eigenheads.adapters._layers import find_attention_layers
from eigenheads.adapters._load import (
    check_all_loaded,
    check_config,
    check_files,
    check_size,
    read_pretrained,
)
from eigenheads.adapters._screen import ScreenVariant, install_screen
from eigenheads.adapters._swap import apply_variants
from eigenheads.adapters._variants import VARIANTS, AbstractVariant

_OWNER = "load_swapped"
# Options of `from_pretrained` that the configuration needs to be found.
_WHERE = (
    "cache_dir",
    "local_files_only",
    "revision",
    "subfolder",
    "token",
    "trust_remote_code",
)


def load_swapped(
    path: str | Path, *, model_class: Any = None, **options: Any
) -> nn.Module:
    """Load a Hugging Face model that was saved after :func:`swap_attention`.

    Weights, variants and their learned parameters are those that were saved.

    Parameters
    ----------
    path
        Folder that ``save_pretrained`` wrote, or the name of a repository.
    model_class
        Class to load; None loads the saved class. Automatic classes such as
        ``AutoModelForCausalLM`` are allowed.
    **options
        Forwarded to ``from_pretrained``. ``attn_implementation`` is the attention of
        layers that are not swapped; by default the saved one. ``trust_remote_code`` is
        False by default: code in the folder of the model is not run.

    Returns
    -------
    model
        In evaluation mode, as ``from_pretrained`` returns it.

    Notes
    -----
    A plain ``from_pretrained`` never loads the unswapped model silently: it raises an
    error for the unknown attention implementation
    ``eigenheads.adapters.load_swapped``; if that is registered in the process, the
    first call of the model raises an error. To load the unswapped model, name an
    implementation:
    ``from_pretrained(path, attn_implementation="sdpa")``.

    Examples
    --------
    >>> import tempfile
    >>> from transformers import ViTConfig, ViTModel
    >>> from eigenheads.adapters import attention_summary, swap_attention
    >>> config = ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
    ...                    intermediate_size=8, image_size=8, patch_size=4)
    >>> model = swap_attention(ViTModel(config), to="rpc", n_iter=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save_pretrained(folder)
    ...     loaded = load_swapped(folder)
    >>> attention_summary(loaded) == attention_summary(model)
    True
    """
    import transformers

    register()
    options = {"trust_remote_code": False, "weights_only": True, **options}
    where = {name: options[name] for name in _WHERE if name in options}
    named = {"name": "path", "owner": _OWNER}
    check_files(path, **named)
    config = read_pretrained(transformers.AutoConfig, path, **named, **where)
    marker = getattr(config, MARKER, None)
    if marker is None or config._attn_implementation != SWAPPED:
        got = Got(f"{str(path)!r} without `{MARKER}` in its configuration")
        hint = "Load it with `from_pretrained`."
        fail(
            "path", "a model saved with swapped attention", got, owner=_OWNER, hint=hint
        )
    if not _is_record(marker):
        got = Got(f"{str(path)!r}, whose `{MARKER}` is {marker!r}"[:200])
        fail("path", "a model saved with swapped attention", got, owner=_OWNER)
    # The plain configuration: the loader swaps by itself, from the marker.
    for name in (MARKER, "attn_implementation"):
        config.__dict__.pop(name, None)
    config._attn_implementation = marker["original"]
    check_config(config, path=path, **named)
    original = _concrete(model_class, config)
    loader = _swapping(original, marker["layers"])
    check_size(lambda: loader(config), path=path, **named)
    loaded: nn.Module
    options |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
    loaded, info = read_pretrained(loader, path, **named, config=config, **options)
    # A class of the caller's may add a head of its own to the model that was saved.
    inner = f"{original.base_model_prefix}."
    info = dict(info)
    if model_class is not None:
        info["missing_keys"] = [k for k in info["missing_keys"] if k.startswith(inner)]
    check_all_loaded(info, but="pooler.", name="path", path=path, owner=_OWNER)
    loaded.__class__ = original
    return loaded


def _is_record(marker: object) -> bool:
    """Return whether a marker in a configuration is what a swap has written."""
    return (
        isinstance(marker, dict)
        and isinstance(marker.get("original"), str | None)
        and isinstance(marker.get("layers"), dict)
        and all(
            isinstance(name, str)
            and isinstance(record, dict)
            and record.get("to") in (*VARIANTS, ScreenVariant.to)
            for name, record in marker["layers"].items()
        )
    )


def _concrete(model_class: Any, config: Any) -> Any:
    """Return the class of the model, looking through automatic classes."""
    import transformers

    if model_class is None:
        names = config.architectures
        name = names[0] if isinstance(names, list) and names else ""
        found = getattr(transformers, name, None) if isinstance(name, str) else None
        # The name comes from a file: it may be that of anything in the library.
        is_model = isinstance(found, type) and issubclass(found, nn.Module)
        if not is_model:
            contract = "given for a model that transformers does not know"
            fail("model_class", contract, name, owner=_OWNER)
        return found
    mapping = getattr(model_class, "_model_mapping", None)
    if mapping is None:
        return model_class
    if type(config) not in mapping:
        contract = f"a class for {type(config).__name__}"
        fail("model_class", contract, Got(model_class.__name__), owner=_OWNER)
    return mapping[type(config)]


def _swapping(original: Any, layers: dict[str, dict[str, Any]]) -> Any:
    """Return a subclass whose models are swapped before weights are loaded.

    So the learned parameters of the variants are loaded with the other weights.
    """

    def initialize(self: Any, config: Any, *inputs: Any, **options: Any) -> None:
        original.__init__(self, config, *inputs, **options)
        found = find_attention_layers(self, owner=_OWNER)
        wanted: dict[AttentionLayer, AbstractVariant | None] = {
            _find(found, name): _variant(record) for name, record in layers.items()
        }
        apply_variants(self, wanted)
        screened = {
            layer: variant
            for layer, variant in wanted.items()
            if isinstance(variant, ScreenVariant)
        }
        if screened:
            install_screen(self, screened, next(iter(screened.values())))

    parts = {"__init__": initialize, "__module__": original.__module__}
    return type(original.__name__, (original,), parts)


def _variant(record: dict[str, Any]) -> AbstractVariant:
    options = dict(record)
    for name in ("threshold", "shape"):  # JSON has no tuples
        if isinstance(options.get(name), list):
            options[name] = tuple(options[name])
    kinds: dict[str, type[AbstractVariant]] = {**VARIANTS}
    kinds[ScreenVariant.to] = ScreenVariant
    return kinds[options.pop("to")].read(options, owner=_OWNER)


def _find(found: list[AttentionLayer], name: str) -> AttentionLayer:
    """Return the layer of a saved name; prefixes differ between model classes."""
    fitting = [
        layer
        for layer in found
        if layer.name == name
        or layer.name.endswith(f".{name}")
        or name.endswith(f".{layer.name}")
    ]
    if len(fitting) != 1:
        listed = ", ".join(layer.name for layer in found)
        contract = f"a model with exactly one layer {name!r}"
        fail("model_class", contract, Got(f"one with {listed}"), owner=_OWNER)
    return fitting[0]
