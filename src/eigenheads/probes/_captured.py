"""Statistics of all captured layers of a model, or of two models."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from eigenheads._checks import Got, fail
from eigenheads._parallel import advance, progress_bar, reporting
from eigenheads._rng import generator
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
    total = n_layers * (1 + _COPY * len(untrained))
    bar = progress_bar(total, description="layers") if progress else nullcontext()
    with bar:
        for captured in capture:
            with reporting(lambda units: None):
                other_tokens.add(captured, plain.observe)
            captured = without_tokens(captured, ignore_tokens)
            layers.append(captured.layer)
            names.append(captured.name)
            run = LayerProbe(
                chosen, ids, n_permutations, n_redraws, seed_of_layer(captured.layer)
            )
            results = run(captured)
            by_layer.append({k: s for r in results for k, s in r.statistics.items()})
            notes += [n for n in _remarks(captured, by_layer[-1]) if n not in notes]
            used["n_sequences"] = len(captured.mask)
            for result in results:
                used["n_redraws"] = result.settings.get("n_redraws", used["n_redraws"])
        copies: list[list[Mapping[str, FloatArray]]] = []
        for model in untrained:
            copies.append(_draws_of(model, plain, ignore_tokens))
            advance(n_layers * _COPY)
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
        rng = generator([seed, before.layer])
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
