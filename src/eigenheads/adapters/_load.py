"""Load Hugging Face models from disk, plain or swapped, and check what they hold."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final

import torch
from torch import nn

from eigenheads._checks import Got, check_count, check_flag, check_path, fail
from eigenheads._errors import UsageError, require
from eigenheads._files import check_regular, check_stored
from eigenheads.adapters._batch import longest_sequence
from eigenheads.adapters._family import AttentionLayer
from eigenheads.adapters._huggingface import MARKER, SWAPPED, register
from eigenheads.adapters._layers import find_attention_layers
from eigenheads.adapters._screen import ScreenVariant, install_screen
from eigenheads.adapters._swap import apply_variants
from eigenheads.adapters._variants import VARIANTS, AbstractVariant
from eigenheads.datasets import load_passages

_IMPLEMENTATIONS = (None, "eager", "sdpa", "flex_attention")
_MAX_LAYERS = 4096
# Largest file of texts that is read: 1 GiB.
_LARGEST_TEXT = 2**30
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
# Largest file that is not one of weights: 1 GiB, as a tokenizer's could be.
_LARGEST_OTHER = 2**30
# Numbers in buffers, which files of weights need not contain: 1 GiB of float32.
_MAX_BUFFERS = 2**28
# Options of `from_pretrained` that the configuration needs to be found.
_WHERE = (
    "cache_dir",
    "local_files_only",
    "revision",
    "subfolder",
    "token",
    "trust_remote_code",
)
MODEL_CONTRACT: Final = "a folder with a Hugging Face model"
# Name of a repository, with or without its owner.
_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
# Files of a model's repository that are read: never code.
_FILES = ("*.json", "*.safetensors", "*.txt", "*.model")


@dataclass(frozen=True)
class LoadedModel:
    """A model and a batch of input for it.

    Attributes
    ----------
    model, batch
        As :func:`capture_heads` takes them.
    about
        One line: the model's name and class, and the size of the batch.
    """

    model: nn.Module
    batch: Any
    about: str


def read_texts(path: Path | None) -> list[str]:
    """Return the texts of a file, one per line; None returns 12 passages."""
    if path is None:
        return load_passages()
    try:
        check_regular(path, _LARGEST_TEXT)
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        got = Got(f"{str(path)!r} ({error.strerror or error})")
        fail("data", "a text file that can be read", got)
    except UnicodeDecodeError:
        fail("data", "a text file in UTF-8", Got(repr(str(path))))
    except ValueError as error:
        fail("data", "a text file that can be read", Got(str(error)))
    texts = [line.strip() for line in content.splitlines() if line.strip()]
    if not texts:
        got = Got(f"{str(path)!r}, which has none")
        fail("data", "a file with one text per line", got)
    return texts


def load_model(
    source: str | PathLike[str],
    *,
    data: str | PathLike[str] | None = None,
    max_length: int | None = None,
    download: bool = False,
) -> LoadedModel:
    """Return a Hugging Face model of texts, with a batch for it.

    Parameters
    ----------
    source
        A folder with ``config.json``, weights and a tokenizer, as ``save_pretrained``
        writes it; or the name of a model in the local Hugging Face cache.
    data
        Text file with one text per line. None means 12 passages of about a hundred
        tokens, which is more than the heads of most models have columns.
    max_length
        Number of tokens at which texts are cut. None means 128, or the model's limit.
    download
        Whether a model that is not in the cache is downloaded by its name.

    Returns
    -------
    loaded
        With ``model``, ``batch`` and a line ``about`` it.

    Notes
    -----
    Weights are read from safetensors, or by ``torch.load`` with ``weights_only``:
    never from a pickle that could run code. Code that comes with a model is not run
    (``trust_remote_code`` stays off).

    Examples
    --------
    >>> load_model("no-such-folder")
    Traceback (most recent call last):
    ...
    eigenheads._errors.UsageValueError:
    load_model: `source` must be a folder with a Hugging Face model, or ...
    """
    check_path("source", source)
    check_flag("download", download)
    folder = Path(source)
    if folder.is_dir():
        name = "/".join(folder.resolve().parts[-2:])
        return _load_folder(folder, name, data, max_length)
    name = str(source)
    return _load_folder(_cached_folder(name, download), name, data, max_length)


def _cached_folder(name: str, download: bool) -> Path:
    """Return the folder of a model in the local cache of Hugging Face, by its name."""
    hub = require("huggingface_hub", "Hugging Face models", extra="hf")
    contract = f"{MODEL_CONTRACT}, or the name of one in the local cache"
    hint = "" if download else "--download (download=True) fetches it by its name."
    if not _NAME.fullmatch(name):
        fail("source", contract, Got(f"{name!r}, which is no folder"))
    try:
        return Path(
            hub.snapshot_download(
                name, local_files_only=not download, allow_patterns=list(_FILES)
            )
        )
    except Exception as error:  # of the network, of the cache, of the name
        first = (str(error).strip().splitlines() or [""])[0][:200]
        why = f": {first}" if download else ", which is neither"
        fail("source", contract, Got(f"{name!r}{why}"), hint=hint)


def _load_folder(
    folder: Path, name: str, data: Any, max_length: int | None
) -> LoadedModel:
    """Return the model of a folder, with a batch of texts."""
    texts = read_texts(None if data is None else Path(data))
    transformers = _transformers()
    if not (folder / "config.json").is_file():
        got = Got(f"{str(folder)!r}, which has no config.json")
        fail("source", MODEL_CONTRACT, got)
    check_files(folder, name="source")
    with quiet(transformers):
        config = _read(transformers.AutoConfig, folder)
        check_config(config, name="source", path=folder)
        check_size(
            lambda: transformers.AutoModel.from_config(config),
            name="source",
            path=folder,
        )
        model, info = _read(
            transformers.AutoModel,
            folder,
            config=config,
            # Never the one that the configuration names.
            attn_implementation="eager",
            weights_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
        # Checkpoints of language models have no pooler, which no head looks at.
        check_all_loaded(info, but="pooler.", name="source", path=folder)
        if getattr(model, "main_input_name", "input_ids") != "input_ids":
            got = Got(f"{type(model).__name__}, which takes {model.main_input_name}")
            hint = "Use module:callable, which brings a batch."
            fail("source", "a model of text", got, hint=hint)
        tokenizer = _read(transformers.AutoTokenizer, folder)
        length = _length(model, max_length)
        batch, n_cut = _tokenize(tokenizer, texts, length)
    cut = f", {n_cut} cut at {length} tokens" if n_cut else ""
    about = f"{name}: {type(model).__name__} on {len(texts)} texts{cut}"
    return LoadedModel(model, batch, about)


def _transformers() -> Any:
    return require("transformers", "Transformers", extra="hf")


def _read(kind: Any, folder: Path, **options: Any) -> Any:
    options |= {"local_files_only": True, "trust_remote_code": False}
    return read_pretrained(kind, folder, name="source", **options)


def read_pretrained(kind: Any, path: Path | str, *, name: str, **options: Any) -> Any:
    """Return what ``kind.from_pretrained`` reads; any error becomes one sentence."""
    try:
        return kind.from_pretrained(path, **options)
    except UsageError:
        raise
    except UnpicklingError:
        got = Got(f"{str(path)!r}, whose weights are a pickle of more than tensors")
        hint = "It could run code, so it is not read. Use safetensors."
        fail(name, MODEL_CONTRACT, got, hint=hint)
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        what = f"{str(path)!r}: {kind.__name__} raised {type(error).__name__}: {first}"
        hint = (
            "A complete folder has config.json, weights (safetensors) and a tokenizer."
        )
        fail(name, MODEL_CONTRACT, Got(what[:300]), hint=hint)


def check_files(path: Path | str, *, name: str) -> None:
    """Raise unless every file of a model's folder is a regular one of limited size.

    Reading a pipe would never end, and neither would a link to a device. A name that
    is no folder is that of a repository, whose files transformers fetches.
    """
    if not isinstance(path, str | Path):  # what it must be is said where it is read
        return
    try:
        folder = Path(path)
        for file in sorted(folder.iterdir()) if folder.is_dir() else ():
            if file.is_dir():
                continue
            is_weights = file.suffix in _WEIGHTS
            check_regular(file, math.inf if is_weights else _LARGEST_OTHER)
            if is_weights and file.suffix != ".safetensors":
                check_stored(file)
    except (OSError, ValueError) as error:
        fail(name, MODEL_CONTRACT, Got(str(error)[:300]))


def check_config(config: Any, *, name: str, path: Path | str) -> None:
    """Raise if a configuration requests code to run, or too many layers.

    Transformers downloads and runs attention kernels that `attn_implementation` names,
    and a configuration file may set it.
    """
    subs = [getattr(config, key, None) for key in getattr(config, "sub_configs", {})]
    for part in [config, *subs]:
        asked = getattr(part, "_attn_implementation", None)
        if asked not in _IMPLEMENTATIONS:
            got = Got(f"{str(path)!r}, whose config.json requests {asked!r}")
            contract = "a model with attention 'eager', 'sdpa' or 'flex_attention'"
            hint = "Remove `attn_implementation` from config.json."
            fail(name, contract, got, hint=hint)
    try:
        counts = dict(_layer_counts(config.to_dict()))
    except Exception:  # whatever a nonsensical configuration makes of itself
        got = Got(f"{str(path)!r}, whose config.json cannot be read")
        fail(name, MODEL_CONTRACT, got)
    for key, count in counts.items():
        if count > _MAX_LAYERS:
            got = Got(f"{str(path)!r}, whose config.json has {key} {count}")
            fail(name, f"a model of at most {_MAX_LAYERS} layers", got)


def _layer_counts(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _layer_counts(value)
        elif isinstance(value, int) and re.search(r"layers?$", str(key)):
            yield str(key), value


def check_size(make: Callable[[], nn.Module], *, name: str, path: Path | str) -> None:
    """Raise if a configuration describes a model far larger than its weights.

    The model is made without memory first. Tensors that the files lack would be
    allocated and filled with random numbers.
    """
    folder = Path(path)
    files_there = folder.iterdir() if folder.is_dir() else ()
    sizes = [file.stat().st_size for file in files_there if file.suffix in _WEIGHTS]
    if not sizes:  # a repository's name, or a folder that loading refuses
        return
    try:
        with torch.device("meta"):
            empty = make()
        n_numbers = sum(parameter.numel() for parameter in empty.parameters())
        n_buffers = sum(buffer.numel() for buffer in empty.buffers())
    except UsageError:
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        got = Got(f"{str(path)!r}: {type(error).__name__}: {first}"[:300])
        fail(name, "a folder with a model that can be built", got)
    # Two numbers share a byte where weights are quantised to four bits.
    most = 2 * sum(sizes)
    if n_numbers > most + 2**20 or n_buffers > most + _MAX_BUFFERS:
        n_all = n_numbers + n_buffers
        got = Got(f"{n_all} numbers in {sum(sizes)} bytes of {str(path)!r}")
        fail(name, "a model that is as large as its weights", got)


def check_all_loaded(
    info: Mapping[str, Any], *, but: str, name: str, path: Path | str
) -> None:
    """Raise if tensors of a model were not in its files, or not of its shapes.

    Transformers fills them with random numbers. Names that begin with `but` may be
    missing.
    """
    lost = sorted(key for key in info["missing_keys"] if not key.startswith(but))
    if lost:
        got = Got(f"{str(path)!r}, which lacks {_some(lost)}")
        hint = "They would be filled with random numbers."
        fail(name, "a folder with all weights of its model", got, hint=hint)
    wrong = sorted(str(key[0]) for key in info["mismatched_keys"])
    if wrong:
        got = Got(f"{str(path)!r}, where {_some(wrong)} differ")
        contract = "a folder with weights of the shapes in config.json"
        fail(name, contract, got)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more tensors" if len(names) > 3 else ""
    return ", ".join(f"`{name}`" for name in names[:3]) + more


def _length(model: nn.Module, max_length: int | None) -> int:
    longest = longest_sequence(model)
    if max_length is None:
        return min(128, longest or 128)
    max_length = check_count("max_length", max_length, minimum=3)
    if longest is not None and max_length > longest:
        contract = f"at most {longest}, the limit of the model"
        fail("max_length", contract, max_length)
    return max_length


def _tokenize(
    tokenizer: Any, texts: Sequence[str], length: int
) -> tuple[dict[str, Any], int]:
    if tokenizer.pad_token is None:  # decoders have none, and the mask hides padding
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    tokenizer.padding_side = "right"
    whole = tokenizer(list(texts), add_special_tokens=True)["input_ids"]
    batch = tokenizer(
        list(texts),
        padding=True,
        truncation=True,
        max_length=length,
        return_tensors="pt",
    )
    if int(batch["attention_mask"].sum(1).max()) < 3:
        got = Got("none")
        fail("data", "texts of at least 3 tokens", got)
    return dict(batch), sum(len(ids) > length for ids in whole)


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Turn off the library's progress bars and messages, inside this context."""
    logging = transformers.utils.logging
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


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
    check_files(path, name="path")
    config = read_pretrained(transformers.AutoConfig, path, name="path", **where)
    marker = getattr(config, MARKER, None)
    if marker is None or config._attn_implementation != SWAPPED:
        got = Got(f"{str(path)!r} without `{MARKER}` in its configuration")
        hint = "Load it with `from_pretrained`."
        fail("path", "a model saved with swapped attention", got, hint=hint)
    if not _is_record(marker):
        got = Got(f"{str(path)!r}, whose `{MARKER}` is {marker!r}"[:200])
        fail("path", "a model saved with swapped attention", got)
    # The plain configuration: the loader swaps by itself, from the marker.
    for name in (MARKER, "attn_implementation"):
        config.__dict__.pop(name, None)
    config._attn_implementation = marker["original"]
    check_config(config, path=path, name="path")
    original = _concrete(model_class, config)
    loader = _swapping(original, marker["layers"])
    check_size(lambda: loader(config), path=path, name="path")
    loaded: nn.Module
    options |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
    loaded, info = read_pretrained(loader, path, name="path", config=config, **options)
    # A class of the caller's may add a head of its own to the model that was saved.
    inner = f"{original.base_model_prefix}."
    info = dict(info)
    if model_class is not None:
        info["missing_keys"] = [k for k in info["missing_keys"] if k.startswith(inner)]
    check_all_loaded(info, but="pooler.", name="path", path=path)
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
        saved = getattr(transformers, name, None) if isinstance(name, str) else None
        # The name comes from a file: it may be that of anything in the library.
        is_model = isinstance(saved, type) and issubclass(saved, nn.Module)
        if not is_model:
            contract = "given for a model that transformers does not know"
            fail("model_class", contract, name)
        return saved
    mapping = getattr(model_class, "_model_mapping", None)
    if mapping is None:
        return model_class
    if type(config) not in mapping:
        contract = f"a class for {type(config).__name__}"
        fail("model_class", contract, Got(model_class.__name__))
    return mapping[type(config)]


def _swapping(original: Any, layers: dict[str, dict[str, Any]]) -> Any:
    """Return a subclass whose models are swapped before weights are loaded.

    So the learned parameters of the variants are loaded with the other weights.
    """

    def initialize(self: Any, config: Any, *inputs: Any, **options: Any) -> None:
        original.__init__(self, config, *inputs, **options)
        attention = find_attention_layers(self)
        variants: dict[AttentionLayer, AbstractVariant | None] = {
            _find(attention, name): _variant(record) for name, record in layers.items()
        }
        apply_variants(self, variants)
        screened = {
            layer: variant
            for layer, variant in variants.items()
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
    return kinds[options.pop("to")].read(options)


def _find(layers: list[AttentionLayer], name: str) -> AttentionLayer:
    """Return the layer of a saved name; prefixes differ between model classes."""
    fitting = [
        layer
        for layer in layers
        if layer.name == name
        or layer.name.endswith(f".{name}")
        or name.endswith(f".{layer.name}")
    ]
    if len(fitting) != 1:
        listed = ", ".join(layer.name for layer in layers)
        contract = f"a model with exactly one layer {name!r}"
        fail("model_class", contract, Got(f"one with {listed}"))
    return fitting[0]
