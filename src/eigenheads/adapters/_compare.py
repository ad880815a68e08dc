"""Compare two models head by head."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

from eigenheads._checks import (
    Got,
    check_choice,
    check_count,
    fail,
)
from eigenheads._typing import FloatArray
from eigenheads.adapters._layer_probe import head_arrays
from eigenheads.adapters._sources import as_capture, capture_model, tokenize_texts
from eigenheads.probes import HeadStatistic, ModelProbe, Statistic, head_probe
from eigenheads.probes._head_probe import read_statistics
from eigenheads.probes._result import stack_layers


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
    owner = "compare_models"
    n_permutations = check_count("n_permutations", n_permutations, owner=owner)
    seed = check_count("seed", seed, owner=owner, minimum=0, maximum=2**32 - 1)
    check_choice("false_discovery", false_discovery, ("bh", "by"), owner=owner)
    wanted = read_statistics(statistics, owner=owner)
    if texts is None and tokenizer is not None:
        fail("tokenizer", "left out without `texts`", tokenizer, owner=owner)
    if texts is not None:
        contract = "left out with `texts`"
        if batch is not None:
            fail("batch", contract, Got(type(batch).__name__), owner=owner)
        if not isinstance(first, nn.Module) or not isinstance(second, nn.Module):
            contract = "left out for models that were captured before"
            fail("texts", contract, Got(type(first).__name__), owner=owner)
        batch = tokenize_texts(first, texts, tokenizer, owner=owner)
    pair = [
        capture_model(x, batch, layers=layers, batch_size=batch_size, owner=owner)
        if isinstance(x, nn.Module)
        else as_capture(x, owner=owner)
        for x in (first, second)
    ]
    if len(pair[0]) != len(pair[1]):
        got = Got(f"{len(pair[1])} layers instead of {len(pair[0])}")
        fail("second", "a model with as many layers as the first", got, owner=owner)
    rows, names = [], []
    for one, other in zip(*pair, strict=True):
        if one.keys.shape[:3] != other.keys.shape[:3]:
            got = Got(f"{other.keys.shape[:3]} instead of {one.keys.shape[:3]}")
            contract = "a model with the same sequences, heads and tokens per layer"
            fail("second", contract, got, owner=owner)
        names.append(one.name)
        # Without draws: the null needs the numbers of each sequence only.
        numbers = [
            head_probe(
                **head_arrays(x, ids), statistics=wanted, n_draws=0, layer=x.layer
            ).spectra
            for x, ids in ((one, pair[0].token_ids), (other, pair[1].token_ids))
        ]
        rng = np.random.default_rng([seed, one.layer])
        rows.append({w.name: _paired(w, numbers, n_permutations, rng) for w in wanted})
    settings = {
        "model": " and ".join(type(one).__name__ for one in (first, second)),
        "layers": list(pair[0].layers),
        "n_permutations": n_permutations,
        "false_discovery": false_discovery,
        "seed": seed,
        "is_comparison": True,
    }
    return ModelProbe(pair[0].layers, names, stack_layers(rows), settings)


def _paired(
    wanted: HeadStatistic,
    numbers: Sequence[Mapping[str, FloatArray]],
    n_draws: int,
    rng: np.random.Generator,
) -> Statistic:
    """Return the mean difference of two models with random signs as null."""
    differences = numbers[1][wanted.name] - numbers[0][wanted.name]
    known = np.isfinite(differences)
    count = np.maximum(known.sum(axis=0), 1)
    # Sequences in which a statistic is not defined do not count.
    clean = np.where(known, differences, 0.0) / count
    # Swapping the models in a sequence changes the sign of its difference.
    signs = rng.choice([-1.0, 1.0], size=(n_draws, len(clean)))
    observed = np.where(known.any(axis=0), clean.sum(axis=0), np.nan)
    draws = (signs @ clean).T
    about = f"Second model minus first model: {wanted.about}"
    return Statistic(
        wanted.name, observed, {"swapped_models": draws}, "two-sided", about
    )
