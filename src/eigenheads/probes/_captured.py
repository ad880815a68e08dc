"""Statistics of all captured layers of a model, or of two models."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from eigenheads._checks import Got, check_choice, fail
from eigenheads._parallel import (
    RunPool,
    advance,
    n_threads,
    progress_bar,
    reporting,
    threads,
    weighing,
)
from eigenheads._rng import generator
from eigenheads._typing import FloatArray
from eigenheads.probes._covariance import (
    covariance_probe,
    subspace_affinity,
    untrained_covariance_statistics,
)
from eigenheads.probes._head_probe import (
    head_probe,
    read_statistics,
    untrained_head_statistics,
)
from eigenheads.probes._heads import MIN_TOKENS, as_number_array
from eigenheads.probes._kernel import (
    default_redraws,
    kernel_pca_probe,
    untrained_kernel_statistics,
)
from eigenheads.probes._model_probe import ModelProbe
from eigenheads.probes._result import (
    ProbeResult,
    Statistic,
    stack_layers,
    with_untrained,
)
from eigenheads.probes._statistics import (
    AFFINITY,
    COVARIANCE,
    KERNEL,
    STATISTICS,
    HeadStatistic,
    as_statistic,
)

if TYPE_CHECKING:
    from eigenheads.adapters import Capture, CapturedLayer

# Arrays of a captured layer that each probe takes.
_KERNEL_ARRAYS = ("queries", "keys", "values", "tokens", "mask")
_COVARIANCE_ARRAYS = ("tokens", "w_query", "w_key", "w_value", "w_output", "mask")
_HEAD_ARRAYS = ("queries", "keys", "values", "tokens", "mask", "bias")
_MATRICES = ("query", "key", "value", "output")
# A token is an outlier if its norm exceeds this multiple of the sequence's median.
_OUTLIER = 3.0
# Name of a set of tokens -> what to ignore.
WITHOUT = {"without the first token": "first", "without outlier tokens": "outliers"}
WITH_ALL = {"with all tokens": None}


def names_of(statistics: Sequence[object]) -> list[str]:
    """Return the names of statistics that are names or objects."""
    return [x.name if isinstance(x, HeadStatistic) else str(x) for x in statistics]


def read_names(statistics: Sequence[object] | None) -> list[object]:
    """Return statistics by name or object; names must be known and different."""
    if statistics is None:
        return list(STATISTICS)
    if isinstance(statistics, str) and statistics == QUICK:
        return [name for name, one in STATISTICS.items() if one.measure != KERNEL]
    if isinstance(statistics, str) or not isinstance(statistics, Sequence):
        contract = f"a sequence, or {QUICK!r}"
        fail("statistics", contract, statistics, error=TypeError)
    if not statistics:
        fail("statistics", "at least one", statistics)
    chosen: list[object] = []
    for statistic in statistics:
        if isinstance(statistic, str):
            check_choice("statistics", statistic, list(STATISTICS))
            chosen.append(statistic)
        else:
            chosen += read_statistics([statistic])
    names = names_of(chosen)
    if len(set(names)) < len(names):
        hint = "Give HeadStatistic objects a name."
        fail("statistics", "of different names", Got(names), hint=hint)
    return chosen


class LayerProbe:
    """Runs the wanted statistics on one captured layer."""

    def __init__(
        self,
        statistics: Sequence[object],
        ids: NDArray[Any] | None,
        n_permutations: int,
        n_redraws: int | None,
        seed: int,
    ) -> None:
        built_in = [STATISTICS[x].measure for x in statistics if isinstance(x, str)]
        self.uses_kernel = KERNEL in built_in
        self.uses_covariance = COVARIANCE in built_in
        self.uses_affinity = AFFINITY in built_in
        self.of_heads = [
            x
            for x in statistics
            if not isinstance(x, str) or callable(STATISTICS[x].measure)
        ]
        self.ids, self.seed = ids, seed
        self.n_permutations, self.n_redraws = n_permutations, n_redraws

    def __call__(self, captured: "CapturedLayer") -> list[ProbeResult]:
        """Return the results of all probes, without untrained models."""
        options: dict[str, Any] = {
            "n_permutations": self.n_permutations,
            "seed": self.seed,
        }
        results = []
        # Probes report a unit per head and sequence; all parts add up to one layer.
        units = captured.n_heads * len(captured.mask)
        with weighing((0.6 if self.of_heads else 1.0) / units):
            if self.uses_kernel:
                results.append(self._kernel(captured, options))
        with weighing((0.4 if self.uses_kernel else 1.0) / units):
            if self.of_heads:
                results.append(self._heads(captured))
        with reporting(lambda units: None):
            if self.uses_covariance and _has_matrices(captured):
                arrays = _arrays(captured, _COVARIANCE_ARRAYS)
                results.append(covariance_probe(**arrays, **options))
        if self.uses_affinity and captured.w_output is not None:
            matrices = np.asarray(captured.w_output, dtype=np.float64)
            affinity = subspace_affinity(matrices, self.n_permutations, self.seed)
            if affinity is not None:
                results.append(ProbeResult(AFFINITY, {affinity.name: affinity}))
        if not self.uses_kernel and not self.of_heads:
            advance(1.0)
        return results

    def of_untrained(self, captured: "CapturedLayer") -> dict[str, FloatArray]:
        """Return the statistics of an untrained model's layer; each number is a draw.

        The probes run side by side: one of them has work for one thread only.
        """
        tasks: list[Callable[[], dict[str, FloatArray]]] = []
        if self.uses_kernel:
            tasks.append(
                lambda: untrained_kernel_statistics(
                    _arrays(captured, _KERNEL_ARRAYS),
                    scale=captured.scale,
                    is_causal=_hides_the_future(captured),
                    standardize=False,
                )
            )
        if self.uses_covariance and _has_matrices(captured):
            arrays = _arrays(captured, _COVARIANCE_ARRAYS)
            has_outputs = captured.w_value is not None and captured.w_output is not None
            tasks.append(
                lambda: untrained_covariance_statistics(arrays, has_outputs=has_outputs)
            )
        if self.of_heads:
            of_heads = [as_statistic(x) for x in self.of_heads]
            inputs = head_arrays(captured, self.ids)
            tasks.append(
                lambda: untrained_head_statistics(inputs, of_heads, captured.layer)
            )
        by_task: list[dict[str, FloatArray]] = [{} for _ in tasks]
        count = n_threads()

        def work(i: int) -> None:
            # Threads do not inherit the number of threads.
            with threads(count):
                by_task[i] = tasks[i]()

        with threadpool_limits(1, user_api="blas"), RunPool(len(tasks)) as pool:
            pool.each(work)
        return {
            name: draws
            for draws_of_task in by_task
            for name, draws in draws_of_task.items()
        }

    def observe(self, captured: "CapturedLayer") -> dict[str, FloatArray]:
        """Return the statistics of a layer by name, without nulls, (heads,) each."""
        return {
            name: statistic.observed
            for result in self(captured)
            for name, statistic in result.statistics.items()
        }

    def _kernel(
        self, captured: "CapturedLayer", options: dict[str, Any]
    ) -> ProbeResult:
        return kernel_pca_probe(
            **_arrays(captured, _KERNEL_ARRAYS),
            outputs=None if captured.bias is not None else captured.outputs,
            is_causal=_hides_the_future(captured),
            scale=captured.scale,
            n_redraws=self.n_redraws,
            **options,
        )

    def _heads(self, captured: "CapturedLayer") -> ProbeResult:
        return head_probe(
            **head_arrays(captured, self.ids),
            statistics=self.of_heads,
            n_draws=self.n_permutations,
            layer=captured.layer,
            seed=self.seed,
        )


def _arrays(captured: "CapturedLayer", names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(captured, name) for name in names}


def _has_matrices(captured: "CapturedLayer") -> bool:
    return captured.w_query is not None and captured.tokens is not None


def head_arrays(captured: "CapturedLayer", ids: NDArray[Any] | None) -> dict[str, Any]:
    arrays = _arrays(captured, _HEAD_ARRAYS)
    matrices = {name: getattr(captured, f"w_{name}") for name in _MATRICES}
    present = {name: matrix for name, matrix in matrices.items() if matrix is not None}
    shape = captured.keys.shape
    return arrays | {
        "matrices": present,
        "token_ids": None if ids is None or ids.shape != shape[::2] else ids,
        "is_causal": captured.is_causal,
        "scale": captured.scale,
    }


def _hides_the_future(captured: "CapturedLayer") -> bool:
    if captured.bias is None:
        return captured.is_causal
    n = captured.mask.shape[1]
    return bool(np.isneginf(captured.bias[..., ~np.tri(n, dtype=bool)]).all())


def without_tokens(captured: "CapturedLayer", ignored: Any) -> "CapturedLayer":
    """Return a layer in which some tokens count as padding.

    `ignored` is ``"first"``, ``"outliers"``, positions, a boolean array (sequences,
    tokens), or None for no token.
    """
    if ignored is None:
        return captured
    mask = captured.mask.copy()
    if isinstance(ignored, str):
        check_choice("ignore_tokens", ignored, ("first", "outliers"))
    if isinstance(ignored, str) and ignored == "first":
        mask[np.arange(len(mask)), mask.argmax(axis=1)] = False
    elif isinstance(ignored, str):
        rows = captured.keys.swapaxes(1, 2).reshape(*mask.shape, -1)
        norms = np.linalg.norm(
            rows if captured.tokens is None else captured.tokens, axis=-1
        )
        for row, lengths in zip(mask, norms, strict=True):
            row &= lengths <= _OUTLIER * np.median(lengths[row])
    else:
        places = as_number_array("ignore_tokens", ignored)
        if places.dtype == bool and places.shape == mask.shape:
            mask &= ~places
        elif places.dtype.kind == "i" and places.ndim == 1:
            n = mask.shape[1]
            if len(places) and not -n <= places.min() <= places.max() < n:
                contract = f"positions from {-n} to {n - 1}"
                fail("ignore_tokens", contract, ignored)
            mask[:, places] = False
        else:
            contract = f"'first', 'outliers', positions, or booleans of {mask.shape}"
            fail("ignore_tokens", contract, ignored, error=TypeError)
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
        captured: "CapturedLayer",
        measure: "Callable[[CapturedLayer], Mapping[str, FloatArray]]",
    ) -> None:
        """Measure a layer on every set; sets that leave too few tokens end here."""
        for name in list(self._found):
            part = without_tokens(captured, self._sets[name])
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
        # After an interruption there may be one layer more than were finished.
        n_layers = len(next(iter(whole.values())))
        stacked = {}
        for name, every in self._found.items():
            layers = every[:n_layers]
            if all(layer is None for layer in layers):
                continue
            numbers = {statistic: values.copy() for statistic, values in whole.items()}
            for index, layer in enumerate(layers):
                for statistic, values in (layer or {}).items():
                    if statistic in numbers:
                        numbers[statistic][index, : len(values)] = values
            stacked[name] = numbers
        return stacked


# From this number of sequences on, costly nulls have the fewest draws.
_SEQUENCES = 64
# All statistics but those of kernel PCA, which take most of the time.
QUICK: Final = "quick"
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
    keep_partial: bool = False,
) -> ModelProbe:
    """Run probes on captured layers.

    `untrained` are captures of other models, or functions that make one, so that one
    model at a time is in memory.
    With `on_other_tokens` the observed statistics are also measured on other sets of
    tokens: without sinks and outliers, or with all if `ignore_tokens` is given.
    With `keep_partial` an interruption ends the work: the layers that are finished are
    returned, with a note.
    """
    ids = getattr(capture, "token_ids", None)
    chosen = read_names(statistics)
    if (statistics is None or statistics == QUICK) and ids is None:
        chosen = [x for x in chosen if not STATISTICS[str(x)].needs_token_ids]
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
    copies: list[list[Mapping[str, FloatArray]]] = []
    with bar, _kept(by_layer, notes, n_layers) if keep_partial else nullcontext():
        for captured in capture:
            with reporting(lambda units: None):
                other_tokens.add(captured, plain.observe)
            captured = without_tokens(captured, ignore_tokens)
            run = LayerProbe(
                chosen, ids, n_permutations, n_redraws, seed_of_layer(captured.layer)
            )
            results = run(captured)
            layers.append(captured.layer)
            names.append(captured.name)
            by_layer.append({k: s for r in results for k, s in r.statistics.items()})
            notes += [n for n in _remarks(captured, by_layer[-1]) if n not in notes]
            used["n_sequences"] = len(captured.mask)
            for result in results:
                used["n_redraws"] = result.settings.get("n_redraws", used["n_redraws"])
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


@contextmanager
def _kept(by_layer: list[Any], notes: list[str], n_layers: int) -> Iterator[None]:
    """Turn an interruption into a note, if a layer is finished."""
    try:
        yield
    except KeyboardInterrupt:
        if not by_layer:
            raise
        notes.append(
            f"Interrupted: {len(by_layer)} of {n_layers} layers were finished, and "
            "untrained copies may be missing."
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
