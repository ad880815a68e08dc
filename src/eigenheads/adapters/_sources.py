"""Sources of captured heads: a model on a batch or texts, arrays, activation caches."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from eigenheads._checks import (
    Got,
    as_numpy,
    check_callable,
    check_count,
    check_flag,
    check_items,
    check_positive,
    fail,
)
from eigenheads._errors import require
from eigenheads.adapters._batch import longest_sequence
from eigenheads.adapters._capture import CapturedLayer, PreparedModel
from eigenheads.adapters._load import read_pretrained

_MAX_BYTES = 2**30
_MAX_TOKENS = 128
_REQUIRED = ("queries", "keys", "values")
_OPTIONAL = ("outputs", "tokens", "bias", "w_query", "w_key", "w_value", "w_output")
# Names of activations in caches of TransformerLens, versions 2 to 4.
_BLOCK = re.compile(r"blocks\.(\d+)\.attn\.hook_q")
# Our names of a head's matrices, and theirs.
_MATRICES_OF_CACHE = {
    "w_query": "W_Q",
    "w_key": "W_K",
    "w_value": "W_V",
    "w_output": "W_O",
}

# Weights below that are not compared: half precision keeps few of their digits.
_TINY = 1e-3
# Logarithms of weights agree to this share of the scores, in half precision too.
_AGREEMENT = 0.05


class Capture:
    """Captured layers of a model on a batch, to be used several times.

    Iteration yields one :class:`CapturedLayer` per layer, in order. The layers are kept
    in memory if all of them fit into `max_bytes`; otherwise the model runs again on
    each iteration.

    Parameters
    ----------
    model, batch, layers, batch_size, max_bytes, with_weights
        As in :func:`capture_heads`.
    texts
        Texts instead of a batch, for Hugging Face models.
    tokenizer
        Tokenizer for `texts`; None reads the one in the folder that the model was
        loaded from.

    Attributes
    ----------
    model
        The model, or None for captures from arrays.
    layers
        Index of each captured layer in the model.
    token_ids
        Vocabulary index per token, (sequences, tokens), or None if unknown.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> capture = Capture(layer, torch.randn(3, 5, 8))
    >>> capture.layers, [one.weights.shape for one in capture]
    ([0], [(3, 2, 5, 5)])
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Any = None,
        *,
        texts: Sequence[str] | None = None,
        tokenizer: Any = None,
        layers: Sequence[int] | int | None = None,
        batch_size: int | None = 8,
        max_bytes: int = _MAX_BYTES,
        with_weights: bool = True,
    ) -> None:
        if (batch is None) == (texts is None):
            contract = "given, or `texts`, but not both"
            fail("batch", contract, batch)
        if texts is not None:
            batch = tokenize_texts(model, texts, tokenizer)
        elif tokenizer is not None:
            fail("tokenizer", "left out without `texts`", tokenizer)
        prepared = PreparedModel.read(
            model, batch, layers, batch_size, max_bytes, with_weights
        )
        self._set(prepared, [], _token_ids(batch))

    def _set(
        self,
        prepared: PreparedModel | None,
        in_memory: list[CapturedLayer],
        token_ids: NDArray[Any] | None,
    ) -> "Capture":
        """Set the attributes: of a model that is to run, or of layers in memory."""
        self.model: nn.Module | None = None if prepared is None else prepared.model
        self.layers = (
            [captured.layer for captured in in_memory]
            if prepared is None
            else [layer.index for layer in prepared.layers]
        )
        self.token_ids = token_ids
        self._prepared, self._in_memory = prepared, in_memory
        return self

    @classmethod
    def of_arrays(
        cls,
        layers: Mapping[str, Any] | Iterable[Mapping[str, Any]],
        *,
        token_ids: Any = None,
    ) -> "Capture":
        """Return a capture of given arrays, one mapping per layer.

        Parameters
        ----------
        layers
            Mappings with ``queries``, ``keys``, ``values`` of shape (sequences, heads,
            tokens, width) and, where known, ``outputs``, ``tokens``, ``mask``,
            ``bias``, ``is_causal``, ``scale``, ``w_query``, ``w_key``, ``w_value``,
            ``w_output`` (see :class:`CapturedLayer`).
        token_ids
            (sequences, tokens).

        Examples
        --------
        >>> import numpy as np
        >>> q = np.ones((1, 2, 4, 3))
        >>> Capture.of_arrays({"queries": q, "keys": q, "values": q}).layers
        [0]
        """
        contract = "mappings with queries, keys and values"
        mappings: list[Any] = [layers]
        if not isinstance(layers, Mapping):
            mappings = check_items("layers", layers, contract)
        if not mappings:
            fail("layers", contract, Got("none"))
        for arrays in mappings:
            if not isinstance(arrays, Mapping):
                fail("layers", contract, arrays, error=TypeError)
        in_memory = [_from_arrays(x, index) for index, x in enumerate(mappings)]
        ids = None if token_ids is None else as_array(token_ids)
        return object.__new__(cls)._set(None, in_memory, ids)

    @classmethod
    def of_cache(cls, cache: Mapping[str, Any], *, token_ids: Any = None) -> "Capture":
        """Return a capture of an activation cache as TransformerLens makes it.

        `cache` maps names such as ``blocks.0.attn.hook_q`` to arrays (sequences,
        tokens, heads, width). If it has an attribute ``model`` with ``W_Q``, ``W_K``,
        ``W_V``, ``W_O`` and ``cfg``, matrices and scale are taken from there.
        """
        if not hasattr(cache, "keys"):
            fail("cache", "a mapping", cache, error=TypeError)
        return cls.of_arrays(_cache_layers(cache), token_ids=token_ids)

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[CapturedLayer]:
        if len(self._in_memory) == len(self):
            return iter(self._in_memory)
        return self._run()

    def _run(self) -> Iterator[CapturedLayer]:
        assert self._prepared is not None
        in_memory: list[CapturedLayer] = []
        size = 0
        for captured in self._prepared.captured():
            size += captured.nbytes
            # All layers stay in memory or none: a part would save nothing.
            if size <= self._prepared.max_bytes:
                in_memory.append(captured)
            else:
                in_memory.clear()
            yield captured
        self._in_memory = in_memory if len(in_memory) == len(self) else []


