"""One attention head on one sequence, as statistics receive it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._typing import FloatArray


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
