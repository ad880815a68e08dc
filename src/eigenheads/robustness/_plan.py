"""Conditions under which models are measured: each gives outcomes by example."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor
from torch.nn import functional as F

from eigenheads._typing import FloatArray
from eigenheads.robustness._corruptions import corrupt
from eigenheads.robustness._read import Images, device_of, evaluating, logits_of
from eigenheads.robustness._result import Statistic
from eigenheads.robustness._tokens import corrupting_tokens, swap_words

Attack = Callable[..., Tensor]
# From a model and a batch size to outcomes, one row an example.
Measure = Callable[[Any, int], FloatArray]


def mean(outcomes: FloatArray) -> float:
    """Return the mean of outcomes."""
    return float(np.mean(outcomes))


def _aupr(outcomes: FloatArray) -> float:
    """Return the area under precision and recall of rows (is foreign, score)."""
    if not outcomes[:, 0].any():  # a resample without outliers
        return 0.0
    return float(average_precision_score(outcomes[:, 0], outcomes[:, 1]))


def _perplexity(outcomes: FloatArray) -> float:
    """Return the exponential of total loss over total words, rows (loss, words)."""
    loss, words = outcomes.sum(axis=0)
    return float(np.exp(loss / words)) if words else float("nan")


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Plan of an evaluation: measures, conditions, and the summary of outcomes."""

    metric: str
    condition: str
    level: float | None = None
    measure: Measure
    statistic: Statistic = mean


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A row of its own: one minus the mean over conditions."""

    metric: str
    condition: str
    members: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """All conditions, and the means over some of them."""

    conditions: list[Condition] = field(default_factory=list)
    means: list[Mean] = field(default_factory=list)


def plan_images(
    images: Images,
    *,
    corruptions: Sequence[str],
    severities: Sequence[int],
    attacks: Mapping[str, tuple[Attack, Mapping[str, Any]]],
    budgets: Sequence[float],
    tokens: str | None,
    shares: Sequence[float],
    seed: int,
) -> Plan:
    """Return what to measure on images."""
    clean = [
        Condition(
            metric=f"top-{k}", condition="clean", measure=_top(images.x, images.y, k)
        )
        for k in (1, 5)
    ]
    plan = Plan(clean)
    _add_corruptions(plan, images, corruptions, severities, seed)
    for name, (attack, options) in attacks.items():
        for budget in budgets:
            measure = _attacked(images, attack, {**options, "budget": budget}, seed)
            plan.conditions.append(
                Condition(metric="top-1", condition=name, level=budget, measure=measure)
            )
    for share in shares if tokens is not None else ():
        measure = _with_tokens(images, str(tokens), share, seed)
        plan.conditions.append(
            Condition(
                metric="top-1",
                condition="tokens replaced",
                level=share,
                measure=measure,
            )
        )
    if images.outliers is not None:
        plan.conditions.append(
            Condition(
                metric="AUPR",
                condition="outliers",
                measure=_doubts(images.x, images.outliers),
                statistic=_aupr,
            )
        )
    return plan


def _add_corruptions(
    plan: Plan,
    images: Images,
    kinds: Sequence[str],
    severities: Sequence[int],
    seed: int,
) -> None:
    members: list[int] = []
    pixels = images.x.double().numpy()
    for index, kind in enumerate(kinds):
        begin = len(plan.conditions)
        for severity in severities:
            sequence = np.random.SeedSequence(seed, spawn_key=(index, severity))
            corrupted = corrupt(pixels, kind, severity, np.random.default_rng(sequence))
            x = torch.from_numpy(corrupted).to(images.x)
            plan.conditions.append(
                Condition(
                    metric="top-1",
                    condition=kind,
                    level=float(severity),
                    measure=_top(x, images.y, 1),
                )
            )
        own = tuple(range(begin, len(plan.conditions)))
        members.extend(own)
        if own:
            plan.means.append(
                Mean(metric="mean corruption error", condition=kind, members=own)
            )
    if members:
        plan.means.append(
            Mean(
                metric="mean corruption error",
                condition="all corruptions",
                members=tuple(members),
            )
        )


def plan_words(
    ids: Tensor, *, word: int | None, shares: Sequence[float], seed: int
) -> Plan:
    """Return what to measure on ids of words."""
    clean = Condition(
        metric="perplexity",
        condition="clean",
        measure=_next_word(ids, ids),
        statistic=_perplexity,
    )
    plan = Plan([clean])
    for share in shares if word is not None else ():
        generator = torch.Generator().manual_seed(seed)
        swapped = swap_words(ids, share, replacement=word or 0, generator=generator)
        plan.conditions.append(
            Condition(
                metric="perplexity",
                condition="words swapped",
                level=share,
                measure=_next_word(swapped, ids),
                statistic=_perplexity,
            )
        )
    return plan


def _top(x: Tensor, y: Tensor, k: int) -> Measure:
    def measure(model: Any, size: int) -> FloatArray:
        logits = _predict(model, x, size)
        best = logits.topk(min(k, logits.shape[1]), dim=1).indices
        return _floats((best == y[:, None]).any(1))

    return measure


def _attacked(
    images: Images, attack: Attack, options: Mapping[str, Any], seed: int
) -> Measure:
    def measure(model: Any, size: int) -> FloatArray:
        device, run = device_of(model), logits_of(model)
        generator = torch.Generator().manual_seed(seed)
        # Attacks that draw nothing take no generator.
        extra = {} if attack.__name__ == "fgsm" else {"generator": generator}
        found = []
        with evaluating(model):
            for x, y in _batches(size, images.x, images.y):
                x, y = x.to(device), y.to(device)
                with torch.no_grad():
                    right = run(x).argmax(1) == y
                # Who is wrong already needs no attack.
                if bool(right.any()):
                    attacked = attack(run, x[right], y[right], **options, **extra)
                    with torch.no_grad():
                        right[right.clone()] = run(attacked).argmax(1) == y[right]
                found.append(right)
        return _floats(torch.cat(found))

    return measure


def _with_tokens(images: Images, layer: str, share: float, seed: int) -> Measure:
    correct = _top(images.x, images.y, 1)

    def measure(model: Any, size: int) -> FloatArray:
        generator = torch.Generator().manual_seed(seed)
        with corrupting_tokens(model, layer, share, generator=generator):
            return correct(model, size)

    return measure


def _doubts(x: Tensor, outliers: Tensor) -> Measure:
    def measure(model: Any, size: int) -> FloatArray:
        both = [_predict(model, images, size) for images in (x, outliers)]
        doubt = [1 - logits.double().softmax(1).max(1).values for logits in both]
        foreign = [torch.full_like(d, i) for i, d in enumerate(doubt)]
        return torch.stack([torch.cat(foreign), torch.cat(doubt)], dim=1).numpy()

    return measure


def _next_word(ids: Tensor, truth: Tensor) -> Measure:
    """Return the losses of predicting true words that were not swapped."""
    kept = (ids == truth)[:, 1:]

    def measure(model: Any, size: int) -> FloatArray:
        device, run, rows = device_of(model), logits_of(model), []
        with evaluating(model), torch.no_grad():
            for words, targets, counts in _batches(size, ids, truth[:, 1:], kept):
                logits = run(words.to(device))[:, :-1].double().cpu()
                loss = F.cross_entropy(logits.mT, targets, reduction="none") * counts
                rows.append(torch.stack([loss.sum(1), counts.double().sum(1)], dim=1))
        return torch.cat(rows).numpy()

    return measure


@torch.no_grad()
def _predict(model: Any, x: Tensor, size: int) -> Tensor:
    device, run = device_of(model), logits_of(model)
    with evaluating(model):
        parts = [run(batch.to(device)).cpu() for (batch,) in _batches(size, x)]
    return torch.cat(parts)


def _batches(size: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    for start in range(0, len(tensors[0]), size):
        yield tuple(tensor[start : start + size] for tensor in tensors)


def _floats(outcomes: Tensor) -> FloatArray:
    return outcomes.double().cpu().numpy()
