"""Estimate of the time of a probe, and its progress, on standard error."""

import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from eigenheads._parallel import n_threads, progress_bar, reporting
from eigenheads.adapters._capture import CapturedLayer

if TYPE_CHECKING:
    from eigenheads.adapters._layer_probe import LayerProbe

# Numbers of draws with which the parts of whole layers are timed.
_FEW = (1, 9)


class ProbeProgress:
    """Reports an estimate of the time, then a bar, or lines without a terminal."""

    def __init__(self, n_layers: int) -> None:
        self.n_layers, self.n_done = n_layers, 0
        self.began = time.perf_counter()
        self.is_terminal = sys.stderr.isatty()

    def bar(self) -> Any:
        """Return a context that shows a bar, if standard error is a terminal."""
        if not self.is_terminal:
            return nullcontext()
        return progress_bar(self.n_layers, description="layers")

    def estimate(
        self,
        run: "LayerProbe",
        captured: CapturedLayer,
        alike: Sequence[CapturedLayer],
    ) -> None:
        """Time small parts of the work on a layer, and write the time of the whole."""
        by_head, by_layer = run.split()
        units = captured.n_heads * len(captured.mask)
        n_parallel = min(n_threads(), len(captured.mask))
        small, *others = (_one_head(one) for one in (captured, *alike))
        with reporting(lambda units: None):
            # One head on one sequence is a unit; the parts of whole layers are timed
            # with few draws, in which their time is linear.
            each = _seconds(by_head, small, others) * units / n_parallel
            n_draws = by_layer.n_permutations
            few, more = (min(n, n_draws) for n in _FEW)
            times = [
                _seconds(by_layer.with_draws(n), captured, alike) for n in (few, more)
            ]
        slope = max(0.0, times[1] - times[0]) / max(1, more - few)
        total = self.n_layers * (each + times[0] + slope * (n_draws - few))
        sys.stderr.write(
            f"probe: {self.n_layers} layers, {captured.n_heads} heads per layer, "
            f"{len(captured.mask)} sequences; about {_duration(total)}\n"
        )
        sys.stderr.flush()
        self.began = time.perf_counter()

    def layer_done(self) -> None:
        """Count a layer, and write a line if there is no bar."""
        self.n_done += 1
        if self.is_terminal:
            return
        n_left = self.n_layers - self.n_done
        left = n_left * (time.perf_counter() - self.began) / self.n_done
        more = f", {_duration(left)} left" if n_left else ""
        sys.stderr.write(f"probe: layer {self.n_done} of {self.n_layers} done{more}\n")
        sys.stderr.flush()


def _seconds(run: "LayerProbe", *layers: Any) -> float:
    # The first call loads compiled code; the second one is timed.
    run(*layers)
    began = time.perf_counter()
    run(*layers)
    return time.perf_counter() - began


def _one_head(captured: CapturedLayer) -> CapturedLayer:
    """Return the first head of the layer on its longest sequence."""
    row = slice(i := int(captured.mask.sum(axis=1).argmax()), i + 1)
    cut: dict[str, Any] = {}
    for field in fields(captured):
        array = getattr(captured, field.name)
        if not isinstance(array, np.ndarray):
            continue
        if field.name in ("tokens", "mask"):
            cut[field.name] = array[row]
        elif field.name.startswith(("w_", "b_")):
            cut[field.name] = array if field.name == "b_output" else array[:1]
        else:
            cut[field.name] = array[row, :1]
    return replace(captured, **cut)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min"
