"""Conditions under which models are measured, and the loop over conditions and models.

A condition transforms images (a corruption, or nothing) and starts a *meter* per model:
a function from a batch to outcomes, one row per example. So a data set may come in
batches from a loader, and only outcomes are kept.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from eigenheads._parallel import advance
from eigenheads._typing import FloatArray
from eigenheads.robustness._corruptions import corrupt_seeded
from eigenheads.robustness._intervals import AUPR, PERPLEXITY, SHARE, Measure
from eigenheads.robustness._read import ImageSet, device_of, evaluating, logits_of
from eigenheads.robustness._tokens import corrupting_tokens, swap_words

Meter = Callable[[Tensor, Tensor], FloatArray]


@dataclass(frozen=True)
class CorruptionStep:
    """A corruption of images. Each image has a seed, whatever its batch."""

    kind: str
    severity: int
    seed: int
    index: int

    def batch(self, images: Tensor, first: int) -> Tensor:
        """Return a batch whose first image has index `first`, corrupted."""
        keys = [(self.index, self.severity, first + i) for i in range(len(images))]
        seeds = [
            int(
                np.random.SeedSequence(self.seed, spawn_key=key).generate_state(
                    1, "u8"
                )[0]
            )
            for key in keys
        ]
        return corrupt_seeded(images, self.kind, self.severity, seeds)


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One measurement: its names, its meter, and its measure.

    Attributes
    ----------
    metric, condition, level
        As in the rows of the table.
    start
        From a model to a meter.
    step
        Corruption of the images before they are measured, if any.
    last
        From a model to further outcomes after all batches, if any.
    measure
        From outcomes to the number in the table, and its interval.
    """

    metric: str
    condition: str
    level: float | None = None
    start: Callable[[Any], Meter]
    step: CorruptionStep | None = None
    last: Callable[[Any], FloatArray] | None = None
    measure: Measure = SHARE


@dataclass(frozen=True, kw_only=True)
class ErrorMean:
    """Separate row: one minus the mean over conditions."""

    metric: str
    condition: str
    members: tuple[int, ...]


@dataclass(frozen=True)
class EvaluationPlan:
    """All conditions, and the means over some of them."""

    conditions: list[Condition] = field(default_factory=list)
    means: list[ErrorMean] = field(default_factory=list)


@dataclass(frozen=True)
class PlannedAttack:
    """An attack with its options.

    Attributes
    ----------
    function
        ``(model, x, y, **options)`` to attacked inputs.
    options
        Keyword arguments, without the budget.
    takes_budget, takes_generator
        Whether `function` has these arguments.
    is_own
        Whether it is one of ours, which takes a function to logits; others get the
        model itself.
    """

    function: Callable[..., Tensor]
    options: Mapping[str, Any]
    takes_budget: bool
    takes_generator: bool
    is_own: bool


def plan_images(
    *,
    corruptions: Sequence[str],
    severities: Sequence[int],
    attacks: Mapping[str, PlannedAttack],
    budgets: Mapping[float, Any],
    surrogate: Any,
    tokens: str | None,
    shares: Sequence[float],
    outliers: Tensor | None,
    batch_size: int,
    seed: int,
) -> EvaluationPlan:
    """Return the conditions for images."""
    plan = EvaluationPlan(
        [
            Condition(metric=f"top-{k}", condition="clean", start=partial(_top, k))
            for k in (1, 5)
        ]
    )
    _add_corruptions(plan, corruptions, severities, seed)
    for name, attack in attacks.items():
        # Attacks without a budget (the smallest change, or the user's own) run once.
        levels = budgets if attack.takes_budget else {None: None}
        for level, budget in levels.items():
            options = {**attack.options}
            if attack.takes_budget:
                options["budget"] = budget
            start = partial(_attacked, attack, options, seed, None)
            plan.conditions.append(
                Condition(metric="top-1", condition=name, level=level, start=start)
            )
            if surrogate is not None:
                start = partial(_attacked, attack, options, seed, surrogate)
                condition = f"{name} transferred"
                plan.conditions.append(
                    Condition(
                        metric="top-1", condition=condition, level=level, start=start
                    )
                )
    for share in shares if tokens is not None else ():
        plan.conditions.append(
            Condition(
                metric="top-1",
                condition="tokens replaced",
                level=share,
                start=partial(_with_tokens, str(tokens), share, seed),
            )
        )
    if outliers is not None:
        plan.conditions.append(
            Condition(
                metric="AUPR",
                condition="outliers",
                start=partial(_doubt_meter, 0.0),
                last=partial(_outlier_doubts, outliers, batch_size),
                measure=AUPR,
            )
        )
    return plan


