"""Sources of captured heads: a model on a batch or texts, arrays, activation caches."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

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
from eigenheads._extras import require
from eigenheads.adapters._batch import (
    longest_sequence,
    read_batch,
)
from eigenheads.adapters._capture import CapturedLayer, capture_heads
from eigenheads.adapters._layers import find_attention_layers, select_layers
from eigenheads.adapters._load import read_pretrained

_MAX_BYTES = 2**30
_MAX_TOKENS = 128
_REQUIRED = ("queries", "keys", "values")
_OPTIONAL = ("outputs", "tokens", "bias", "w_query", "w_key", "w_value", "w_output")
# Names of activations in the caches of TransformerLens.
_BLOCK = re.compile(r"blocks\.(\d+)\.attn\.hook_q")


class Capture:
    """Captured layers of a model on a batch, to be used several times.

    Iteration yields one :class:`CapturedLayer` per layer, in order. The layers are kept
    in memory if all of them fit into `max_bytes`; otherwise the model runs again on
    each iteration.

    Parameters
    ----------
    model, batch, layers, batch_size, max_bytes
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
    ) -> None:
        if (batch is None) == (texts is None):
            contract = "given, or `texts`, but not both"
            fail("batch", contract, batch, owner="Capture")
        if texts is not None:
            batch = tokenize_texts(model, texts, tokenizer, owner="Capture")
        elif tokenizer is not None:
            fail("tokenizer", "left out without `texts`", tokenizer, owner="Capture")
        found = find_attention_layers(model, owner="Capture")
        self.model: nn.Module | None = model
        self.layers = [
            layer.index for layer in select_layers(found, layers, owner="Capture")
        ]
        read_batch(model, batch, owner="Capture")
        self.token_ids = _token_ids(batch)
        if batch_size is not None:
            batch_size = check_count("batch_size", batch_size, owner="Capture")
        self._batch, self._batch_size = batch, batch_size
        self._max_bytes = check_count("max_bytes", max_bytes, owner="Capture")
        self._kept: list[CapturedLayer] = []

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
        given: list[Any] = [layers]
        if not isinstance(layers, Mapping):
            given = check_items("layers", layers, contract, owner="Capture")
        if not given:
            fail("layers", contract, Got("none"), owner="Capture")
        for one in given:
            if not isinstance(one, Mapping):
                fail("layers", contract, one, owner="Capture", error=TypeError)
        # Arrays need no model to run: the layers are already there.
        made = object.__new__(cls)
        made.model = None
        made._kept = [_from_arrays(one, index) for index, one in enumerate(given)]
        made.layers = [one.layer for one in made._kept]
        made.token_ids = None if token_ids is None else as_array(token_ids)
        return made

    @classmethod
    def of_cache(cls, cache: Mapping[str, Any], *, token_ids: Any = None) -> "Capture":
        """Return a capture of an activation cache as TransformerLens makes it.

        `cache` maps names such as ``blocks.0.attn.hook_q`` to arrays (sequences,
        tokens, heads, width). If it has an attribute ``model`` with ``W_Q``, ``W_K``,
        ``W_V``, ``W_O`` and ``cfg``, matrices and scale are taken from there.
        """
        if not hasattr(cache, "keys"):
            fail("cache", "a mapping", cache, owner="Capture", error=TypeError)
        numbers = sorted(int(m[1]) for m in map(_BLOCK.fullmatch, cache) if m)
        if not numbers:
            got = Got(f"keys {sorted(map(str, cache))[:4]}")
            contract = "a cache with blocks.0.attn.hook_q, hook_k and hook_v"
            fail("cache", contract, got, owner="Capture")
        return cls.of_arrays(
            [_from_cache(cache, number) for number in numbers], token_ids=token_ids
        )

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[CapturedLayer]:
        if len(self._kept) == len(self):
            return iter(self._kept)
        return self._run()

    def _run(self) -> Iterator[CapturedLayer]:
        assert self.model is not None
        kept: list[CapturedLayer] = []
        size = 0
        for captured in capture_heads(
            self.model,
            self._batch,
            layers=self.layers,
            batch_size=self._batch_size,
            max_bytes=self._max_bytes,
        ):
            size += captured.nbytes
            # All layers are kept or none: a part would save nothing.
            if size <= self._max_bytes:
                kept.append(captured)
            else:
                kept.clear()
            yield captured
        self._kept = kept if len(kept) == len(self) else []


def as_capture(source: Any, *, owner: str) -> Capture:
    """Return a capture from a capture, arrays by name, or an activation cache."""
    if isinstance(source, Capture):
        return source
    keys = getattr(source, "cache_dict", source)
    if isinstance(keys, Mapping):
        is_cache = any(str(key).startswith("blocks.") for key in keys)
        return Capture.of_cache(source) if is_cache else Capture.of_arrays(source)
    if not isinstance(source, Sequence) or isinstance(source, str):
        contract = "a PyTorch model, a Capture, arrays by name, or an activation cache"
        fail("model", contract, source, owner=owner, error=TypeError)
    return Capture.of_arrays(source)


def tokenize_texts(
    model: nn.Module, texts: Sequence[str], tokenizer: Any, *, owner: str
) -> dict[str, Any]:
    """Return a batch of texts, padded on the right and cut at 128 tokens."""
    texts = check_items("texts", texts, "a sequence of strings", owner=owner)
    if not texts:
        fail("texts", "at least one text", texts, owner=owner)
    if not all(isinstance(text, str) for text in texts):
        fail("texts", "a sequence of strings", texts, owner=owner, error=TypeError)
    if tokenizer is not None:
        check_callable("tokenizer", tokenizer, "a tokenizer", owner=owner)
    if tokenizer is None:
        path = getattr(getattr(model, "config", None), "_name_or_path", "")
        if not path:
            hint = "Pass `tokenizer`, or a batch."
            got = Got(f"{type(model).__name__}, which was not loaded from a folder")
            contract = "a Hugging Face model with a tokenizer"
            fail("model", contract, got, owner=owner, hint=hint)
        transformers = require("transformers", "Transformers", extra="hf", owner=owner)
        tokenizer = read_pretrained(
            transformers.AutoTokenizer,
            path,
            name="model",
            owner=owner,
            local_files_only=True,
            trust_remote_code=False,
        )
    # Decoders have no padding token; the mask hides it in any case.
    if getattr(tokenizer, "pad_token", "") is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
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


