"""Heads as probes receive them: validated, float64, without padding."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._checks import (
    Got,
    as_numpy,
    check_finite_array,
    fail,
)
from eigenheads._errors import public_call
from eigenheads._limits import LARGEST
from eigenheads._typing import Array, FloatArray
from eigenheads.functional import log_feature_norms
from eigenheads.probes._kernel_reading import softmax_weights

# With two tokens a centred Gram matrix has rank one: all values are kernel PCA.
MIN_TOKENS = 3
# Outputs of float32 models agree to about 1e-5 of their size; of bfloat16, to 1e-2.
_AGREEMENT = 0.03


@dataclass(frozen=True, eq=False)
class Head:
    """One attention head on the real tokens of one sequence.

    Arrays may have leading axes: draws of a null are evaluated together, as a head
    with arrays (draws, tokens, width).

    Attributes
    ----------
    queries, keys, values
        (tokens, width); rotary positions applied, not scaled.
    scale
        Factor of the scores.
    visible
        (tokens, tokens), true where a query (row) attends to a key; None if everywhere.
    bias
        (tokens, tokens), added to the scores, or None.
    tokens
        Input of the layer, (tokens, d_model), or None.
    token_ids
        Vocabulary index per token, (tokens,), or None.
    matrices
        ``query``, ``key``, ``value`` of shape (width, d_model) and ``output`` of shape
        (d_model, width), where known.
    layer, index
        Place of the head in the model.

    Examples
    --------
    >>> import numpy as np
    >>> head = Head(np.eye(3), np.eye(3), np.eye(3), scale=0.0)
    >>> head.weights[0].round(3)
    array([0.333, 0.333, 0.333])
    """

    queries: FloatArray
    keys: FloatArray
    values: FloatArray
    scale: float
    visible: NDArray[np.bool_] | None = None
    bias: FloatArray | None = None
    tokens: FloatArray | None = None
    token_ids: NDArray[np.int64] | None = None
    matrices: Mapping[str, FloatArray] = field(default_factory=dict)
    layer: int = 0
    index: int = 0

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return self.keys.shape[-2]

    @cached_property
    def weights(self) -> FloatArray:
        """Attention weights, (tokens, tokens): rows are queries and sum to 1."""
        scores = self.scale * (self.queries @ np.swapaxes(self.keys, -1, -2))
        if self.bias is not None:
            scores += self.bias
        if self.visible is not None:
            scores[..., ~self.visible] = -np.inf
        # Shifted by the largest score, so that no exponential overflows.
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        return scores

    @cached_property
    def output(self) -> FloatArray:
        """Output before the output projection, (tokens, width)."""
        return self.weights @ self.values

    @property
    def sees_all(self) -> bool:
        """True if every query attends to every key without a bias."""
        return self.visible is None and self.bias is None

    def with_changes(
        self, *, weights: FloatArray | None = None, **arrays: Any
    ) -> "Head":
        """Return the head with other arrays; weights and output are computed again.

        `weights` may be given if they are known, to save their computation.
        """
        changed = replace(self, **arrays)
        if weights is not None:
            # A cached property keeps its value here; the class itself is frozen.
            changed.__dict__["weights"] = weights
        return changed

    def draw(self, index: int) -> "Head":
        """Return one draw of a head with arrays (draws, tokens, width)."""
        arrays = {
            name: array[index] if array.ndim == 3 else array
            for name in ("queries", "keys", "values")
            for array in (getattr(self, name),)
        }
        # Weights that were not computed yet are left to the draw.
        weights = self.__dict__.get("weights")
        if weights is not None and weights.ndim == 3:
            weights = weights[index]
        return self.with_changes(weights=weights, **arrays)


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
        """Return the log norms of queries' features for drawn keys (draws, n, d)."""
        return log_feature_norms(
            queries,
            keys,
            scale=self.scale,
            is_causal=self.is_causal,
            standardize=self.standardize,
        )

    def with_options(self, **options: float | bool) -> "LayerHeads":
        """Return the heads with changed options."""
        return replace(self, **options)  # type: ignore[arg-type]