def capture_model(
    model: nn.Module,
    batch: Any,
    *,
    layers: Sequence[int] | int | None,
    batch_size: int | None,
    max_bytes: int = _MAX_BYTES,
) -> Capture:
    """Return a capture without attention weights."""
    prepared = PreparedModel.read(model, batch, layers, batch_size, max_bytes, False)
    return object.__new__(Capture)._set(prepared, [], _token_ids(batch))


def n_sequences(capture: Capture) -> int:
    """Return the number of sequences or images, without running the model."""
    if capture._prepared is not None:
        return capture._prepared.batch.n_rows
    return len(capture._in_memory[0].mask)


def as_capture(source: Any) -> Capture:
    """Return a capture from a capture, arrays by name, or an activation cache."""
    if isinstance(source, Capture):
        return source
    keys = getattr(source, "cache_dict", source)
    if isinstance(keys, Mapping):
        is_cache = any(str(key).startswith("blocks.") for key in keys)
        return Capture.of_cache(source) if is_cache else Capture.of_arrays(source)
    if not isinstance(source, Sequence) or isinstance(source, str):
        contract = "a PyTorch model, a Capture, arrays by name, or an activation cache"
        fail("model", contract, source, error=TypeError)
    return Capture.of_arrays(source)


def tokenize_texts(
    model: nn.Module, texts: Sequence[str], tokenizer: Any
) -> dict[str, Any]:
    """Return a batch of texts, padded on the right and cut at 128 tokens."""
    texts = check_items("texts", texts, "a sequence of strings")
    if not texts:
        fail("texts", "at least one text", texts)
    if not all(isinstance(text, str) for text in texts):
        fail("texts", "a sequence of strings", texts, error=TypeError)
    if tokenizer is not None:
        check_callable("tokenizer", tokenizer, "a tokenizer")
    if tokenizer is None:
        path = getattr(getattr(model, "config", None), "_name_or_path", "")
        if not path:
            hint = "Pass `tokenizer`, or a batch."
            got = Got(f"{type(model).__name__}, which was not loaded from a folder")
            contract = "a Hugging Face model with a tokenizer"
            fail("model", contract, got, hint=hint)
        transformers = require("transformers", "Transformers", extra="hf")
        tokenizer = read_pretrained(
            transformers.AutoTokenizer,
            path,
            name="model",
            local_files_only=True,
            trust_remote_code=False,
        )
    # Decoders have no padding token; the mask hides it in any case.
    if getattr(tokenizer, "pad_token", "") is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    check_tokenizer(tokenizer, texts[0])
    longest = longest_sequence(model) or _MAX_TOKENS
    return dict(
        tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=min(_MAX_TOKENS, longest),
            return_tensors="pt",
        )
    )


