"""Every head of a model, questioned."""

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from torch import nn

from eigenheads._checks import check_choice, check_count, fail
from eigenheads._parallel import advance, progress_bar, reporting, weighing
from eigenheads.adapters._batch import read_batch
from eigenheads.adapters._capture import CapturedLayer, capture_heads
from eigenheads.adapters._layers import find_attention_layers, select_layers
from eigenheads.adapters._model_probe import ModelProbe, with_q_values
from eigenheads.adapters._untrained_copy import untrained_copy
from eigenheads.probes import (
    ProbeResult,
    covariance_probe,
    kernel_pca_probe,
    q_values,
)

_OWNER = "probe_model"
# Of q-values, as the report marks them.
_LEVEL = 0.05
_MAX_BYTES = 2**30
# What the probes take of a captured layer.
_OF_KERNEL = ("queries", "keys", "values", "tokens", "mask")
_OF_COVARIANCE = ("tokens", "w_query", "w_key", "w_value", "w_output", "mask")


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
    """Ask every head of a model what it computes, and compare with chance.

    Each layer is captured (:func:`capture_heads`) and given to
    :func:`eigenheads.probes.kernel_pca_probe` and
    :func:`eigenheads.probes.covariance_probe`.

    Parameters
    ----------
    model, batch, layers, batch_size
        As in :func:`capture_heads`. Sequences of three tokens and more count.
    n_permutations, n_redraws
        Draws of each null; those that redraw values or keys have `n_redraws`, a fifth
        unless given. See :func:`eigenheads.probes.kernel_pca_probe`.
    n_untrained
        How many untrained models of the same architecture give the null
        ``untrained``; 0 for none. With `m` models of `h` heads a layer, no p-value is
        below 1/(mh + 1), or twice that if the statistic is two-sided; heads that share
        what a statistic sees (the tokens, or grouped keys and values) count once.
    untrained
        These models themselves, for architectures that we cannot draw anew.
    false_discovery
        ``"bh"`` or ``"by"``, as in :func:`eigenheads.probes.q_values`.
    seed
        Seed of the nulls and of the untrained models.
    progress
        Whether to show a bar with the time left on standard error.

    Returns
    -------
    probe
        Rows by layer and head, with q-values over all heads.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    >>> found = probe_model(layer, torch.randn(2, 6, 8), n_permutations=19)
    >>> found.by_head("linear_cka").shape
    (1, 2)
    """
    n_permutations = check_count(
        "n_permutations", n_permutations, owner=_OWNER, minimum=0
    )
    if n_redraws is not None:
        n_redraws = check_count("n_redraws", n_redraws, owner=_OWNER, minimum=0)
    seed = check_count("seed", seed, owner=_OWNER, minimum=0, maximum=2**32 - 1)
    check_choice("false_discovery", false_discovery, ("bh", "by"), owner=_OWNER)
    found = find_attention_layers(model, owner=_OWNER)
    sites = select_layers(found, layers, owner=_OWNER)
    read = read_batch(model, batch, owner=_OWNER)
    twins, notes = _twins(model, untrained, n_untrained, seed)
    chosen = [site.index for site in sites]
    rows: list[dict[str, Any]] = []
    about: dict[str, str] = {}
    bar = progress_bar(len(sites), description="layers") if progress else nullcontext()
    with bar:
        for captured, *alike in _together(model, twins, batch, chosen, batch_size):
            notes += [n for n in _remarks(captured) if n not in notes]
            draws = n_permutations, n_redraws
            for result in _probe_layer(captured, alike, draws, seed):
                n_redraws = result.settings.get("n_redraws", n_redraws)
                about |= {s.name: s.about for s in result.statistics.values()}
                where = {"layer": captured.layer, "name": captured.name}
                rows += [
                    {**where, "probe": result.probe, **row}
                    for row in result.to_records()
                ]
    notes += _few_draws(rows, false_discovery)
    settings = {
        "model": type(model).__name__,
        "layers": chosen,
        "n_sequences": read.n_rows,
        "n_permutations": n_permutations,
        "n_redraws": n_redraws,
        "n_untrained": len(twins),
        "false_discovery": false_discovery,
        "seed": seed,
    }
    return ModelProbe(
        with_q_values(rows, method=false_discovery), about, settings, notes
    )


