"""Models and texts from disk, for the command line; nothing is downloaded."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from torch import nn

from eigenheads._callables import call_source
from eigenheads._checks import Got, check_count, fail
from eigenheads._extras import require
from eigenheads.adapters._batch import longest_sequence

_OWNER = "probe"
_CONTRACT = "a folder with a Hugging Face model, or module:callable"


@dataclass(frozen=True)
class Loaded:
    """A model and what to feed it.

    Attributes
    ----------
    model, batch
        As :func:`capture_heads` takes them.
    about
        One line: what it is and how much of it.
    """

    model: nn.Module
    batch: Any
    about: str


def load_model(
    spec: str, *, data: Path | None = None, max_length: int | None = None
) -> Loaded:
    """Return the model that `spec` names, with a batch.

    Parameters
    ----------
    spec
        A folder with ``config.json``, weights and a tokenizer, as
        ``save_pretrained`` writes it; or ``module:callable``, where the callable takes
        nothing and returns ``(model, batch)``. The latter runs your own code.
    data
        Text file, one text a line, for a folder; by default 12 passages of ours,
        of about a hundred tokens: more than heads of most models have columns.
    max_length
        Tokens of a text beyond that are cut off; by default 128, or what the model
        takes.

    Notes
    -----
    Weights are read from safetensors, or by ``torch.load`` with ``weights_only``:
    never a pickle that could run code. Code that comes with a model is not run
    (``trust_remote_code`` stays off).
    """
    is_callable = ":" in spec
    if not is_callable and not Path(spec).is_dir():
        hint = "Models are read from disk only; download it first."
        got = Got(f"{spec!r}, which is no folder")
        fail("MODEL", _CONTRACT, got, owner=_OWNER, hint=hint)
    if not is_callable or Path(spec).is_dir():
        return _from_folder(Path(spec), data, max_length)
    for option, value in (("data", data), ("max_length", max_length)):
        if value is not None:
            hint = "The callable makes its own batch."
            contract = "left out for module:callable"
            fail(option, contract, str(value), owner=_OWNER, hint=hint)
    return _from_callable(spec)


def read_texts(path: Path | None) -> list[str]:
    """Return the texts of a file, one a line; ours if there is no path."""
    source: Any = files("eigenheads.adapters") / "texts.txt" if path is None else path
    try:
        content = source.read_text(encoding="utf-8")
    except OSError as error:
        got = Got(f"{str(path)!r} ({error.strerror or error})")
        fail("data", "a text file that can be read", got, owner=_OWNER)
    except UnicodeDecodeError:
        fail("data", "a text file in UTF-8", Got(repr(str(path))), owner=_OWNER)
    texts = [line.strip() for line in content.splitlines() if line.strip()]
    if not texts:
        got = Got(f"{str(path)!r}, which has none")
        fail("data", "a file with texts, one a line", got, owner=_OWNER)
    return texts


def parse_layers(text: str | None) -> list[int] | None:
    """Return layers written as ``0,3-5``.

    Examples
    --------
    >>> parse_layers("0,3-5")
    [0, 3, 4, 5]
    """
    if text is None:
        return None
    layers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            contract = "indices and ranges such as 0,3-5"
            fail("layers", contract, text, owner=_OWNER)
        stop = int(last) if dash else int(first)
        if stop > 10_000 or stop < int(first):
            fail("layers", "ranges from a layer to a later one", text, owner=_OWNER)
        layers += range(int(first), stop + 1)
    return sorted(set(layers))


def _from_callable(spec: str) -> Loaded:
    made = call_source(spec, name="MODEL", owner=_OWNER)
    if not (
        isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module)
    ):
        got = Got(f"{spec!r}, which returned {type(made).__name__}")
        contract = "a callable that returns (model, batch)"
        fail("MODEL", contract, got, owner=_OWNER)
    return Loaded(made[0], made[1], f"{spec}: {type(made[0]).__name__}")


def _from_folder(folder: Path, data: Path | None, max_length: int | None) -> Loaded:
    texts = read_texts(data)
    transformers = _transformers()
    if not (folder / "config.json").is_file():
        got = Got(f"{str(folder)!r}, which has no config.json")
        fail("MODEL", _CONTRACT, got, owner=_OWNER)
    with quiet(transformers):
        model, info = _read(
            transformers.AutoModel,
            folder,
            weights_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
        # Checkpoints of language models have no pooler, which no head looks at.
        check_all_loaded(info, but="pooler.", name="MODEL", path=folder, owner=_OWNER)
        if getattr(model, "main_input_name", "input_ids") != "input_ids":
            got = Got(f"{type(model).__name__}, which takes {model.main_input_name}")
            hint = "Use module:callable, which brings a batch."
            fail("MODEL", "a model of text", got, owner=_OWNER, hint=hint)
        tokenizer = _read(transformers.AutoTokenizer, folder)
        length = _length(model, max_length)
        batch, n_cut = _tokenize(tokenizer, texts, length)
    cut = f", {n_cut} cut at {length} tokens" if n_cut else ""
    name = "/".join(folder.resolve().parts[-2:])
    about = f"{name}: {type(model).__name__} on {len(texts)} texts{cut}"
    return Loaded(model, batch, about)


def _transformers() -> Any:
    return require("transformers", "Transformers", extra="hf", owner=_OWNER)


def _read(kind: Any, folder: Path, **options: Any) -> Any:
    try:
        return kind.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, **options
        )
    except UnpicklingError:
        got = Got(f"{str(folder)!r}, whose weights are a pickle of more than tensors")
        hint = "It could run code, so it is not read; ask for safetensors."
        fail("MODEL", _CONTRACT, got, owner=_OWNER, hint=hint)
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        what = (
            f"{str(folder)!r}: {kind.__name__} raised {type(error).__name__}: {first}"
        )
        hint = "A whole folder has config.json, weights (safetensors) and a tokenizer."
        fail("MODEL", _CONTRACT, Got(what[:300]), owner=_OWNER, hint=hint)


def check_all_loaded(
    info: Mapping[str, Any], *, but: str, name: str, path: Path | str, owner: str
) -> None:
    """Raise if tensors of a model were not in its files, or not of its shapes.

    Transformers fills them with random numbers. Names that begin with `but` may be
    missing.
    """
    lost = sorted(key for key in info["missing_keys"] if not key.startswith(but))
    if lost:
        got = Got(f"{str(path)!r}, which lacks {_some(lost)}")
        hint = "Random numbers would take their place."
        fail(
            name, "a folder with all weights of its model", got, owner=owner, hint=hint
        )
    wrong = sorted(str(key[0]) for key in info["mismatched_keys"])
    if wrong:
        got = Got(f"{str(path)!r}, where {_some(wrong)} differ")
        contract = "a folder with weights of the shapes in config.json"
        fail(name, contract, got, owner=owner)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more tensors" if len(names) > 3 else ""
    return ", ".join(f"`{name}`" for name in names[:3]) + more


def _length(model: nn.Module, wanted: int | None) -> int:
    longest = longest_sequence(model)
    if wanted is None:
        return min(128, longest or 128)
    wanted = check_count("max_length", wanted, owner=_OWNER, minimum=3)
    if longest is not None and wanted > longest:
        contract = f"at most {longest}, which is what the model takes"
        fail("max_length", contract, wanted, owner=_OWNER)
    return wanted


def _tokenize(
    tokenizer: Any, texts: Sequence[str], length: int
) -> tuple[dict[str, Any], int]:
    if tokenizer.pad_token is None:  # decoders have none; the mask hides it anyway
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
        fail("data", "texts of at least 3 tokens", got, owner=_OWNER)
    return dict(batch), sum(len(ids) > length for ids in whole)


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Keep the library's bars and remarks off the screen, inside this context."""
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
