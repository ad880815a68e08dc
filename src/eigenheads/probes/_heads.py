"""Validated input of the probes: float64, without padding."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from eigenheads._checks import (
    Got,
    as_numpy,
    check_finite_array,
    fail,
)
from eigenheads._limits import LARGEST
from eigenheads._typing import Array, FloatArray
from eigenheads.functional import log_feature_norms
from eigenheads.probes._kernel_compiled import subtract_tops
from eigenheads.probes._kernel_reading import softmax_weights

# With two tokens a centred Gram matrix has rank one: all values are kernel PCA.
MIN_TOKENS = 3
# Outputs of float32 models agree to about 1e-5 of their size; of bfloat16, to 1e-2.
_AGREEMENT = 0.03


class NotAttentionWarning(UserWarning):
    """The outputs are not the softmax attention of queries, keys and values."""


@dataclass(frozen=True, eq=False)
class LayerHeads:
    """Heads of one layer: per sequence, arrays (heads, real tokens, width)."""

    sequences: list[tuple[FloatArray, FloatArray, FloatArray]]
    indices: list[int]  # index of each sequence in the input
    tokens: list[FloatArray] | None
    masks: list[Array]
    scale: float = 1.0
    is_causal: bool = False
    standardize: bool = False

    @property
    def n_heads(self) -> int:
        """Number of heads."""
        return len(self.sequences[0][1])

    @property
    def d_head(self) -> int:
        """Width of keys."""
        return self.sequences[0][1].shape[-1]

    def log_features(self, queries: FloatArray, keys: FloatArray) -> FloatArray:
        """Return the log norms of queries' features for drawn keys (draws, n, d).

        As `log_feature_norms`, in fewer passes over the scores.
        """
        if self.standardize:
            options = {"scale": self.scale, "is_causal": self.is_causal}
            return log_feature_norms(queries, keys, **options, standardize=True)  # type: ignore[arg-type]
        scores = (self.scale * queries) @ keys.swapaxes(-1, -2)
        if self.is_causal:
            n, m = scores.shape[-2:]
            scores[:, ~np.tri(n, m, m - n, dtype=bool)] = -np.inf
        tops = subtract_tops(scores)
        sums = np.exp(scores, out=scores).sum(axis=-1)
        own = self.scale * np.sum(queries * queries, axis=-1)
        return own - 2 * (tops + np.log(sums))

    def with_options(self, **options: float | bool) -> "LayerHeads":
        """Return the same heads with other options."""
        return replace(self, **options)  # type: ignore[arg-type]


def check_heads(
    queries: Array,
    keys: Array,
    values: Array,
    mask: Array | None,
    tokens: Array | None,
    *,
    owner: str,
) -> LayerHeads:
    """Return validated heads, or raise."""
    keys = as_number_array("keys", keys, owner=owner)
    queries = as_number_array("queries", queries, owner=owner)
    values = as_number_array("values", values, owner=owner)
    if tokens is not None:
        tokens = as_number_array("tokens", tokens, owner=owner)
    given = {"keys": keys, "queries": queries, "values": values}
    shape = np.shape(keys)
    for name, array in given.items():
        own = np.shape(array)
        if len(own) != 4 or 0 in own:
            contract = "of shape (sequences, heads, tokens, width)"
            fail(name, contract, Got(own), owner=owner)
        free = 3 if name == "values" else 4
        if own[:free] != shape[:free]:
            contract = f"of the keys' shape {shape}, up to the width of values"
            fail(name, contract, Got(own), owner=owner)
    real = check_mask(mask, (shape[0], shape[2]), owner=owner)
    kept = [i for i in range(shape[0]) if int(real[i].sum()) >= MIN_TOKENS]
    if not kept:
        got = Got(f"at most {int(real.sum(1).max())}")
        contract = f"a sequence of {MIN_TOKENS} real tokens or more"
        fail("mask" if mask is not None else "keys", contract, got, owner=owner)
    if tokens is not None and np.shape(tokens)[:2] != (shape[0], shape[2]):
        contract = f"of shape ({shape[0]}, {shape[2]}, d_model)"
        fail("tokens", contract, Got(np.shape(tokens)), owner=owner)

    def rows(name: str, array: Array, i: int) -> FloatArray:
        part = np.asarray(array[i])[..., real[i], :]
        return check_magnitude(name, check_finite_array(name, part, owner=owner), owner)

    sequences = [
        (rows("queries", queries, i), rows("keys", keys, i), rows("values", values, i))
        for i in kept
    ]
    inputs = None if tokens is None else [rows("tokens", tokens, i) for i in kept]
    return LayerHeads(sequences, kept, inputs, [real[i] for i in kept])


def check_magnitude(name: str, array: FloatArray, owner: str) -> FloatArray:
    """Return numbers whose products do not overflow, or raise."""
    largest = float(np.abs(array).max(initial=0.0))
    if largest > LARGEST:
        contract = f"numbers of at most {LARGEST:g}"
        fail(name, contract, Got(f"{largest:g}"), owner=owner)
    return array


def as_number_array(name: str, value: object, *, owner: str) -> Array:
    """Return numbers as a NumPy array of their own type, without a copy."""
    try:
        array = as_numpy(name, value, owner=owner)
        if array.dtype.kind not in "biuf":
            raise TypeError
    except TypeError:
        fail(name, "an array of numbers", value, owner=owner, error=TypeError)
    return array


def check_mask(mask: Array | None, shape: tuple[int, int], *, owner: str) -> Array:
    """Return the mask as booleans (sequences, tokens), true for real tokens."""
    if mask is None:
        return np.ones(shape, dtype=bool)
    try:
        array = as_numpy("mask", mask, owner=owner)
    except TypeError:
        fail("mask", "an array of booleans", mask, owner=owner, error=TypeError)
    if array.shape != shape:
        contract = f"of shape {shape}, true for real tokens"
        fail("mask", contract, Got(array.shape), owner=owner)
    if not np.isin(array, (0, 1)).all():
        contract = "booleans, true for real tokens"
        fail("mask", contract, mask, owner=owner, error=TypeError)
    return array.astype(bool)


def check_outputs(heads: LayerHeads, outputs: Array, *, owner: str) -> None:
    """Warn unless the outputs are those of softmax attention."""
    outputs = as_number_array("outputs", outputs, owner=owner)
    if outputs.ndim != 4 or len(outputs) <= max(heads.indices):
        contract = "of the shape of `values`"
        fail("outputs", contract, Got(outputs.shape), owner=owner)
    worst = 0.0
    for i, (q, k, v), real in zip(
        heads.indices, heads.sequences, heads.masks, strict=True
    ):
        if np.shape(outputs[i]) != (len(v), len(real), v.shape[-1]):
            contract = "of the shape of `values`"
            fail("outputs", contract, Got(np.shape(outputs)), owner=owner)
        given = np.asarray(outputs[i], dtype=np.float64)[:, real]
        weights = softmax_weights(q, k, scale=heads.scale, is_causal=heads.is_causal)
        ours = weights @ v
        size = np.linalg.norm(ours, axis=(1, 2))
        gap = np.linalg.norm(given - ours, axis=(1, 2)) / np.where(size > 0, size, 1.0)
        worst = max(worst, float(gap.max()))
    if worst > _AGREEMENT:
        message = (
            f"{owner}: `outputs` differ from softmax(c q·k) v by {worst:.2g} of their "
            "size (scale, mask, position bias, dropout?). The outputs of the formula "
            "are used."
        )
        warnings.warn(message, NotAttentionWarning, stacklevel=3)


def check_untrained(copy: object, names: tuple[str, ...], *, owner: str) -> None:
    """Raise unless an untrained model is a mapping with these arrays."""
    if isinstance(copy, Mapping) and all(name in copy for name in names):
        return
    listed = ", ".join(f"`{name}`" for name in names)
    contract = f"a sequence of mappings with {listed}"
    got = Got(f"keys {sorted(copy)}") if isinstance(copy, Mapping) else copy
    fail("untrained", contract, got, owner=owner)
