"""Estimate of the time of a probe, and its progress, on standard error."""

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from eigenheads._parallel import advance, n_threads, progress_bar, reporting
from eigenheads.adapters._capture import CapturedLayer

if TYPE_CHECKING:
    from eigenheads.adapters._layer_probe import LayerProbe

# Numbers of draws with which the parts of whole layers are timed.
_FEW = (1, 9)
# A copy of a layer without draws, as a share of a layer on the bar.
_COPY = 0.04


class ProbeProgress:
    """Reports an estimate of the time, then a bar, or lines without a terminal."""

    def __init__(self, n_layers: int, n_copies: int) -> None:
        self.n_layers, self.n_copies = n_layers, n_copies
        self.n_layers_done, self.n_copies_done = 0, 0
        # Seconds of all untrained copies, as estimated.
        self.of_copies = 0.0
        self.began = time.perf_counter()
        self.is_terminal = sys.stderr.isatty()

    def bar(self) -> Any:
        """Return a context that shows a bar, if standard error is a terminal."""
        if not self.is_terminal:
            return nullcontext()
        total = self.n_layers * (1 + _COPY * self.n_copies)
        return progress_bar(total, description="layers")

    def estimate(self, run: "LayerProbe", captured: CapturedLayer) -> None:
        """Time small parts of the work on a layer, and write the time of the whole."""
        by_head, by_layer = run.split()
        share = len(captured.mask) / min(n_threads(), len(captured.mask))
        small = _one_sequence(captured)
        with reporting(lambda units: None):
            # One sequence is a unit; the parts of whole layers are timed with few
            # draws, in which their time is linear. The first call loads compiled code.
            by_head.with_draws(1)(small)
            each = share * _seconds(by_head, small)
            n_draws = by_layer.n_permutations
            few, more = (min(n, n_draws) for n in _FEW)
            times = [_seconds(by_layer.with_draws(n), captured) for n in (few, more)]
            # A copy is measured without draws, as fast on the arrays of the model.
            copy = share * _seconds(by_head.of_untrained, small)
            copy += _seconds(by_layer.of_untrained, captured)
        slope = max(0.0, times[1] - times[0]) / max(1, more - few)
        total = self.n_layers * (each + times[0] + slope * (n_draws - few))
        self.of_copies = self.n_layers * self.n_copies * copy
        about = _duration(total + self.of_copies)
        sys.stderr.write(
            f"probe: {self.n_layers} layers, {captured.n_heads} heads per layer, "
            f"{len(captured.mask)} sequences; about {about}\n"
        )
        sys.stderr.flush()
        self.began = time.perf_counter()

    def layer_done(self) -> None:
        """Count a layer, and write a line if there is no bar."""
        self.n_layers_done += 1
        n_left = self.n_layers - self.n_layers_done
        left = n_left * (time.perf_counter() - self.began) / self.n_layers_done
        self._write(f"layer {self.n_layers_done} of {self.n_layers}", left)
        if not n_left:
            self.began = time.perf_counter()

    def copy_done(self) -> None:
        """Count an untrained copy, and write a line if there is no bar."""
        self.n_copies_done += 1
        if self.is_terminal:
            advance(self.n_layers * _COPY)
        n_left = self.n_copies - self.n_copies_done
        self.of_copies = (
            n_left * (time.perf_counter() - self.began) / self.n_copies_done
        )
        self._write(f"untrained copy {self.n_copies_done} of {self.n_copies}", 0.0)

    def _write(self, what: str, left: float) -> None:
        if self.is_terminal:
            return
        left += self.of_copies
        more = f", {_duration(left)} left" if left else ""
        sys.stderr.write(f"probe: {what} done{more}\n")
        sys.stderr.flush()


def _seconds(run: Callable[[CapturedLayer], object], captured: CapturedLayer) -> float:
    began = time.perf_counter()
    run(captured)
    return time.perf_counter() - began


def _one_sequence(captured: CapturedLayer) -> CapturedLayer:
    """Return the layer on its longest sequence."""
    row = slice(i := int(captured.mask.sum(axis=1).argmax()), i + 1)
    cut: dict[str, Any] = {}
    for field in fields(captured):
        array = getattr(captured, field.name)
        if isinstance(array, np.ndarray) and not field.name.startswith(("w_", "b_")):
            cut[field.name] = array[row]
    return replace(captured, **cut)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min"
