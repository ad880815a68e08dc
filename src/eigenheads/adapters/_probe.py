"""Run statistics with null distributions on every head of a model."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from torch import nn

from eigenheads._checks import (
    Got,
    check_choice,
    check_count,
    check_flag,
    check_items,
    fail,
)
from eigenheads._parallel import reporting, threads
from eigenheads._typing import FloatArray
from eigenheads.adapters._capture import CapturedLayer
from eigenheads.adapters._layer_probe import LayerProbe, names_of
from eigenheads.adapters._probe_progress import ProbeProgress
from eigenheads.adapters._sources import (
    Capture,
    as_capture,
    capture_model,
    n_sequences,
    tokenize_texts,
)
from eigenheads.adapters._token_sets import (
    WITH_ALL,
    WITHOUT,
    Contrasts,
    without_tokens,
)
from eigenheads.adapters._untrained_copy import untrained_copy
from eigenheads.probes import (
    ModelProbe,
    Statistic,
)
from eigenheads.probes._head_probe import read_statistics
from eigenheads.probes._kernel import default_redraws
from eigenheads.probes._result import stack_layers, with_untrained
from eigenheads.probes._statistics import STATISTICS

_OWNER = "probe_model"
_MAX_BYTES = 2**30
# From this number of sequences on, costly nulls have the fewest draws.
_SEQUENCES = 64


def probe_model(  # noqa: PLR0913 -- keyword-only, each with a default
    model: Any,
    batch: Any = None,
    *,
    statistics: Sequence[object] | None = None,
    texts: Sequence[str] | None = None,
    tokenizer: Any = None,
    ignore_tokens: Any = None,
    layers: Sequence[int] | int | None = None,
    n_permutations: int = 200,
    n_redraws: int | None = None,
    n_untrained: int = 8,
    untrained: Sequence[nn.Module] | None = None,
    false_discovery: str = "bh",
    batch_size: int | None = 8,
    seed: int = 0,
    jobs: int | None = None,
    progress: bool = False,
) -> ModelProbe:
    """Measure every head of a model and compare with null distributions.

    Parameters
    ----------
    model
        A model as in :func:`capture_heads`; or, without `batch`, a :class:`Capture`, a
        mapping of arrays or a sequence of them, one per layer (see
        :meth:`Capture.of_arrays`), or an activation cache of TransformerLens.
    batch, layers, batch_size
        As in :func:`capture_heads`. Sequences of fewer than three tokens are left out.
    statistics
        Names of built-in statistics, functions ``f(head) -> number`` (see
        :class:`eigenheads.probes.Head`), or
        :class:`eigenheads.probes.HeadStatistic` objects. None means all built-in ones:
        those of :func:`eigenheads.probes.kernel_pca_probe`,
        :func:`eigenheads.probes.covariance_probe` and
        :func:`eigenheads.probes.head_probe`, and ``subspace_affinity``.
    texts, tokenizer
        Texts instead of a batch; see :class:`Capture`.
    ignore_tokens
        Tokens to leave out, as if the model had not seen them: ``"first"``,
        ``"outliers"`` (input norm above three times the median of the sequence),
        positions, or a boolean array (sequences, tokens). Use it where a few tokens
        carry the norms or the attention. The result also has the observed statistics
        with all tokens; without `ignore_tokens`, those without the first token and
        without outliers (:attr:`eigenheads.probes.ModelProbe.contrasts`).
    n_permutations, n_redraws
        Draws of each null; nulls of the kernel-PCA probe that redraw values or keys
        have `n_redraws`. By default these are a fifth for 64 sequences or more, and
        at least 39; for fewer sequences there are more, at equal cost, up to twice
        `n_permutations`. With 39 draws a single head can stand out among any number of
        heads and statistics (see :meth:`eigenheads.probes.ModelProbe.q_value`).
    n_untrained
        Number of untrained copies of the model that give the null ``untrained``; 0 for
        none. With `m` copies of `h` heads per layer, no p-value is below 1/(mh + 1), or
        twice that for a two-sided statistic. Heads that share what a statistic depends
        on (the tokens, or grouped keys and values) count once.
    untrained
        The untrained models themselves, for architectures that cannot be initialised
        again automatically.
    false_discovery
        ``"bh"`` or ``"by"``, as in :func:`eigenheads.probes.q_values`. All heads and
        statistics with the same null are one family.
    seed
        Seed of the nulls and of the untrained models.
    jobs
        Number of threads; None means all cores.
    progress
        Whether to report an estimate of the time, then progress, on standard error.

    Returns
    -------
    probe
        Arrays (layers, heads) by statistic and null; NaN where a statistic is not
        defined, or overflows.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    >>> def on_itself(head):
    ...     return head.weights.diagonal()
    >>> found = probe_model(
    ...     layer, torch.randn(2, 6, 8), statistics=["linear_cka", on_itself]
    ... )
    >>> found["on_itself"].observed.shape
    (1, 2)
    """
    n_permutations = check_count(
        "n_permutations", n_permutations, owner=_OWNER, minimum=0
    )
    if n_redraws is not None:
        n_redraws = check_count("n_redraws", n_redraws, owner=_OWNER, minimum=0)
    seed = check_count("seed", seed, owner=_OWNER, minimum=0, maximum=2**32 - 1)
    check_choice("false_discovery", false_discovery, ("bh", "by"), owner=_OWNER)
    progress = check_flag("progress", progress, owner=_OWNER)
    check_count("jobs", 1 if jobs is None else jobs, owner=_OWNER)
    wanted = _read_names(statistics)
    _check_source(model, batch, texts, tokenizer)
    if isinstance(model, nn.Module):
        if texts is not None:
            batch = tokenize_texts(model, texts, tokenizer, owner=_OWNER)
        # At a time there are arrays of the model and of one copy.
        options: dict[str, Any] = {"layers": layers, "batch_size": batch_size}
        options |= {"max_bytes": _MAX_BYTES // 2, "owner": _OWNER}
        capture = capture_model(model, batch, **options)
        others: Sequence[Iterable[CapturedLayer] | Callable[[], Capture]]
        if untrained is None:
            others, notes = _untrained_copies(model, n_untrained, seed, batch, options)
        else:
            models = _check_untrained(untrained)
            # These are kept: all models share the memory limit.
            options["max_bytes"] //= max(1, len(models))
            others = [capture_model(x, batch, **options) for x in models]
            notes = []
    else:
        capture, others, notes = as_capture(model, owner=_OWNER), [], []
    if n_redraws is None:
        n_redraws = _default_redraws(n_permutations, n_sequences(capture))
    if statistics is None and capture.token_ids is None:
        wanted = [x for x in STATISTICS if not STATISTICS[x].needs_token_ids]
    contrasts = WITHOUT if ignore_tokens is None else WITH_ALL
    with threads(jobs) if jobs is not None else nullcontext():
        found = probe_captured(
            capture,
            others,
            statistics=wanted,
            ignore_tokens=ignore_tokens,
            # Without nulls, a quick look at the numbers is wanted.
            contrasts=contrasts if n_permutations else {},
            n_permutations=n_permutations,
            n_redraws=n_redraws,
            seed_of_layer=lambda layer: _derived(seed, layer, 0),
            progress=progress,
        )
    settings = {
        "model": type(model).__name__,
        "layers": list(capture.layers),
        "n_untrained": len(others),
        "false_discovery": false_discovery,
        "seed": seed,
        "ignore_tokens": None if ignore_tokens is None else str(ignore_tokens)[:80],
    }
    return replace(
        found,
        settings={**settings, **found.settings},
        notes=[*notes, *found.notes],
    )


def probe_captured(  # noqa: PLR0913 -- keyword-only but two
    capture: Iterable[CapturedLayer],
    untrained: Sequence[Iterable[CapturedLayer] | Callable[[], Capture]],
    *,
    seed_of_layer: Callable[[int], int],
    statistics: Sequence[object] | None = None,
    ignore_tokens: Any = None,
    contrasts: Mapping[str, Any] = MappingProxyType({}),
    n_permutations: int = 200,
    n_redraws: int | None = None,
    progress: bool = False,
) -> ModelProbe:
    """Run probes on captured layers.

    `untrained` are captures of other models, or functions that make one, so that one
    model at a time is in memory.
    `contrasts` are names and tokens to ignore: the observed statistics are also
    measured without these.
    """
    wanted = _read_names(statistics)
    compared = Contrasts(contrasts)
    ids = getattr(capture, "token_ids", None)
    plain = LayerProbe(wanted, ids, 0, None, 0)
    layers: list[int] = []
    names: list[str] = []
    found: list[dict[str, Statistic]] = []
    notes: list[str] = []
    used: dict[str, Any] = {"n_permutations": n_permutations, "n_redraws": n_redraws}
    n_layers = len(capture) if isinstance(capture, Capture | list) else 1
    reporter = ProbeProgress(n_layers, len(untrained)) if progress else None
    with reporter.bar() if reporter else nullcontext():
        for captured in capture:
            with reporting(lambda units: None):
                compared.add(captured, plain.observe, owner=_OWNER)
            captured = without_tokens(captured, ignore_tokens, owner=_OWNER)
            layers.append(captured.layer)
            names.append(captured.name)
            run = LayerProbe(
                wanted, ids, n_permutations, n_redraws, seed_of_layer(captured.layer)
            )
            if reporter and len(layers) == 1:
                reporter.estimate(run, captured)
            results = run(captured)
            found.append({k: s for r in results for k, s in r.statistics.items()})
            notes += [n for n in _remarks(captured, found[-1]) if n not in notes]
            used["n_sequences"] = len(captured.mask)
            for result in results:
                used["n_redraws"] = result.settings.get("n_redraws", used["n_redraws"])
            if reporter:
                reporter.layer_done()
        copies: list[list[Mapping[str, FloatArray]]] = [[] for _ in layers]
        for other in untrained:
            draws = _draws_of(other, plain, ignore_tokens)
            for own, one in zip(copies, draws, strict=True):
                own.append(one)
            if reporter:
                reporter.copy_done()
    found = [with_untrained(*pair) for pair in zip(found, copies, strict=True)]
    ordered = [
        {name: one[name] for name in names_of(wanted) if name in one} for one in found
    ]
    stacked = stack_layers(ordered)
    others = compared.stacked({name: one.observed for name, one in stacked.items()})
    return ModelProbe(layers, names, stacked, used, notes, others)


def _draws_of(
    untrained: Iterable[CapturedLayer] | Callable[[], Capture],
    plain: LayerProbe,
    ignore_tokens: Any,
) -> list[Mapping[str, FloatArray]]:
    """Return the numbers of an untrained model by layer and statistic."""
    # The capture ends with this function, and so does its memory.
    captured = untrained() if callable(untrained) else untrained
    with reporting(lambda units: None):
        return [
            plain.of_untrained(without_tokens(layer, ignore_tokens, owner=_OWNER))
            for layer in captured
        ]


def _check_source(model: Any, batch: Any, texts: Any, tokenizer: Any) -> None:
    """Raise if arguments exclude each other."""
    if texts is None and tokenizer is not None:
        fail("tokenizer", "left out without `texts`", tokenizer, owner=_OWNER)
    if isinstance(model, nn.Module):
        if (batch is None) == (texts is None):
            contract = "given, or `texts`, but not both"
            fail("batch", contract, Got(_kind(batch)), owner=_OWNER)
        return
    for name, given in (("batch", batch), ("texts", texts)):
        if given is not None:
            contract = "left out for heads that were captured before"
            fail(name, contract, Got(_kind(given)), owner=_OWNER)


def _kind(given: object) -> str:
    return "None" if given is None else type(given).__name__


def _read_names(statistics: Sequence[object] | None) -> list[object]:
    """Return statistics by name or object; names must be known and different."""
    if statistics is None:
        return list(STATISTICS)
    if isinstance(statistics, str) or not isinstance(statistics, Sequence):
        fail("statistics", "a sequence", statistics, owner=_OWNER, error=TypeError)
    if not statistics:
        fail("statistics", "at least one", statistics, owner=_OWNER)
    wanted: list[object] = []
    for one in statistics:
        if isinstance(one, str):
            check_choice("statistics", one, list(STATISTICS), owner=_OWNER)
            wanted.append(one)
        else:
            wanted += read_statistics([one], owner=_OWNER)
    names = names_of(wanted)
    if len(set(names)) < len(names):
        hint = "Give HeadStatistic objects a name."
        fail("statistics", "of different names", Got(names), owner=_OWNER, hint=hint)
    return wanted


def _check_untrained(given: Sequence[nn.Module]) -> list[nn.Module]:
    contract = "a sequence of models"
    models = check_items("untrained", given, contract, owner=_OWNER)
    if not all(isinstance(one, nn.Module) for one in models):
        fail("untrained", contract, given, owner=_OWNER)
    return models


def _untrained_copies(
    model: nn.Module, count: int, seed: int, batch: Any, options: Mapping[str, Any]
) -> tuple[list[Callable[[], Capture]], list[str]]:
    """Return functions that capture untrained copies, or a note why there are none."""
    count = check_count("n_untrained", count, owner=_OWNER, minimum=0)
    # Purpose 1, so that no copy shares its seed with the nulls of a layer.
    seeds = [_derived(seed, index, 1) for index in range(count)]

    # The first one shows whether copies can be made at all. It waits for its turn: no
    # more is in memory then than later, when a copy has captured arrays as well.
    waiting = [untrained_copy(model, seeds[0])] if seeds else []
    if waiting and isinstance(waiting[0], str):
        return [], [
            f"The null of untrained models is not available: {waiting[0]}. "
            "Pass such models as `untrained`."
        ]

    def capture(seed_of_copy: int) -> Capture:
        copy = waiting.pop() if waiting else untrained_copy(model, seed_of_copy)
        assert isinstance(copy, nn.Module)
        return capture_model(copy, batch, **options)

    return [partial(capture, seed_of_copy) for seed_of_copy in seeds], []


def _remarks(captured: CapturedLayer, found: Mapping[str, Statistic]) -> list[str]:
    """Return notes on a layer: what its numbers cannot show."""
    remarks = []
    if captured.bias is not None and "captured_variance" in found:
        remarks.append(
            f"Layer {captured.layer} masks or biases its scores beyond padding and "
            "causality; the kernel-PCA statistics leave that out."
        )
    lengths, width = captured.mask.sum(axis=1), captured.values.shape[-1]
    # Centred, n tokens have n - 1 directions, which `width` columns span.
    n_short = int(np.sum(lengths <= width + 1))
    if n_short and "captured_variance" in found:
        remarks.append(
            f"{n_short} of {len(lengths)} sequences have at most {width + 1} tokens. "
            f"There, {width} columns of values span all directions, and "
            "captured_variance is 1 for almost any values. Use longer sequences."
        )
    for name, entry in STATISTICS.items():
        if not entry.needs_token_ids or name not in found:
            continue
        if np.isnan(found[name].observed).all():
            remarks.append(
                f"{name} is not defined: no token is repeated, or token ids are not "
                "known."
            )
    return remarks


def _default_redraws(n_permutations: int, n_sequences: int) -> int:
    """Return the number of costly draws.

    Few sequences show less, and need more draws for the same decisions: these cost
    what the default of the kernel-PCA probe costs on 64 sequences.
    """
    least = default_redraws(n_permutations)
    affordable = _SEQUENCES * (n_permutations // 5) // n_sequences
    return max(least, min(2 * n_permutations, affordable))


def _derived(seed: int, index: int, purpose: int) -> int:
    return int(np.random.SeedSequence([seed, purpose, index]).generate_state(1)[0])