def as_array(value: Any) -> NDArray[Any]:
    """Return a tensor or array of numbers as a NumPy array, or raise."""
    try:
        array = as_numpy("layers", value, owner="Capture")
        if array.dtype.kind not in "biuf":
            raise TypeError
    except TypeError:
        fail("layers", "arrays of numbers", value, owner="Capture", error=TypeError)
    return array


def _token_ids(batch: Any) -> NDArray[Any] | None:
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    return None if ids is None else as_array(ids)


def _from_arrays(given: Mapping[str, Any], index: int) -> CapturedLayer:
    missing = [name for name in _REQUIRED if name not in given]
    if missing:
        got = Got(f"keys {sorted(map(str, given))}")
        contract = "mappings with queries, keys and values"
        fail("layers", contract, got, owner="Capture")
    arrays = {name: as_array(given[name]) for name in _REQUIRED}
    shape = arrays["keys"].shape
    if len(shape) != 4:
        contract = "arrays of shape (sequences, heads, tokens, width)"
        fail("layers", contract, Got(shape), owner="Capture")
    arrays |= {
        name: as_array(given[name]) for name in _OPTIONAL if given.get(name) is not None
    }
    unknown: Any = None
    mask = given.get("mask")
    return CapturedLayer(
        name=str(given.get("name", f"layer {index}")),
        layer=check_count(
            "layer", given.get("layer", index), owner="Capture", minimum=0
        ),
        mask=np.ones((shape[0], shape[2]), bool) if mask is None else as_array(mask),
        is_causal=_flag(given.get("is_causal")),
        scale=_scale(given.get("scale"), shape[-1]),
        **dict.fromkeys(("weights", *_OPTIONAL), unknown) | arrays,
    )


def _flag(value: object) -> bool:
    return value is not None and check_flag("is_causal", value, owner="Capture")


def _scale(value: object, width: int) -> float:
    if value is None:
        return float(width**-0.5)
    return check_positive("scale", value, owner="Capture")


def check_cached(number: int, *arrays: NDArray[Any]) -> None:
    """Raise unless arrays of a cache have the axes that heads have."""
    for array in arrays:
        if array.ndim != 4 or 0 in array.shape:
            got = Got(f"shape {array.shape} in block {number}")
            contract = "a cache of arrays (sequences, tokens, heads, width), none empty"
            fail("cache", contract, got, owner="Capture")


def _from_cache(cache: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the arrays of one block of a cache by our names."""

    def read(*names: str) -> NDArray[Any] | None:
        for name in names:
            if (key := f"blocks.{number}.{name}") in cache:
                return as_array(cache[key])
        return None

    # Rotary models cache queries before and after the rotation; the latter attend.
    queries = read("attn.hook_rot_q", "attn.hook_q")
    keys = read("attn.hook_rot_k", "attn.hook_k")
    values = read("attn.hook_v")
    if queries is None or keys is None or values is None:
        got = Got(f"block {number} without hook_k or hook_v")
        fail("cache", "a cache with queries, keys and values", got, owner="Capture")
    check_cached(number, queries, keys, values)
    n_heads, n_tokens = queries.shape[2], queries.shape[1]
    found: dict[str, Any] = {
        name: np.swapaxes(np.repeat(array, n_heads // array.shape[2], axis=2), 1, 2)
        for name, array in (("queries", queries), ("keys", keys), ("values", values))
    }
    found |= {"layer": number, "name": f"blocks.{number}.attn"}
    # Version 4 caches the input of the attention apart from the normalised one.
    found["tokens"] = read("ln1.hook_out", "ln1.hook_normalized", "hook_resid_pre")
    # The probes warn if these are not the softmax attention of the arrays above.
    outputs = read("attn.hook_z")
    if outputs is not None and outputs.ndim == 4:
        found["outputs"] = np.swapaxes(outputs, 1, 2)
    pattern = read("attn.hook_pattern")
    if pattern is not None:
        hidden = ~np.tri(n_tokens, dtype=bool)
        found["is_causal"] = n_tokens > 1 and not pattern[..., hidden].any()
    model = getattr(cache, "model", None)
    if model is not None:
        # Theirs are (heads, d_model, width), and (heads, width, d_model) for outputs.
        for name, theirs in (
            ("query", "Q"),
            ("key", "K"),
            ("value", "V"),
            ("output", "O"),
        ):
            matrix = as_array(getattr(model, f"W_{theirs}")[number])
            repeated = np.repeat(matrix, n_heads // len(matrix), axis=0)
            found[f"w_{name}"] = np.swapaxes(repeated, 1, 2)
        # The configuration has -1 where scores are divided by the root of the width.
        divisor = float(getattr(model.cfg, "attn_scale", -1.0) or -1.0)
        if not getattr(model.cfg, "use_attn_scale", True):
            divisor = 1.0
        found["scale"] = 1 / (divisor if divisor > 0 else queries.shape[3] ** 0.5)
        direction = getattr(model.cfg, "attention_dir", None)
        found["is_causal"] = (
            direction == "causal" if direction else found.get("is_causal")
        )
    return found