def check_tokenizer(tokenizer: Any, text: str) -> None:
    """Raise unless a tokenizer returns a mapping of tensors, tried on one text."""
    contract = "a tokenizer that returns a mapping of tensors"
    hint = "Pass one of Hugging Face, or a batch instead of `texts`."
    options = {"padding": True, "truncation": True, "max_length": _MAX_TOKENS}
    try:
        encoded = tokenizer([text], **options, return_tensors="pt")
    except Exception as error:  # a tokenizer may be any function
        got = Got(f"one that raised {error!r}"[:400])
        fail("tokenizer", contract, got, hint=hint)
    if not isinstance(encoded, Mapping) or not encoded:
        what = "an empty mapping" if encoded == {} else type(encoded).__name__
        got = Got(f"one that returned {what}")
        fail("tokenizer", contract, got, hint=hint, error=TypeError)
    for name, array in encoded.items():
        if not isinstance(array, Tensor):
            got = Got(f"one whose {name!r} is {type(array).__name__}")
            fail("tokenizer", contract, got, hint=hint, error=TypeError)


def _token_ids(batch: Any) -> NDArray[Any] | None:
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    return None if ids is None else as_array(ids)


def _from_arrays(mapping: Mapping[str, Any], index: int) -> CapturedLayer:
    missing = [name for name in _REQUIRED if name not in mapping]
    if missing:
        got = Got(f"keys {sorted(map(str, mapping))}")
        contract = "mappings with queries, keys and values"
        fail("layers", contract, got)
    arrays = {name: as_array(mapping[name]) for name in _REQUIRED}
    shape = arrays["keys"].shape
    if len(shape) != 4:
        contract = "arrays of shape (sequences, heads, tokens, width)"
        fail("layers", contract, Got(shape))
    arrays |= {
        name: as_array(mapping[name])
        for name in _OPTIONAL
        if mapping.get(name) is not None
    }
    unknown: Any = None
    mask = mapping.get("mask")
    return CapturedLayer(
        name=str(mapping.get("name", f"layer {index}")),
        layer=check_count("layer", mapping.get("layer", index), minimum=0),
        mask=np.ones((shape[0], shape[2]), bool) if mask is None else as_array(mask),
        is_causal=_flag(mapping.get("is_causal")),
        scale=_scale(mapping.get("scale"), shape[-1]),
        **dict.fromkeys(("weights", *_OPTIONAL), unknown) | arrays,
    )


def _flag(value: object) -> bool:
    return value is not None and check_flag("is_causal", value)


def _scale(value: object, width: int) -> float:
    if value is None:
        return float(width**-0.5)
    return check_positive("scale", value)


# --- Activation caches of TransformerLens --------------------------------------------


