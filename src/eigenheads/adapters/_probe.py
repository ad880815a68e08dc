"""Run the probes on every head of a model."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from torch import nn

from eigenheads._checks import check_choice, check_count, fail
from eigenheads._parallel import advance, progress_bar, reporting, weighing
from eigenheads.adapters._batch import read_batch
from eigenheads.adapters._capture import CapturedLayer, capture_heads
from eigenheads.adapters._layers import find_attention_layers, select_layers
from eigenheads.adapters._untrained_copy import untrained_copy
from eigenheads.probes import (
    ModelProbe,
    ProbeResult,
    Statistic,
    covariance_probe,
    kernel_pca_probe,
    q_values,
)
from eigenheads.probes._result import stack_layers

_OWNER = "probe_model"
# Heads with a q-value up to this are marked in the report.
_LEVEL = 0.05
_MAX_BYTES = 2**30
# Arrays of a captured layer that each probe takes.
_KERNEL_ARRAYS = ("queries", "keys", "values", "tokens", "mask")
_COVARIANCE_ARRAYS = ("tokens", "w_query", "w_key", "w_value", "w_output", "mask")
PROBES = ("kernel_pca_probe", "covariance_probe")


class Capture:
    """Captured layers of a model on a batch, to be used several times.

    Iteration yields one :class:`CapturedLayer` per layer, in order. The layers are kept
    in memory if all of them fit into `max_bytes`; otherwise the model runs again on
    each iteration.

    Parameters
    ----------
    model, batch, layers, batch_size, max_bytes
        As in :func:`capture_heads`.

    Attributes
    ----------
    model
        The model.
    layers
        Index of each captured layer in the model.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> capture = Capture(layer, torch.randn(3, 5, 8))
    >>> capture.layers, [one.weights.shape for one in capture]
    ([0], [(3, 2, 5, 5)])
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Any,
        *,
        layers: Sequence[int] | int | None = None,
        batch_size: int | None = 8,
        max_bytes: int = _MAX_BYTES,
    ) -> None:
        found = find_attention_layers(model, owner="Capture")
        self.model = model
        self.layers = [
            layer.index for layer in select_layers(found, layers, owner="Capture")
        ]
        self._batch, self._batch_size, self._max_bytes = batch, batch_size, max_bytes
        self._kept: list[CapturedLayer] = []

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[CapturedLayer]:
        if len(self._kept) == len(self):
            return iter(self._kept)
        return self._run()

    def _run(self) -> Iterator[CapturedLayer]:
        kept: list[CapturedLayer] = []
        size = 0
        for captured in capture_heads(
            self.model,
            self._batch,
            layers=self.layers,
            batch_size=self._batch_size,
            max_bytes=self._max_bytes,
        ):
            size += captured.nbytes
            if size <= self._max_bytes:
                kept.append(captured)
            else:
                kept.clear()
            yield captured
        self._kept = kept if len(kept) == len(self) else []