def _add_corruptions(
    plan: EvaluationPlan, kinds: Sequence[str], severities: Sequence[int], seed: int
) -> None:
    # One mean per kind over its severities, and one over all kinds.
    members: list[int] = []
    for index, kind in enumerate(kinds):
        begin = len(plan.conditions)
        for severity in severities:
            plan.conditions.append(
                Condition(
                    metric="top-1",
                    condition=kind,
                    level=float(severity),
                    start=partial(_top, 1),
                    step=CorruptionStep(kind, severity, seed, index),
                )
            )
        own = tuple(range(begin, len(plan.conditions)))
        members.extend(own)
        if own:
            plan.means.append(
                ErrorMean(metric="mean corruption error", condition=kind, members=own)
            )
    if members:
        plan.means.append(
            ErrorMean(
                metric="mean corruption error",
                condition="all corruptions",
                members=tuple(members),
            )
        )


def plan_words(
    ids: Tensor, *, word: int | None, shares: Sequence[float], seed: int
) -> EvaluationPlan:
    """Return the conditions for ids of words; batches are (index, true ids)."""

    def condition(name: str, level: float | None, shown: Tensor) -> Condition:
        return Condition(
            metric="perplexity",
            condition=name,
            level=level,
            start=partial(_next_word, shown),
            measure=PERPLEXITY,
        )

    plan = EvaluationPlan([condition("clean", None, ids)])
    for share in shares if word is not None else ():
        generator = torch.Generator().manual_seed(seed)
        swapped = swap_words(ids, share, replacement=word or 0, generator=generator)
        plan.conditions.append(condition("words swapped", share, swapped))
    return plan


# --- The loop ------------------------------------------------------------------------

Outcomes = list[list[FloatArray]]  # by condition and model
Measured = tuple[str, str, float | None, Measure, list[FloatArray]]


def with_means(outcomes: Outcomes, plan: EvaluationPlan) -> Iterator[Measured]:
    """Yield metric, condition, level, measure and outcomes, and the means at the end.

    A mean over conditions is taken per example, so that it has outcomes, too.
    """
    for one, arrays in zip(plan.conditions, outcomes, strict=True):
        yield one.metric, one.condition, one.level, one.measure, arrays
    for group in plan.means:
        members = [outcomes[index] for index in group.members]
        errors = [1 - np.mean(arrays, axis=0) for arrays in zip(*members, strict=True)]
        yield group.metric, group.condition, None, SHARE, errors


def measure_set(
    data: ImageSet, models: Sequence[Any], plan: EvaluationPlan, batch_size: int
) -> Outcomes:
    """Measure a data set in memory: one condition after the other."""
    found = []
    for condition in plan.conditions:
        step = condition.step
        meters = [condition.start(model) for model in models]
        parts: list[list[FloatArray]] = [[] for _ in models]
        for first in range(0, len(data.x), batch_size):
            rows = data.x[first : first + batch_size]
            if step is not None:
                rows = step.batch(rows, first)
            y = data.y[first : first + batch_size]
            for meter, part in zip(meters, parts, strict=True):
                part.append(meter(rows, y))
        found.append(_finished(condition, models, parts))
        advance(float(len(models)))
    return found


def measure_batches(
    batches: Iterable[tuple[Tensor, Tensor]],
    models: Sequence[Any],
    plan: EvaluationPlan,
    n_batches: int | None,
) -> Outcomes:
    """Measure batches of a loader: all conditions on each, in one pass."""
    # A meter keeps its generator between batches, so the order of conditions does
    # not change a number.
    meters = [[c.start(model) for model in models] for c in plan.conditions]
    parts: list[list[list[FloatArray]]] = [[[] for _ in models] for _ in meters]
    first = 0
    for x, y in batches:
        for index, condition in enumerate(plan.conditions):
            step = condition.step
            rows = x if step is None else step.batch(x, first)
            for meter, part in zip(meters[index], parts[index], strict=True):
                part.append(meter(rows, y))
            advance(len(models) / n_batches if n_batches else 0.0)
        first += len(x)
    return [
        _finished(condition, models, part)
        for condition, part in zip(plan.conditions, parts, strict=True)
    ]


