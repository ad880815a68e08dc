"""Activation caches of TransformerLens, read by our names (versions 2 to 4)."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigenheads._checks import Got, as_numpy, fail

# Names of activations in the caches.
_BLOCK = re.compile(r"blocks\.(\d+)\.attn\.hook_q")
# Our names of a head's matrices, and theirs.
_MATRICES = {"w_query": "W_Q", "w_key": "W_K", "w_value": "W_V", "w_output": "W_O"}

# Weights below that are not compared: half precision keeps few of their digits.
_TINY = 1e-3
# Logarithms of weights agree to this share of the scores, in half precision too.
_AGREEMENT = 0.05


def cache_layers(cache: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the arrays of every block, as `Capture.of_arrays` takes them."""
    numbers = sorted(int(m[1]) for m in map(_BLOCK.fullmatch, cache) if m)
    if not numbers:
        got = Got(f"keys {sorted(map(str, cache))[:4]}")
        contract = "a cache with blocks.0.attn.hook_q, hook_k and hook_v"
        fail("cache", contract, got, owner="Capture")
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
        array = as_numpy("layers", value, owner="Capture")
        if array.dtype.kind not in "biuf":
            raise TypeError
    except TypeError:
        fail("layers", "arrays of numbers", value, owner="Capture", error=TypeError)
    return array


def check_cached(number: int, *arrays: NDArray[Any]) -> None:
    """Raise unless arrays of a cache have the axes that heads have."""
    for array in arrays:
        if array.ndim != 4 or 0 in array.shape:
            got = Got(f"shape {array.shape} in block {number}")
            contract = "a cache of arrays (sequences, tokens, heads, width), none empty"
            fail("cache", contract, got, owner="Capture")


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
        fail("cache", "a cache with queries, keys and values", got, owner="Capture")
    check_cached(number, queries, keys, values)
    cosines, sines = read("attn.hook_cos"), read("attn.hook_sin")
    is_rotated = read("attn.hook_rot_q") is not None
    if cosines is not None and sines is not None and not is_rotated:
        queries, keys = (_rotated(x, cosines, sines) for x in (queries, keys))
    n_heads, n_tokens = queries.shape[2], queries.shape[1]
    found: dict[str, Any] = {
        name: np.swapaxes(np.repeat(array, n_heads // array.shape[2], axis=2), 1, 2)
        for name, array in (("queries", queries), ("keys", keys), ("values", values))
    }
    found |= {"layer": number, "name": f"blocks.{number}.attn"}
    # Version 4 caches the input of the attention; the norm before it, which encoders
    # have behind it, is all that others cache.
    found["tokens"] = read("attn.hook_in", "ln1.hook_normalized", "hook_resid_pre")
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
        of_model = _of_model(model, number, n_heads, queries.shape[3])
        found |= {name: x for name, x in of_model.items() if x is not None}
    if pattern is not None:
        _check_pattern(found, pattern[0], number)
    return found


def _of_model(model: Any, number: int, n_heads: int, width: int) -> dict[str, Any]:
    """Return matrices, scale and direction of one block; None where it is not known."""
    found: dict[str, Any] = {}
    # Theirs are (heads, d_model, width), and (heads, width, d_model) for outputs.
    for name, theirs in _MATRICES.items():
        matrix = as_array(getattr(model, theirs)[number])
        repeated = np.repeat(matrix, n_heads // len(matrix), axis=0)
        found[name] = np.swapaxes(repeated, 1, 2)
    # The configuration has -1 where scores are divided by the root of the width.
    divisor = float(getattr(model.cfg, "attn_scale", -1.0) or -1.0)
    if not getattr(model.cfg, "use_attn_scale", True):
        divisor = 1.0
    found["scale"] = 1 / (divisor if divisor > 0 else width**0.5)
    direction = getattr(model.cfg, "attention_dir", None)
    found["is_causal"] = direction == "causal" if direction else None
    return found


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
    seen = pattern > _TINY
    gaps = np.log(np.where(seen, pattern, 1.0)) - scores
    low = np.min(gaps, axis=-1, where=seen, initial=np.inf)
    high = np.max(gaps, axis=-1, where=seen, initial=-np.inf)
    size = 1.0 + np.max(np.abs(scores), where=seen, initial=0.0)
    if np.max(high - low, where=seen.any(axis=-1), initial=0.0) > _AGREEMENT * size:
        got = Got(f"block {number}, whose pattern is not softmax of hook_q · hook_k")
        contract = "a cache of queries and keys as they attend"
        hint = "Rotary positions may not be in it: give arrays to Capture.of_arrays."
        fail("cache", contract, got, owner="Capture", hint=hint)


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
    turned, rest = heads[..., :n_angles], heads[..., n_angles:]
    first, second = slice(0, half), slice(half, None)
    if not np.array_equal(cosines[..., first], cosines[..., second]):
        first, second = slice(0, None, 2), slice(1, None, 2)
    crossed = np.empty_like(turned)
    crossed[..., first] = -turned[..., second]
    crossed[..., second] = turned[..., first]
    angles = (cosines[..., None, :], sines[..., None, :])
    return np.concatenate([turned * angles[0] + crossed * angles[1], rest], axis=-1)