def probe_model(  # noqa: PLR0913 -- keyword-only, each with a default
    model: nn.Module,
    batch: Any,
    *,
    layers: Sequence[int] | int | None = None,
    n_permutations: int = 200,
    n_redraws: int | None = None,
    n_untrained: int = 4,
    untrained: Sequence[nn.Module] | None = None,
    false_discovery: str = "bh",
    batch_size: int | None = 8,
    seed: int = 0,
    progress: bool = False,
) -> ModelProbe:
    """Measure every head of a model and compare with null distributions.

    Each layer is captured (:func:`capture_heads`) and passed to
    :func:`eigenheads.probes.kernel_pca_probe` and
    :func:`eigenheads.probes.covariance_probe`.

    Parameters
    ----------
    model, batch, layers, batch_size
        As in :func:`capture_heads`. Sequences of fewer than three tokens are left out.
    n_permutations, n_redraws
        Draws of each null; nulls that redraw values or keys have `n_redraws`, by
        default a fifth. See :func:`eigenheads.probes.kernel_pca_probe`.
    n_untrained
        Number of untrained copies of the model that give the null ``untrained``; 0 for
        none. With `m` copies of `h` heads per layer, no p-value is below 1/(mh + 1), or
        twice that for a two-sided statistic. Heads that share what a statistic depends
        on (the tokens, or grouped keys and values) count once.
    untrained
        The untrained models themselves, for architectures that cannot be initialised
        again automatically.
    false_discovery
        ``"bh"`` or ``"by"``, as in :func:`eigenheads.probes.q_values`.
    seed
        Seed of the nulls and of the untrained models.
    progress
        Whether to show a bar with the remaining time on standard error.

    Returns
    -------
    probe
        Arrays (layers, heads) by statistic and null.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    >>> found = probe_model(layer, torch.randn(2, 6, 8), n_permutations=19)
    >>> found["linear_cka"].observed.shape
    (1, 2)
    """
    n_permutations = check_count(
        "n_permutations", n_permutations, owner=_OWNER, minimum=0
    )
    if n_redraws is not None:
        n_redraws = check_count("n_redraws", n_redraws, owner=_OWNER, minimum=0)
    seed = check_count("seed", seed, owner=_OWNER, minimum=0, maximum=2**32 - 1)
    check_choice("false_discovery", false_discovery, ("bh", "by"), owner=_OWNER)
    attention = find_attention_layers(model, owner=_OWNER)
    select_layers(attention, layers, owner=_OWNER)
    read_batch(model, batch, owner=_OWNER)
    copies, notes = _untrained_models(model, untrained, n_untrained, seed)
    # All models share the memory limit.
    each = _MAX_BYTES // (1 + len(copies))
    options: dict[str, Any] = {"batch_size": batch_size, "max_bytes": each}
    capture, *others = [
        Capture(one, batch, layers=layers, **options) for one in (model, *copies)
    ]
    found = probe_captured(
        capture,
        others,
        n_permutations=n_permutations,
        n_redraws=n_redraws,
        seed_of_layer=lambda layer: _derived(seed, layer, 0),
        settings={
            "model": type(model).__name__,
            "layers": capture.layers,
            "n_untrained": len(copies),
            "false_discovery": false_discovery,
            "seed": seed,
        },
        progress=progress,
    )
    notes += found.notes
    notes += _few_draws(found.statistics, false_discovery)
    return ModelProbe(
        found.layers, found.names, found.statistics, found.settings, notes
    )


def probe_captured(
    capture: Iterable[CapturedLayer],
    untrained: Sequence[Iterable[CapturedLayer]],
    *,
    seed_of_layer: Callable[[int], int],
    n_permutations: int = 200,
    n_redraws: int | None = None,
    probes: Sequence[str] = PROBES,
    settings: dict[str, Any] | None = None,
    progress: bool = False,
) -> ModelProbe:
    """Run probes on captured layers; `untrained` are captures of other models."""
    layers: list[int] = []
    names: list[str] = []
    found: list[dict[str, Statistic]] = []
    notes: list[str] = []
    used: dict[str, Any] = {"n_permutations": n_permutations, "n_redraws": n_redraws}
    n_layers = len(capture) if isinstance(capture, Capture | list) else 1
    bar = progress_bar(n_layers, description="layers") if progress else nullcontext()
    with bar:
        for captured, *alike in zip(capture, *untrained, strict=True):
            layers.append(captured.layer)
            names.append(captured.name)
            notes += [note for note in _remarks(captured) if note not in notes]
            results = _probe_layer(
                captured,
                alike,
                probes,
                n_permutations,
                n_redraws,
                seed_of_layer(captured.layer),
            )
            found.append({k: s for r in results for k, s in r.statistics.items()})
            used |= {
                "n_sequences": len(captured.mask),
                "n_redraws": results[0].settings.get("n_redraws", n_redraws),
            }
    return ModelProbe(
        layers, names, stack_layers(found), {**(settings or {}), **used}, notes
    )


