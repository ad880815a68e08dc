"""Heads without some of their tokens: sinks, outliers, or given positions."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from eigenheads._checks import check_choice, fail
from eigenheads._typing import FloatArray
from eigenheads.adapters._activation_cache import as_array
from eigenheads.adapters._capture import CapturedLayer
from eigenheads.probes._heads import MIN_TOKENS

# A token is an outlier if its norm exceeds this multiple of the sequence's median.
_OUTLIER = 3.0
# Name of a set of tokens -> what to ignore.
WITHOUT = {"without the first token": "first", "without outlier tokens": "outliers"}
WITH_ALL = {"with all tokens": None}


def without_tokens(
    captured: CapturedLayer, ignored: Any, *, owner: str
) -> CapturedLayer:
    """Return a layer in which some tokens count as padding.

    `ignored` is ``"first"``, ``"outliers"``, positions, a boolean array (sequences,
    tokens), or None for no token.
    """
    if ignored is None:
        return captured
    mask = captured.mask.copy()
    if isinstance(ignored, str):
        check_choice("ignore_tokens", ignored, ("first", "outliers"), owner=owner)
    if isinstance(ignored, str) and ignored == "first":
        mask[np.arange(len(mask)), mask.argmax(axis=1)] = False
    elif isinstance(ignored, str):
        rows = captured.keys.swapaxes(1, 2).reshape(*mask.shape, -1)
        norms = np.linalg.norm(
            rows if captured.tokens is None else captured.tokens, axis=-1
        )
        for row, own in zip(mask, norms, strict=True):
            row &= own <= _OUTLIER * np.median(own[row])
    else:
        given = as_array(ignored)
        if given.dtype == bool and given.shape == mask.shape:
            mask &= ~given
        elif given.dtype.kind == "i" and given.ndim == 1:
            n = mask.shape[1]
            if len(given) and not -n <= given.min() <= given.max() < n:
                contract = f"positions from {-n} to {n - 1}"
                fail("ignore_tokens", contract, ignored, owner=owner)
            mask[:, given] = False
        else:
            contract = f"'first', 'outliers', positions, or booleans of {mask.shape}"
            fail("ignore_tokens", contract, ignored, owner=owner, error=TypeError)
    unknown: Any = None
    # Outputs were computed with the ignored tokens: they are no check any more.
    return replace(captured, mask=mask, outputs=unknown)


class Contrasts:
    """Observed statistics of a model on other sets of tokens, layer by layer."""

    def __init__(self, sets: Mapping[str, Any]) -> None:
        self._found: dict[str, list[Mapping[str, FloatArray] | None]] = {
            name: [] for name in sets
        }
        self._sets = sets

    def add(
        self,
        captured: CapturedLayer,
        measure: Callable[[CapturedLayer], Mapping[str, FloatArray]],
        *,
        owner: str,
    ) -> None:
        """Measure a layer on every set; sets that leave too few tokens end here."""
        for name in list(self._found):
            part = without_tokens(captured, self._sets[name], owner=owner)
            if part.mask.sum(axis=1).max(initial=0) < MIN_TOKENS:
                del self._found[name]
            elif part is not captured and np.array_equal(part.mask, captured.mask):
                self._found[name].append(None)
            else:
                self._found[name].append(measure(part))

    def stacked(
        self, whole: Mapping[str, FloatArray]
    ) -> dict[str, dict[str, FloatArray]]:
        """Return arrays (layers, heads) by set and statistic.

        Sets without any change are left out; `whole` has the numbers on all tokens.
        """
        stacked = {}
        for name, layers in self._found.items():
            if all(layer is None for layer in layers):
                continue
            numbers = {statistic: values.copy() for statistic, values in whole.items()}
            for index, layer in enumerate(layers):
                for statistic, values in (layer or {}).items():
                    if statistic in numbers:
                        numbers[statistic][index, : len(values)] = values
            stacked[name] = numbers
        return stacked