def check_heads(
    queries: Array, keys: Array, values: Array, mask: Array | None, tokens: Array | None
) -> LayerHeads:
    """Return validated heads, or raise."""
    keys = as_number_array("keys", keys)
    queries = as_number_array("queries", queries)
    values = as_number_array("values", values)
    if tokens is not None:
        tokens = as_number_array("tokens", tokens)
    arrays = {"keys": keys, "queries": queries, "values": values}
    shape = np.shape(keys)
    for name, array in arrays.items():
        dimensions = np.shape(array)
        if len(dimensions) != 4 or 0 in dimensions:
            contract = "of shape (sequences, heads, tokens, width)"
            fail(name, contract, Got(dimensions))
        free = 3 if name == "values" else 4
        if dimensions[:free] != shape[:free]:
            contract = f"of the keys' shape {shape}, up to the width of values"
            fail(name, contract, Got(dimensions))
    real = check_mask(mask, (shape[0], shape[2]))
    long_enough = [i for i in range(shape[0]) if int(real[i].sum()) >= MIN_TOKENS]
    if not long_enough:
        got = Got(f"at most {int(real.sum(1).max())}")
        contract = f"a sequence of {MIN_TOKENS} real tokens or more"
        fail("mask" if mask is not None else "keys", contract, got)
    if tokens is not None and np.shape(tokens)[:2] != (shape[0], shape[2]):
        contract = f"of shape ({shape[0]}, {shape[2]}, d_model)"
        fail("tokens", contract, Got(np.shape(tokens)))

    def rows(name: str, array: Array, i: int) -> FloatArray:
        part = np.asarray(array[i])[..., real[i], :]
        return check_magnitude(name, check_finite_array(name, part))

    sequences = [
        (rows("queries", queries, i), rows("keys", keys, i), rows("values", values, i))
        for i in long_enough
    ]
    inputs = (
        None if tokens is None else [rows("tokens", tokens, i) for i in long_enough]
    )
    return LayerHeads(sequences, long_enough, inputs, [real[i] for i in long_enough])


def check_magnitude(name: str, array: FloatArray) -> FloatArray:
    """Return numbers whose products do not overflow, or raise."""
    largest = float(np.abs(array).max(initial=0.0))
    if largest > LARGEST:
        contract = f"numbers of at most {LARGEST:g}"
        fail(name, contract, Got(f"{largest:g}"))
    return array


def as_number_array(name: str, value: object) -> Array:
    """Return numbers as a NumPy array of their own type, without a copy."""
    try:
        array = as_numpy(name, value)
        if array.dtype.kind not in "biuf":
            raise TypeError
    except TypeError:
        fail(name, "an array of numbers", value, error=TypeError)
    return array


def check_mask(mask: Array | None, shape: tuple[int, int]) -> Array:
    """Return the mask as booleans (sequences, tokens), true for real tokens."""
    if mask is None:
        return np.ones(shape, dtype=bool)
    try:
        array = as_numpy("mask", mask)
    except TypeError:
        fail("mask", "an array of booleans", mask, error=TypeError)
    if array.shape != shape:
        contract = f"of shape {shape}, true for real tokens"
        fail("mask", contract, Got(array.shape))
    if not np.isin(array, (0, 1)).all():
        contract = "booleans, true for real tokens"
        fail("mask", contract, mask, error=TypeError)
    return array.astype(bool)


def check_outputs(heads: LayerHeads, outputs: Array) -> None:
    """Warn unless the outputs are those of softmax attention."""
    outputs = as_number_array("outputs", outputs)
    if outputs.ndim != 4 or len(outputs) <= max(heads.indices):
        contract = "of the shape of `values`"
        fail("outputs", contract, Got(outputs.shape))
    worst = 0.0
    for i, (q, k, v), real in zip(
        heads.indices, heads.sequences, heads.masks, strict=True
    ):
        if np.shape(outputs[i]) != (len(v), len(real), v.shape[-1]):
            contract = "of the shape of `values`"
            fail("outputs", contract, Got(np.shape(outputs)))
        stated = np.asarray(outputs[i], dtype=np.float64)[:, real]
        weights = softmax_weights(q, k, scale=heads.scale, is_causal=heads.is_causal)
        ours = weights @ v
        size = np.linalg.norm(ours, axis=(1, 2))
        gap = np.linalg.norm(stated - ours, axis=(1, 2)) / np.where(size > 0, size, 1.0)
        worst = max(worst, float(gap.max()))
    if worst > _AGREEMENT:
        message = (
            f"{public_call()}: `outputs` differ from softmax(c q·k) v by "
            f"{worst:.2g} of their size (scale, mask, position bias, dropout?). The "
            "outputs of the formula are used."
        )
        warnings.warn(message, NotAttentionWarning, stacklevel=3)


def check_untrained(copy: object, names: tuple[str, ...]) -> None:
    """Raise unless an untrained model is a mapping with these arrays."""
    if isinstance(copy, Mapping) and all(name in copy for name in names):
        return
    listed = ", ".join(f"`{name}`" for name in names)
    contract = f"a sequence of mappings with {listed}"
    got = Got(f"keys {sorted(copy)}") if isinstance(copy, Mapping) else copy
    fail("untrained", contract, got)
