"""Statistics of all captured layers of a model, or of two models."""

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from contextlib import nullcontext
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from eigenheads._checks import Got, fail
from eigenheads._parallel import advance, n_threads, progress_bar, reporting
from eigenheads._typing import FloatArray
from eigenheads.probes._head_probe import head_probe, read_statistics
from eigenheads.probes._kernel import default_redraws
from eigenheads.probes._layer_probe import (
    WITH_ALL,
    WITHOUT,
    Contrasts,
    LayerProbe,
    head_arrays,
    names_of,
    read_names,
    without_tokens,
)
from eigenheads.probes._model_probe import ModelProbe
from eigenheads.probes._result import Statistic, stack_layers, with_untrained
from eigenheads.probes._statistics import STATISTICS, HeadStatistic

if TYPE_CHECKING:
    from eigenheads.adapters import Capture, CapturedLayer

# From this number of sequences on, costly nulls have the fewest draws.
_SEQUENCES = 64
# Numbers of draws with which the parts of whole layers are timed.
_FEW = (1, 9)
# A copy of a layer without draws, as a share of a layer on the bar.
_COPY = 0.04


def probe_captured(  # noqa: PLR0913 -- keyword-only but two
    capture: "Iterable[CapturedLayer]",
    untrained: "Sequence[Iterable[CapturedLayer] | Callable[[], Capture]]",
    *,
    seed_of_layer: Callable[[int], int],
    statistics: Sequence[object] | None = None,
    ignore_tokens: Any = None,
    on_other_tokens: bool = False,
    n_permutations: int = 200,
    n_redraws: int | None = None,
    progress: bool = False,
) -> ModelProbe:
    """Run probes on captured layers.

    `untrained` are captures of other models, or functions that make one, so that one
    model at a time is in memory.
    With `on_other_tokens` the observed statistics are also measured on other sets of
    tokens: without sinks and outliers, or with all if `ignore_tokens` is given.
    """
    ids = getattr(capture, "token_ids", None)
    chosen = read_names(statistics)
    if statistics is None and ids is None:
        chosen = [name for name in STATISTICS if not STATISTICS[name].needs_token_ids]
    sets = WITHOUT if ignore_tokens is None else WITH_ALL
    other_tokens = Contrasts(sets if on_other_tokens else {})
    plain = LayerProbe(chosen, ids, 0, None, 0)
    layers: list[int] = []
    names: list[str] = []
    by_layer: list[dict[str, Statistic]] = []
    notes: list[str] = []
    used: dict[str, Any] = {"n_permutations": n_permutations, "n_redraws": n_redraws}
    n_layers = len(capture) if isinstance(capture, Sized) else 1
    reporter = ProbeProgress(n_layers, len(untrained)) if progress else None
    with reporter.bar() if reporter else nullcontext():
        for captured in capture:
            with reporting(lambda units: None):
                other_tokens.add(captured, plain.observe)
            captured = without_tokens(captured, ignore_tokens)
            layers.append(captured.layer)
            names.append(captured.name)
            run = LayerProbe(
                chosen, ids, n_permutations, n_redraws, seed_of_layer(captured.layer)
            )
            if reporter and len(layers) == 1:
                reporter.estimate(run, captured)
            results = run(captured)
            by_layer.append({k: s for r in results for k, s in r.statistics.items()})
            notes += [n for n in _remarks(captured, by_layer[-1]) if n not in notes]
            used["n_sequences"] = len(captured.mask)
            for result in results:
                used["n_redraws"] = result.settings.get("n_redraws", used["n_redraws"])
            if reporter:
                reporter.layer_done()
        copies: list[list[Mapping[str, FloatArray]]] = []
        for model in untrained:
            copies.append(_draws_of(model, plain, ignore_tokens))
            if reporter:
                reporter.copy_done()
    for i, statistics_of_layer in enumerate(by_layer):
        drawn = with_untrained(statistics_of_layer, [copy[i] for copy in copies])
        by_layer[i] = {name: drawn[name] for name in names_of(chosen) if name in drawn}
    stacked = stack_layers(by_layer)
    numbers = {name: statistic.observed for name, statistic in stacked.items()}
    return ModelProbe(
        layers, names, stacked, used, notes, other_tokens.stacked(numbers)
    )


def _draws_of(
    untrained: "Iterable[CapturedLayer] | Callable[[], Capture]",
    plain: LayerProbe,
    ignore_tokens: Any,
) -> list[Mapping[str, FloatArray]]:
    """Return the numbers of an untrained model by layer and statistic."""
    # The capture ends with this function, and so does its memory.
    captured = untrained() if callable(untrained) else untrained
    with reporting(lambda units: None):
        return [
            plain.of_untrained(without_tokens(layer, ignore_tokens))
            for layer in captured
        ]