def _finished(
    condition: Condition, models: Sequence[Any], parts: list[list[FloatArray]]
) -> list[FloatArray]:
    if condition.last is not None:
        for model, part in zip(models, parts, strict=True):
            part.append(condition.last(model))
    return [np.concatenate(part) for part in parts]


# --- Meters --------------------------------------------------------------------------


def _top(k: int, model: Any) -> Meter:
    def measure(x: Tensor, y: Tensor) -> FloatArray:
        logits = _logits(model, x)
        best = logits.topk(min(k, logits.shape[1]), dim=1).indices
        return _floats((best == y[:, None]).any(1))

    return measure


def _attacked(
    attack: PlannedAttack,
    options: Mapping[str, Any],
    seed: int,
    surrogate: Any,
    model: Any,
) -> Meter:
    """Return a meter of inputs that are right before and after an attack."""
    target = model if surrogate is None else surrogate
    device, run = device_of(model), logits_of(model)
    extra: dict[str, Any] = {}
    if attack.takes_generator:
        extra["generator"] = torch.Generator().manual_seed(seed)

    def measure(x: Tensor, y: Tensor) -> FloatArray:
        x, y = x.to(device), y.to(device)
        given = {k: v.to(x) if isinstance(v, Tensor) else v for k, v in options.items()}
        with evaluating(model), evaluating(target):
            with torch.no_grad():
                right = run(x).argmax(1) == y
            # Inputs that are wrong already need no attack.
            if bool(right.any()):
                source = device_of(target)
                victim = logits_of(target) if attack.is_own else target
                attacked = attack.function(
                    victim, x[right].to(source), y[right].to(source), **given, **extra
                )
                with torch.no_grad():
                    after = run(attacked.detach().to(x)).argmax(1)
                right[right.clone()] = after == y[right]
        return _floats(right)

    return measure


def _with_tokens(layer: str, share: float, seed: int, model: Any) -> Meter:
    correct = _top(1, model)
    generator = torch.Generator().manual_seed(seed)

    def measure(x: Tensor, y: Tensor) -> FloatArray:
        with corrupting_tokens(model, layer, share, generator=generator):
            return correct(x, y)

    return measure


def _doubt_meter(is_outlier: float, model: Any) -> Meter:
    """Return a meter of rows (is outlier, one minus the largest probability)."""

    def measure(x: Tensor, y: Tensor) -> FloatArray:
        doubt = 1 - _logits(model, x).double().softmax(1).max(1).values
        return torch.stack([torch.full_like(doubt, is_outlier), doubt], dim=1).numpy()

    return measure


def _outlier_doubts(outliers: Tensor, size: int, model: Any) -> FloatArray:
    measure = _doubt_meter(1.0, model)
    return np.concatenate([measure(part, part) for (part,) in _batches(size, outliers)])


def _next_word(shown: Tensor, model: Any) -> Meter:
    """Return a meter of the losses of true words that were not swapped."""
    device, run = device_of(model), logits_of(model)

    def measure(index: Tensor, truth: Tensor) -> FloatArray:
        words = shown[index]
        kept = (words == truth)[:, 1:]
        with evaluating(model), torch.no_grad():
            logits = run(words.to(device))[:, :-1].double().cpu()
        loss = F.cross_entropy(logits.mT, truth[:, 1:], reduction="none") * kept
        return torch.stack([loss.sum(1), kept.double().sum(1)], dim=1).numpy()

    return measure


@torch.no_grad()
def _logits(model: Any, x: Tensor) -> Tensor:
    with evaluating(model):
        return logits_of(model)(x.to(device_of(model))).cpu()


def _batches(size: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    for start in range(0, len(tensors[0]), size):
        yield tuple(tensor[start : start + size] for tensor in tensors)


def _floats(outcomes: Tensor) -> FloatArray:
    return outcomes.double().cpu().numpy()