def _cache_layers(cache: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the arrays of every block, as `Capture.of_arrays` takes them."""
    numbers = sorted(int(m[1]) for m in map(_BLOCK.fullmatch, cache) if m)
    if not numbers:
        got = Got(f"keys {sorted(map(str, cache))[:4]}")
        contract = "a cache with blocks.0.attn.hook_q, hook_k and hook_v"
        fail("cache", contract, got)
    return [_layer(cache, number) for number in numbers]


def as_array(value: Any) -> NDArray[Any]:
    """Return a tensor or array of numbers as a NumPy array, or raise.

    Floats of 8 and 16 bits, which NumPy has in part, become single precision.
    """
    holds_data = isinstance(value, Tensor) and not (value.is_meta or value.is_nested)
    if holds_data and value.is_floating_point():
        value = value.to_dense() if value.layout != torch.strided else value
        value = value.detach().resolve_neg()
        value = value.float() if value.itemsize < 4 else value
    try:
        array = as_numpy("layers", value)
        if array.dtype.kind not in "biuf":
            raise TypeError
    except TypeError:
        fail("layers", "arrays of numbers", value, error=TypeError)
    return array


def _check_cached(number: int, *arrays: NDArray[Any]) -> None:
    """Raise unless arrays of a cache have the axes that heads have."""
    for array in arrays:
        if array.ndim != 4 or 0 in array.shape:
            got = Got(f"shape {array.shape} in block {number}")
            contract = "a cache of arrays (sequences, tokens, heads, width), none empty"
            fail("cache", contract, got)


def _layer(cache: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the arrays of one block of a cache by our names."""

    def read(*names: str) -> NDArray[Any] | None:
        for name in names:
            if (key := f"blocks.{number}.{name}") in cache:
                return as_array(cache[key])
        return None

    # Rotary models of versions 2 and 3 cache queries before and after the rotation, of
    # which the latter attend; version 4 caches those before it, and the angles.
    queries = read("attn.hook_rot_q", "attn.hook_q")
    keys = read("attn.hook_rot_k", "attn.hook_k")
    values = read("attn.hook_v")
    if queries is None or keys is None or values is None:
        got = Got(f"block {number} without hook_k or hook_v")
        fail("cache", "a cache with queries, keys and values", got)
    _check_cached(number, queries, keys, values)
    cosines, sines = read("attn.hook_cos"), read("attn.hook_sin")
    is_rotated = read("attn.hook_rot_q") is not None
    if cosines is not None and sines is not None and not is_rotated:
        queries, keys = (_rotated(x, cosines, sines) for x in (queries, keys))
    n_heads, n_tokens = queries.shape[2], queries.shape[1]
    fields: dict[str, Any] = {
        name: np.swapaxes(np.repeat(array, n_heads // array.shape[2], axis=2), 1, 2)
        for name, array in (("queries", queries), ("keys", keys), ("values", values))
    }
    fields |= {"layer": number, "name": f"blocks.{number}.attn"}
    # Version 4 caches the input of the attention; the norm before it, which encoders
    # have behind it, is all that others cache.
    fields["tokens"] = read("attn.hook_in", "ln1.hook_normalized", "hook_resid_pre")
    # The probes warn if these are not the softmax attention of the arrays above.
    outputs = read("attn.hook_z")
    if outputs is not None and outputs.ndim == 4:
        fields["outputs"] = np.swapaxes(outputs, 1, 2)
    pattern = read("attn.hook_pattern")
    if pattern is not None:
        hidden = ~np.tri(n_tokens, dtype=bool)
        fields["is_causal"] = n_tokens > 1 and not pattern[..., hidden].any()
    model = getattr(cache, "model", None)
    if model is not None:
        of_model = _of_model(model, number, n_heads, queries.shape[3])
        fields |= {name: x for name, x in of_model.items() if x is not None}
    if pattern is not None:
        _check_pattern(fields, pattern[0], number)
    return fields


def _of_model(model: Any, number: int, n_heads: int, width: int) -> dict[str, Any]:
    """Return matrices, scale and direction of one block; None where it is not known."""
    fields: dict[str, Any] = {}
    # Theirs are (heads, d_model, width), and (heads, width, d_model) for outputs.
    for name, theirs in _MATRICES_OF_CACHE.items():
        matrix = as_array(getattr(model, theirs)[number])
        repeated = np.repeat(matrix, n_heads // len(matrix), axis=0)
        fields[name] = np.swapaxes(repeated, 1, 2)
    # The configuration has -1 where scores are divided by the root of the width.
    divisor = float(getattr(model.cfg, "attn_scale", -1.0) or -1.0)
    if not getattr(model.cfg, "use_attn_scale", True):
        divisor = 1.0
    fields["scale"] = 1 / (divisor if divisor > 0 else width**0.5)
    direction = getattr(model.cfg, "attention_dir", None)
    fields["is_causal"] = direction == "causal" if direction else None
    return fields


def _check_pattern(
    layer: Mapping[str, Any], pattern: NDArray[Any], number: int
) -> None:
    """Raise unless the first sequence's pattern is the softmax of its scores.

    Then the logarithm of a row of the pattern is the row of scores and one number,
    where the pattern is not zero, whatever is masked.
    """
    queries, keys = (layer[name][0].astype(np.float64) for name in ("queries", "keys"))
    scale = layer.get("scale", queries.shape[-1] ** -0.5)
    scores = scale * queries @ np.swapaxes(keys, -1, -2)
    counted = pattern > _TINY
    gaps = np.log(np.where(counted, pattern, 1.0)) - scores
    low = np.min(gaps, axis=-1, where=counted, initial=np.inf)
    high = np.max(gaps, axis=-1, where=counted, initial=-np.inf)
    size = 1.0 + np.max(np.abs(scores), where=counted, initial=0.0)
    if np.max(high - low, where=counted.any(axis=-1), initial=0.0) > _AGREEMENT * size:
        got = Got(f"block {number}, whose pattern is not softmax of hook_q · hook_k")
        contract = "a cache of queries and keys as they attend"
        hint = "Rotary positions may not be in it: give arrays to Capture.of_arrays."
        fail("cache", contract, got, hint=hint)


def _rotated(
    heads: NDArray[Any], cosines: NDArray[Any], sines: NDArray[Any]
) -> NDArray[Any]:
    """Return queries or keys (sequences, tokens, heads, width) after rotary positions.

    Cosines and sines are (sequences or 1, tokens, angles), each angle twice: either the
    first half of the angles is repeated by the second, or neighbours are equal. That
    tells which two coordinates one angle rotates.
    """
    n_angles = cosines.shape[-1]
    half = n_angles // 2
    turned, unturned = heads[..., :n_angles], heads[..., n_angles:]
    first, second = slice(0, half), slice(half, None)
    if not np.array_equal(cosines[..., first], cosines[..., second]):
        first, second = slice(0, None, 2), slice(1, None, 2)
    crossed = np.empty_like(turned)
    crossed[..., first] = -turned[..., second]
    crossed[..., second] = turned[..., first]
    angles = (cosines[..., None, :], sines[..., None, :])
    return np.concatenate([turned * angles[0] + crossed * angles[1], unturned], axis=-1)
