"""All statistics of one captured layer, whichever probe measures them."""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from eigenheads._parallel import (
    RunPool,
    advance,
    n_threads,
    reporting,
    threads,
    weighing,
)
from eigenheads._typing import FloatArray
from eigenheads.adapters._capture import CapturedLayer
from eigenheads.probes import (
    HeadStatistic,
    ProbeResult,
    covariance_probe,
    head_probe,
    kernel_pca_probe,
)
from eigenheads.probes._covariance import (
    subspace_affinity,
    untrained_covariance_statistics,
)
from eigenheads.probes._head_probe import untrained_head_statistics
from eigenheads.probes._kernel import untrained_kernel_statistics
from eigenheads.probes._statistics import (
    AFFINITY,
    COVARIANCE,
    KERNEL,
    STATISTICS,
    as_statistic,
)

# Arrays of a captured layer that each probe takes.
_KERNEL_ARRAYS = ("queries", "keys", "values", "tokens", "mask")
_COVARIANCE_ARRAYS = ("tokens", "w_query", "w_key", "w_value", "w_output", "mask")
_HEAD_ARRAYS = ("queries", "keys", "values", "tokens", "mask", "bias")
_MATRICES = ("query", "key", "value", "output")


def names_of(statistics: Sequence[object]) -> list[str]:
    """Return the names of statistics that are names or objects."""
    return [x.name if isinstance(x, HeadStatistic) else str(x) for x in statistics]


class LayerProbe:
    """Runs the wanted statistics on one captured layer."""

    def __init__(
        self,
        wanted: Sequence[object],
        ids: NDArray[Any] | None,
        n_permutations: int,
        n_redraws: int | None,
        seed: int,
    ) -> None:
        built_in = [STATISTICS[x].measure for x in wanted if isinstance(x, str)]
        self.uses_kernel = KERNEL in built_in
        self.uses_covariance = COVARIANCE in built_in
        self.uses_affinity = AFFINITY in built_in
        self.of_heads = [
            x
            for x in wanted
            if not isinstance(x, str) or callable(STATISTICS[x].measure)
        ]
        self.ids, self.seed = ids, seed
        self.n_permutations, self.n_redraws = n_permutations, n_redraws

    def __call__(self, captured: CapturedLayer) -> list[ProbeResult]:
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
            found = subspace_affinity(matrices, self.n_permutations, self.seed)
            if found is not None:
                results.append(ProbeResult(AFFINITY, {found.name: found}))
        if not self.uses_kernel and not self.of_heads:
            advance(1.0)
        return results

    def of_untrained(self, captured: CapturedLayer) -> dict[str, FloatArray]:
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
            wanted = [as_statistic(one, owner="probe_model") for one in self.of_heads]
            given = head_arrays(captured, self.ids)
            tasks.append(
                lambda: untrained_head_statistics(given, wanted, captured.layer)
            )
        found: list[dict[str, FloatArray]] = [{} for _ in tasks]
        count = n_threads()

        def work(i: int) -> None:
            # Threads do not inherit the number of threads.
            with threads(count):
                found[i] = tasks[i]()

        with threadpool_limits(1, user_api="blas"), RunPool(len(tasks)) as pool:
            pool.each(work)
        return {name: draws for one in found for name, draws in one.items()}

    def split(self) -> tuple["LayerProbe", "LayerProbe"]:
        """Return the parts whose time grows with heads and sequences, and the rest."""
        by_head, by_layer = copy(self), copy(self)
        by_head.uses_covariance = by_head.uses_affinity = False
        by_layer.uses_kernel, by_layer.of_heads = False, []
        return by_head, by_layer

    def with_draws(self, n_permutations: int) -> "LayerProbe":
        """Return the same with another number of draws, at most as many costly ones."""
        other = copy(self)
        other.n_permutations = n_permutations
        if self.n_redraws is not None:
            other.n_redraws = min(self.n_redraws, n_permutations)
        return other

    def observe(self, captured: CapturedLayer) -> dict[str, FloatArray]:
        """Return the statistics of a layer by name, without nulls, (heads,) each."""
        return {
            name: one.observed
            for result in self(captured)
            for name, one in result.statistics.items()
        }

    def _kernel(self, captured: CapturedLayer, options: dict[str, Any]) -> ProbeResult:
        return kernel_pca_probe(
            **_arrays(captured, _KERNEL_ARRAYS),
            outputs=None if captured.bias is not None else captured.outputs,
            is_causal=_hides_the_future(captured),
            scale=captured.scale,
            n_redraws=self.n_redraws,
            **options,
        )

    def _heads(self, captured: CapturedLayer) -> ProbeResult:
        return head_probe(
            **head_arrays(captured, self.ids),
            statistics=self.of_heads,
            n_draws=self.n_permutations,
            layer=captured.layer,
            seed=self.seed,
        )


def _arrays(captured: CapturedLayer, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(captured, name) for name in names}


def _has_matrices(captured: CapturedLayer) -> bool:
    return captured.w_query is not None and captured.tokens is not None


def head_arrays(captured: CapturedLayer, ids: NDArray[Any] | None) -> dict[str, Any]:
    arrays = _arrays(captured, _HEAD_ARRAYS)
    matrices = {name: getattr(captured, f"w_{name}") for name in _MATRICES}
    known = {name: matrix for name, matrix in matrices.items() if matrix is not None}
    shape = captured.keys.shape
    return arrays | {
        "matrices": known,
        "token_ids": None if ids is None or ids.shape != shape[::2] else ids,
        "is_causal": captured.is_causal,
        "scale": captured.scale,
    }


def _hides_the_future(captured: CapturedLayer) -> bool:
    if captured.bias is None:
        return captured.is_causal
    n = captured.mask.shape[1]
    return bool(np.isneginf(captured.bias[..., ~np.tri(n, dtype=bool)]).all())
