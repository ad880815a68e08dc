"""Measure every head of a model with null distributions, or compare two models."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from eigenheads._checks import (
    Got,
    check_choice,
    check_count,
    check_flag,
    check_items,
    fail,
)
from eigenheads._parallel import threads
from eigenheads._rng import derived_seed
from eigenheads.adapters._capture import CapturedLayer
from eigenheads.adapters._layers import refuse_wrapper
from eigenheads.adapters._sources import (
    Capture,
    as_capture,
    capture_model,
    n_sequences,
    tokenize_texts,
)
from eigenheads.probes import ModelProbe
from eigenheads.probes._captured import (
    affordable_redraws,
    compare_captured,
    probe_captured,
)

_MAX_BYTES = 2**30


def probe_model(  # noqa: PLR0913 -- keyword-only, each with a default
    model: Any,
    batch: Any = None,
    *,
    statistics: Sequence[object] | Literal["quick"] | None = None,
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
    keep_partial: bool = False,
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
        :func:`eigenheads.probes.head_probe`, and ``subspace_affinity``; ``"quick"``
        leaves out the first, which takes most of the time.
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
    keep_partial
        Whether Ctrl-C returns the layers that are finished, with a note.

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
    n_permutations = check_count("n_permutations", n_permutations, minimum=0)
    if n_redraws is not None:
        n_redraws = check_count("n_redraws", n_redraws, minimum=0)
    seed = check_count("seed", seed, minimum=0, maximum=2**32 - 1)
    check_choice("false_discovery", false_discovery, ("bh", "by"))
    progress = check_flag("progress", progress)
    check_count("jobs", 1 if jobs is None else jobs)
    _check_source(model, batch, texts, tokenizer)
    if isinstance(model, nn.Module):
        if texts is not None:
            batch = tokenize_texts(model, texts, tokenizer)
        # At a time there are arrays of the model and of one copy.
        options: dict[str, Any] = {"layers": layers, "batch_size": batch_size}
        options |= {"max_bytes": _MAX_BYTES // 2}
        capture = capture_model(model, batch, **options)
        copies: Sequence[Iterable[CapturedLayer] | Callable[[], Capture]]
        if untrained is None:
            copies, notes = _untrained_copies(model, n_untrained, seed, batch, options)
        else:
            contract = "a sequence of models"
            models = check_items("untrained", untrained, contract)
            if not all(isinstance(x, nn.Module) for x in models):
                fail("untrained", contract, untrained)
            # These are kept: all models share the memory limit.
            options["max_bytes"] //= max(1, len(models))
            copies = [capture_model(x, batch, **options) for x in models]
            notes = []
    else:
        capture, copies, notes = as_capture(model), [], []
    if n_redraws is None:
        n_redraws = affordable_redraws(n_permutations, n_sequences(capture))
    with threads(jobs) if jobs is not None else nullcontext():
        probe = probe_captured(
            capture,
            copies,
            statistics=statistics,
            ignore_tokens=ignore_tokens,
            # Without nulls, a quick look at the numbers is wanted.
            on_other_tokens=n_permutations > 0,
            n_permutations=n_permutations,
            n_redraws=n_redraws,
            seed_of_layer=lambda layer: derived_seed(seed, 0, layer),
            progress=progress,
            keep_partial=check_flag("keep_partial", keep_partial),
        )
    settings = {
        "model": type(model).__name__,
        "layers": list(probe.layers),
        "n_untrained": len(copies),
        "false_discovery": false_discovery,
        "seed": seed,
        "ignore_tokens": None if ignore_tokens is None else str(ignore_tokens)[:80],
    }
    return replace(
        probe,
        settings={**settings, **probe.settings},
        notes=[*notes, *probe.notes],
    )


def _check_source(model: Any, batch: Any, texts: Any, tokenizer: Any) -> None:
    """Raise if arguments exclude each other."""
    if texts is None and tokenizer is not None:
        fail("tokenizer", "left out without `texts`", tokenizer)
    if isinstance(model, nn.Module):
        if (batch is None) == (texts is None):
            contract = "given, or `texts`, but not both"
            fail(
                "batch",
                contract,
                Got("None" if batch is None else type(batch).__name__),
            )
        return
    refuse_wrapper(model)
    for name, inputs in (("batch", batch), ("texts", texts)):
        if inputs is not None:
            contract = "left out for heads that were captured before"
            fail(name, contract, Got(type(inputs).__name__))


def _untrained_copies(
    model: nn.Module, count: int, seed: int, batch: Any, options: Mapping[str, Any]
) -> tuple[list[Callable[[], Capture]], list[str]]:
    """Return functions that capture untrained copies, or a note why there are none."""
    count = check_count("n_untrained", count, minimum=0)
    # Purpose 1, so that no copy shares its seed with the nulls of a layer.
    seeds = [derived_seed(seed, 1, index) for index in range(count)]

    # The first one shows whether copies can be made at all. It waits for its turn: no
    # more is in memory then than later, when a copy has captured arrays as well.
    waiting = [untrained_copy(model, seeds[0])] if seeds else []
    if waiting and isinstance(waiting[0], str):
        return [], [
            f"The null of untrained models is not available: {waiting[0]}. "
            "Pass such models as `untrained`."
        ]

    def capture(seed_of_copy: int) -> Capture:
        twin = waiting.pop() if waiting else untrained_copy(model, seed_of_copy)
        assert isinstance(twin, nn.Module)
        return capture_model(twin, batch, **options)

    return [partial(capture, seed_of_copy) for seed_of_copy in seeds], []


def compare_models(  # noqa: PLR0913 -- keyword-only, each with a default
    first: Any,
    second: Any,
    batch: Any = None,
    *,
    statistics: Sequence[object] | None = None,
    texts: Sequence[str] | None = None,
    tokenizer: Any = None,
    layers: Sequence[int] | int | None = None,
    n_permutations: int = 999,
    false_discovery: str = "bh",
    batch_size: int | None = 8,
    seed: int = 0,
) -> ModelProbe:
    """Compare two models of the same shape, head by head, on the same batch.

    Examples are a base model and its fine-tuned version, or a model before and after
    :func:`swap_attention`.

    Parameters
    ----------
    first, second
        Models, or :class:`Capture` objects of the same sequences.
    batch, layers, batch_size, seed, false_discovery
        As in :func:`probe_model`.
    statistics
        As in :func:`eigenheads.probes.head_probe`.
    texts, tokenizer
        Texts instead of a batch; see :class:`Capture`. Both models get the tokens of
        `tokenizer`, by default that of the first model.
    n_permutations
        Draws of the null ``swapped_models``.

    Returns
    -------
    probe
        Differences second minus first, mean over sequences, (layers, heads). In a draw
        of the null, each sequence swaps the roles of the models with probability 1/2:
        exact if both models are exchangeable within a sequence. NaN where a statistic
        is not defined.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    >>> x = torch.randn(6, 5, 8)
    >>> found = compare_models(layer, layer, x, statistics=["entropy"])
    >>> found["entropy"].observed
    array([[0., 0.]])
    """
    n_permutations = check_count("n_permutations", n_permutations)
    seed = check_count("seed", seed, minimum=0, maximum=2**32 - 1)
    check_choice("false_discovery", false_discovery, ("bh", "by"))
    if texts is None and tokenizer is not None:
        fail("tokenizer", "left out without `texts`", tokenizer)
    if texts is not None:
        contract = "left out with `texts`"
        if batch is not None:
            fail("batch", contract, Got(type(batch).__name__))
        if not isinstance(first, nn.Module) or not isinstance(second, nn.Module):
            contract = "left out for models that were captured before"
            fail("texts", contract, Got(type(first).__name__))
        batch = tokenize_texts(first, texts, tokenizer)
    pair = [
        capture_model(x, batch, layers=layers, batch_size=batch_size)
        if isinstance(x, nn.Module)
        else as_capture(x)
        for x in (first, second)
    ]
    probe = compare_captured(pair[0], pair[1], statistics, n_permutations, seed)
    settings = {
        "model": " and ".join(type(x).__name__ for x in (first, second)),
        "layers": list(pair[0].layers),
        "n_permutations": n_permutations,
        "false_discovery": false_discovery,
        "seed": seed,
        "is_comparison": True,
    }
    return replace(probe, settings=settings)


def untrained_copy(model: nn.Module, seed: int) -> nn.Module | str:
    """Return the model with newly drawn weights, or the reason why that is impossible.

    A Hugging Face model is made again from its configuration; another one is copied,
    and each of its parts draws its parameters by its own ``reset_parameters``. The
    global random state does not change.

    Examples
    --------
    >>> from torch import nn
    >>> made = untrained_copy(nn.Linear(2, 2), seed=0)
    >>> type(made).__name__
    'Linear'
    >>> class Custom(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.table = nn.Parameter(torch.zeros(3))
    >>> untrained_copy(Custom(), seed=0)
    'Custom has no method that draws its parameter table'
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        copied: nn.Module | str = _from_configuration(model) or _reset(model)
    if isinstance(copied, str):
        return copied
    first = next(model.parameters(), None)
    if first is not None:
        copied = copied.to(device=first.device, dtype=first.dtype)
    return copied.eval()


def _from_configuration(model: nn.Module) -> nn.Module | None:
    config: Any = getattr(model, "config", None)
    if config is None or not hasattr(config, "_attn_implementation_internal"):
        return None
    kind: Any = type(model)
    fresh: nn.Module = kind(copy.deepcopy(config))
    return fresh


def _reset(model: nn.Module) -> nn.Module | str:
    copied = copy.deepcopy(model)
    # Children first: a part may set what its children have drawn.
    for module in reversed(list(copied.modules())):
        owned = [name for name, _ in module.named_parameters(recurse=False)]
        reset = getattr(module, "reset_parameters", None)
        reset = reset or getattr(module, "_reset_parameters", None)
        if callable(reset):
            reset()
        elif owned:
            name = type(module).__name__
            return f"{name} has no method that draws its parameter {owned[0]}"
    return copied