def _twins(
    model: nn.Module, given: Sequence[nn.Module] | None, count: int, seed: int
) -> tuple[list[nn.Module], list[str]]:
    """Return untrained models, or a note that says why there are none."""
    if given is not None:
        if not all(isinstance(twin, nn.Module) for twin in given):
            fail("untrained", "a sequence of models", given, owner=_OWNER)
        return list(given), []
    count = check_count("n_untrained", count, owner=_OWNER, minimum=0)
    twins: list[nn.Module] = []
    for index in range(count):
        # Far from the seeds of the layers' nulls.
        twin = untrained_copy(model, _derived(seed, index, 1))
        if isinstance(twin, str):
            return [], [
                f"The null of untrained models is not available: {twin}. "
                "Pass such models as `untrained`."
            ]
        twins.append(twin)
    return twins, []


def _together(
    model: nn.Module,
    twins: Sequence[nn.Module],
    batch: Any,
    layers: Sequence[int],
    batch_size: int | None,
) -> Iterator[tuple[CapturedLayer, ...]]:
    """Yield each layer with the same layer of the untrained models."""
    each = _MAX_BYTES // (1 + len(twins))
    return zip(
        *(
            capture_heads(
                one, batch, layers=layers, batch_size=batch_size, max_bytes=each
            )
            for one in (model, *twins)
        ),
        strict=True,
    )


def _probe_layer(
    captured: CapturedLayer,
    alike: Sequence[CapturedLayer],
    draws: tuple[int, int | None],
    seed: int,
) -> list[ProbeResult]:
    options: dict[str, Any] = {
        "n_permutations": draws[0],
        "seed": _derived(seed, captured.layer, 0),
    }
    units = captured.n_heads * len(captured.mask) * (1 + len(alike))
    with weighing(0.9 / units):
        kernel = kernel_pca_probe(
            **_parts(captured, _OF_KERNEL),
            outputs=None if captured.bias is not None else captured.outputs,
            is_causal=_hides_the_future(captured),
            scale=captured.scale,
            untrained=[_parts(one, _OF_KERNEL) for one in alike] or None,
            n_redraws=draws[1],
            **options,
        )
    with reporting(lambda units: None):
        covariance = covariance_probe(
            **_parts(captured, _OF_COVARIANCE),
            untrained=[_parts(one, _OF_COVARIANCE) for one in alike] or None,
            **options,
        )
    advance(0.1)
    return [kernel, covariance]


def _parts(captured: CapturedLayer, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(captured, name) for name in names}


def _hides_the_future(captured: CapturedLayer) -> bool:
    if captured.bias is None:
        return captured.is_causal
    n = captured.mask.shape[1]
    return bool(np.isneginf(captured.bias[..., ~np.tri(n, dtype=bool)]).all())


def _remarks(captured: CapturedLayer) -> list[str]:
    """Return what a reader must know of a layer's numbers."""
    remarks = []
    if captured.bias is not None:
        remarks.append(
            f"Layer {captured.layer} masks or biases its scores beyond padding and "
            "causality; the kernel-PCA reading leaves that out."
        )
    lengths, width = captured.mask.sum(axis=1), captured.values.shape[-1]
    # Centred, n tokens have n - 1 directions, which `width` columns span.
    n_short = int(np.sum(lengths <= width + 1))
    if n_short:
        remarks.append(
            f"{n_short} of {len(lengths)} sequences have at most {width + 1} tokens: "
            f"there {width} columns of values span all directions, and "
            "captured_variance is 1 for almost any. Longer sequences would tell."
        )
    return remarks


def _few_draws(rows: Sequence[dict[str, Any]], method: str) -> list[str]:
    """Return how many heads have to stand out together, if one alone cannot."""
    redrawn = [row for row in rows if row["null"] == "random_values"]
    if not redrawn:
        return []
    n_heads = len({(row["layer"], row["head"]) for row in redrawn})
    n_draws = int(redrawn[0]["n_draws"])
    least = 1 / (n_draws + 1)
    # If every head had the least p-value, its q-value were that of `n_heads` of them.
    together = float(q_values(np.full(n_heads, least), method=method)[0])
    needed = math.ceil(n_heads * together / _LEVEL)
    if not 1 < needed <= n_heads:
        return []
    return [
        f"Nulls that redraw values or keys have {n_draws} draws: of {n_heads} heads "
        f"none has a q-value of {_LEVEL} unless {needed} are beyond all draws (more, "
        "if two-sided). Look at p-values, too, or raise `n_redraws` (--redraws)."
    ]


def _derived(seed: int, index: int, purpose: int) -> int:
    return int(np.random.SeedSequence([seed, purpose, index]).generate_state(1)[0])