def _remarks(
    captured: "CapturedLayer", statistics: Mapping[str, Statistic]
) -> list[str]:
    """Return notes on what the numbers of a layer cannot show."""
    remarks = []
    if captured.bias is not None and "captured_variance" in statistics:
        remarks.append(
            f"Layer {captured.layer} masks or biases its scores beyond padding and "
            "causality; the kernel-PCA statistics leave that out."
        )
    lengths, width = captured.mask.sum(axis=1), captured.values.shape[-1]
    # Centred, n tokens have n - 1 directions, which `width` columns span.
    n_short = int(np.sum(lengths <= width + 1))
    if n_short and "captured_variance" in statistics:
        remarks.append(
            f"{n_short} of {len(lengths)} sequences have at most {width + 1} tokens. "
            f"There, {width} columns of values span all directions, and "
            "captured_variance is 1 for almost any values. Use longer sequences."
        )
    for name, entry in STATISTICS.items():
        if not entry.needs_token_ids or name not in statistics:
            continue
        if np.isnan(statistics[name].observed).all():
            remarks.append(
                f"{name} is not defined: no token is repeated, or token ids are not "
                "known."
            )
    return remarks


def affordable_redraws(n_permutations: int, n_sequences: int) -> int:
    """Return the number of costly draws.

    Few sequences show less, and need more draws for the same decisions: these cost
    what the default of the kernel-PCA probe costs on 64 sequences.
    """
    least = default_redraws(n_permutations)
    affordable = _SEQUENCES * (n_permutations // 5) // n_sequences
    return max(least, min(2 * n_permutations, affordable))


def compare_captured(
    first: "Capture",
    second: "Capture",
    statistics: Sequence[object] | None,
    n_permutations: int,
    seed: int,
) -> ModelProbe:
    """Compare the heads of two models on the same sequences, second minus first."""
    chosen = read_statistics(statistics)
    if len(first) != len(second):
        got = Got(f"{len(second)} layers instead of {len(first)}")
        fail("second", "a model with as many layers as the first", got)
    by_layer, names = [], []
    for before, after in zip(first, second, strict=True):
        if before.keys.shape[:3] != after.keys.shape[:3]:
            got = Got(f"{after.keys.shape[:3]} instead of {before.keys.shape[:3]}")
            contract = "a model with the same sequences, heads and tokens per layer"
            fail("second", contract, got)
        names.append(before.name)
        # Without draws: the null needs the numbers of each sequence only.
        numbers = [
            head_probe(
                **head_arrays(captured, model.token_ids),
                statistics=chosen,
                n_draws=0,
                layer=captured.layer,
            ).spectra
            for captured, model in ((before, first), (after, second))
        ]
        rng = np.random.default_rng([seed, before.layer])
        by_layer.append(
            {x.name: _paired(x, numbers, n_permutations, rng) for x in chosen}
        )
    return ModelProbe(first.layers, names, stack_layers(by_layer))


def _paired(
    statistic: HeadStatistic,
    numbers: Sequence[Mapping[str, FloatArray]],
    n_draws: int,
    rng: np.random.Generator,
) -> Statistic:
    """Return the mean difference of two models with random signs as null."""
    differences = numbers[1][statistic.name] - numbers[0][statistic.name]
    defined = np.isfinite(differences)
    count = np.maximum(defined.sum(axis=0), 1)
    # Sequences in which a statistic is not defined do not count.
    clean = np.where(defined, differences, 0.0) / count
    # Swapping the models in a sequence changes the sign of its difference.
    signs = rng.choice([-1.0, 1.0], size=(n_draws, len(clean)))
    observed = np.where(defined.any(axis=0), clean.sum(axis=0), np.nan)
    draws = (signs @ clean).T
    about = f"Second model minus first model: {statistic.about}"
    return Statistic(
        statistic.name, observed, {"swapped_models": draws}, "two-sided", about
    )


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

    def estimate(self, run: LayerProbe, captured: "CapturedLayer") -> None:
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
        seconds = n_left * (time.perf_counter() - self.began) / self.n_layers_done
        self._write(f"layer {self.n_layers_done} of {self.n_layers}", seconds)
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

    def _write(self, what: str, seconds: float) -> None:
        if self.is_terminal:
            return
        seconds += self.of_copies
        more = f", {_duration(seconds)} left" if seconds else ""
        sys.stderr.write(f"probe: {what} done{more}\n")
        sys.stderr.flush()


def _seconds(
    run: "Callable[[CapturedLayer], object]", captured: "CapturedLayer"
) -> float:
    began = time.perf_counter()
    run(captured)
    return time.perf_counter() - began


def _one_sequence(captured: "CapturedLayer") -> "CapturedLayer":
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