def _untrained_models(
    model: nn.Module, given: Sequence[nn.Module] | None, count: int, seed: int
) -> tuple[list[nn.Module], list[str]]:
    """Return untrained models, or a note with the reason why there are none."""
    if given is not None:
        if not all(isinstance(one, nn.Module) for one in given):
            fail("untrained", "a sequence of models", given, owner=_OWNER)
        return list(given), []
    count = check_count("n_untrained", count, owner=_OWNER, minimum=0)
    copies: list[nn.Module] = []
    for index in range(count):
        # Purpose 1, so that no copy shares its seed with the nulls of a layer.
        copy = untrained_copy(model, _derived(seed, index, 1))
        if isinstance(copy, str):
            return [], [
                f"The null of untrained models is not available: {copy}. "
                "Pass such models as `untrained`."
            ]
        copies.append(copy)
    return copies, []


def _probe_layer(
    captured: CapturedLayer,
    alike: Sequence[CapturedLayer],
    probes: Sequence[str],
    n_permutations: int,
    n_redraws: int | None,
    seed: int,
) -> list[ProbeResult]:
    options: dict[str, Any] = {"n_permutations": n_permutations, "seed": seed}
    results = []
    if "kernel_pca_probe" in probes:
        # This probe reports a unit per head and sequence: 0.9 of a layer in all.
        units = captured.n_heads * len(captured.mask) * (1 + len(alike))
        with weighing(0.9 / units):
            kernel = kernel_pca_probe(
                **_arrays(captured, _KERNEL_ARRAYS),
                outputs=None if captured.bias is not None else captured.outputs,
                is_causal=_hides_the_future(captured),
                scale=captured.scale,
                untrained=[_arrays(one, _KERNEL_ARRAYS) for one in alike] or None,
                n_redraws=n_redraws,
                **options,
            )
        results.append(kernel)
    if "covariance_probe" in probes:
        with reporting(lambda units: None):
            covariance = covariance_probe(
                **_arrays(captured, _COVARIANCE_ARRAYS),
                untrained=[_arrays(one, _COVARIANCE_ARRAYS) for one in alike] or None,
                **options,
            )
        advance(0.1)
        results.append(covariance)
    return results


def _arrays(captured: CapturedLayer, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(captured, name) for name in names}


def _hides_the_future(captured: CapturedLayer) -> bool:
    if captured.bias is None:
        return captured.is_causal
    n = captured.mask.shape[1]
    return bool(np.isneginf(captured.bias[..., ~np.tri(n, dtype=bool)]).all())


def _remarks(captured: CapturedLayer) -> list[str]:
    """Return notes on a layer: what its numbers cannot show."""
    remarks = []
    if captured.bias is not None:
        remarks.append(
            f"Layer {captured.layer} masks or biases its scores beyond padding and "
            "causality; the kernel-PCA statistics leave that out."
        )
    lengths, width = captured.mask.sum(axis=1), captured.values.shape[-1]
    # Centred, n tokens have n - 1 directions, which `width` columns span.
    n_short = int(np.sum(lengths <= width + 1))
    if n_short:
        remarks.append(
            f"{n_short} of {len(lengths)} sequences have at most {width + 1} tokens. "
            f"There, {width} columns of values span all directions, and "
            "captured_variance is 1 for almost any values. Use longer sequences."
        )
    return remarks


def _few_draws(statistics: Mapping[str, Statistic], method: str) -> list[str]:
    """Return a note if one head alone cannot be found with the costly nulls."""
    redrawn = [one for one in statistics.values() if "random_values" in one.nulls]
    if not redrawn:
        return []
    n_heads = int(np.isfinite(redrawn[0].observed).sum())
    n_draws = redrawn[0].nulls["random_values"].shape[-1]
    # If all heads had the smallest p-value, their q-value would be `together`.
    together = float(q_values(np.full(n_heads, 1 / (n_draws + 1)), method=method)[0])
    needed = math.ceil(n_heads * together / _LEVEL)
    if not 1 < needed <= n_heads:
        return []
    return [
        f"Nulls that redraw values or keys have {n_draws} draws: with {n_heads} heads, "
        f"q <= {_LEVEL} requires {needed} heads beyond all draws (more if two-sided). "
        "Look at the p-values as well, or raise `n_redraws` (--redraws)."
    ]


def _derived(seed: int, index: int, purpose: int) -> int:
    return int(np.random.SeedSequence([seed, purpose, index]).generate_state(1)[0])
