"""Conditions under which models are measured, and the loop over conditions and models.

A condition transforms images (a corruption, or nothing) and starts a *meter* per model:
a function from a batch to outcomes, one row per example. So a data set may come in
batches from a loader, and only outcomes are kept.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from eigenheads._checks import Got, fail
from eigenheads._modules import device_of, evaluating
from eigenheads._parallel import advance
from eigenheads._rng import derived_seed, torch_generator
from eigenheads._typing import FloatArray
from eigenheads.robustness._corruptions import corrupt_seeded
from eigenheads.robustness._intervals import (
    AUPR,
    PERPLEXITY,
    SHARE,
    Measure,
    share_of,
)
from eigenheads.robustness._read import ImageSet, logits_of
from eigenheads.robustness._tokens import corrupting_tokens, swap_words

Meter = Callable[[Tensor, Tensor], FloatArray]
Batches = Iterable[tuple[Tensor, Tensor]]


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
        seeds = [derived_seed(self.seed, place=key, n_bits=64) for key in keys]
        return corrupt_seeded(images, self.kind, self.severity, seeds)


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One measurement: its names, its meter, and its measure.

    Attributes
    ----------
    metrics
        As in the rows of the table. Outcomes of several have one column per metric.
    condition, level
        As in the rows of the table.
    start
        From a model to a meter.
    step
        Corruption of the images before they are measured, if any.
    instead
        Batches that are measured instead of those of the data, if any.
    last
        From meters of all models to further outcomes after all batches, if any.
    measure
        From outcomes to the number in the table, and its interval.
    """

    metrics: tuple[str, ...] = ("top-1",)
    condition: str
    level: float | None = None
    start: Callable[[Any], Meter]
    step: CorruptionStep | None = None
    instead: Batches | None = None
    last: Callable[[Sequence[Any]], list[FloatArray]] | None = None
    measure: Measure = SHARE


@dataclass(frozen=True, kw_only=True)
class ErrorMean:
    """Separate row: mean of the errors under some conditions.

    With `divisors`, errors of a reference by condition, each error is divided by one.
    """

    condition: str
    members: tuple[int, ...]
    divisors: tuple[float, ...] = ()


@dataclass(frozen=True)
class Conditions:
    """All conditions, the means over some of them, and what joins processes."""

    conditions: list[Condition] = field(default_factory=list)
    means: list[ErrorMean] = field(default_factory=list)
    gather: Callable[[FloatArray], FloatArray] | None = None
    is_attacked: bool = False

    def add_means(
        self, kinds: Mapping[str, tuple[int, ...]], errors: Mapping[str, float] | None
    ) -> None:
        """Add a mean over the levels of each kind, and one over all kinds.

        Parameters
        ----------
        kinds
            Conditions of each kind of corruption.
        errors
            Errors of a reference by kind, if there is one: adds relative means.
        """
        every = tuple(index for members in kinds.values() for index in members)
        groups = {**kinds, "all corruptions": every} if every else {}
        for condition, members in groups.items():
            self.means.append(ErrorMean(condition=condition, members=members))
        if errors is None:
            return
        divisor = {i: errors[kind] for kind, indices in kinds.items() for i in indices}
        for condition, members in groups.items():
            divisors = tuple(divisor[index] for index in members)
            self.means.append(
                ErrorMean(condition=condition, members=members, divisors=divisors)
            )


@dataclass(frozen=True, kw_only=True)
class RobustnessPlan:
    """Options of :func:`evaluate_robustness` that few evaluations need.

    Attributes
    ----------
    top
        Numbers of best classes among which the right one counts, under every
        condition; clean inputs always have both ``top-1`` and ``top-5``.
    classes
        The classes that a model can answer, if the data have only some of its classes
        (ImageNet-A, ImageNet-R); the others are never predicted.
    corrupted
        Images that are corrupted already, as in ImageNet-C or CIFAR-10-C: by kind and
        severity, each a pair ``(x, y)`` or a loader of such pairs.
    relative_to
        Errors of a reference by kind, such as :data:`ALEXNET_ERRORS`: errors are also
        reported divided by them, as the mean corruption error of ImageNet-C is.
    budget_unit
        ``"pixel"``: of the pixel range. ``"normalised"``: of images divided by
        `pixel_std`, as in programs that attack normalised images; a budget then is
        smaller in pixels by that factor, per channel.
    pixel_std
        Standard deviation per channel by which the model normalises.
    surrogate
        Another model: each attack is also computed on it and transferred.
    special_ids
        Ids that are never corrupted, such as those of class tokens, for data without
        texts; by default the tokenizer's ``all_special_ids``.
    gather
        Function that joins an array of outcomes over processes, if each one reads a
        part of the data.
    """

    top: Sequence[int] = (1,)
    classes: Sequence[int] | None = None
    corrupted: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)
    relative_to: Mapping[str, float] | None = None
    budget_unit: Literal["pixel", "normalised"] = "pixel"
    pixel_std: Sequence[float] | None = None
    surrogate: Any = None
    special_ids: Sequence[int] | None = None
    gather: Callable[[FloatArray], FloatArray] | None = None


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
    corrupted: Mapping[str, Mapping[int, Batches]],
    relative_to: Mapping[str, float] | None,
    attacks: Mapping[str, PlannedAttack],
    budgets: Mapping[float, Any],
    surrogate: Any,
    tokens: str | None,
    shares: Sequence[float],
    outliers: Batches | None,
    top: tuple[int, ...],
    seed: int,
    is_only_corrupted: bool,
) -> Conditions:
    """Return the conditions for images."""
    plan = Conditions(is_attacked=bool(attacks) and not is_only_corrupted)
    metrics = tuple(f"top-{k}" for k in top)

    def add(condition: str, start: Callable[[Any], Meter], **options: Any) -> None:
        options = {"metrics": metrics, **options}
        plan.conditions.append(Condition(condition=condition, start=start, **options))

    if is_only_corrupted:
        corruptions, attacks, tokens, outliers = (), {}, None, None
    else:
        add("clean", partial(top_meter, (1, 5)), metrics=("top-1", "top-5"))
    kinds: dict[str, tuple[int, ...]] = {}
    for index, kind in enumerate([*corruptions, *corrupted]):
        begin = len(plan.conditions)
        levels = corrupted.get(kind, dict.fromkeys(severities))
        for severity, batches in levels.items():
            step = CorruptionStep(kind, severity, seed, index)
            add(
                kind,
                partial(top_meter, top),
                level=float(severity),
                step=step if batches is None else None,
                instead=batches,
            )
        kinds[kind] = tuple(range(begin, len(plan.conditions)))
    plan.add_means(
        {kind: indices for kind, indices in kinds.items() if indices}, relative_to
    )
    for condition, level, start in _starts(attacks, budgets, surrogate, seed, top):
        add(condition, start, level=level)
    for share in shares if tokens is not None else ():
        start = partial(_with_tokens, str(tokens), share, seed, top)
        add("tokens replaced", start, level=share)
    if outliers is not None:
        last = partial(_outlier_doubts, outliers)
        start = partial(_doubt_meter, 0.0)
        add("outliers", start, metrics=("AUPR",), last=last, measure=AUPR)
    return plan


def _starts(
    attacks: Mapping[str, PlannedAttack],
    budgets: Mapping[float, Any],
    surrogate: Any,
    seed: int,
    top: tuple[int, ...],
) -> Iterator[tuple[str, float | None, Callable[[Any], Meter]]]:
    """Yield condition, level, and what starts the meter, of each attack and budget."""
    for name, attack in attacks.items():
        # Attacks without a budget (the smallest change, or the user's own) run once.
        levels = budgets if attack.takes_budget else {None: None}
        for level, budget in levels.items():
            options = {**attack.options}
            if attack.takes_budget:
                options["budget"] = budget
            start = partial(_attacked, attack, options, seed, top)
            yield name, level, partial(start, None)
            if surrogate is not None:
                yield f"{name} transferred", level, partial(start, surrogate)


def plan_words(
    ids: Tensor, *, word: int | None, shares: Sequence[float], seed: int
) -> Conditions:
    """Return the conditions for ids of words; batches are (index, true ids)."""

    def condition(name: str, level: float | None, shown: Tensor) -> Condition:
        return Condition(
            metrics=("perplexity",),
            condition=name,
            level=level,
            start=partial(_next_word, shown),
            measure=PERPLEXITY,
        )

    plan = Conditions([condition("clean", None, ids)])
    for share in shares if word is not None else ():
        generator = torch_generator(seed)
        swapped = swap_words(ids, share, replacement=word or 0, generator=generator)
        plan.conditions.append(condition("words swapped", share, swapped))
    return plan


# --- The loop ------------------------------------------------------------------------

Outcomes = list[list[FloatArray]]  # by condition and model
Measured = tuple[str, str, float | None, Measure, list[FloatArray]]


def with_means(outcomes: Outcomes, plan: Conditions) -> Iterator[Measured]:
    """Yield metric, condition, level, measure and outcomes, and the means at the end.

    A mean over conditions is taken per example, so that it has outcomes, too.
    """
    for condition, arrays in zip(plan.conditions, outcomes, strict=True):
        for column, metric in enumerate(condition.metrics):
            parts = arrays
            if condition.measure is SHARE:
                parts = [array[:, column] for array in arrays]
            yield metric, condition.condition, condition.level, condition.measure, parts
    for group in plan.means:
        members = [outcomes[index] for index in group.members]
        if len({len(array) for arrays in members for array in arrays}) > 1:
            got = Got(f"different numbers of images under {group.condition}")
            fail("corrupted", "the same images at every severity", got)
        weights, metric, measure = None, "mean corruption error", SHARE
        if group.divisors:
            weights = 1 / np.array(group.divisors)
            metric, measure = "relative corruption error", share_of(weights.mean())
        errors = [
            1 - np.average([array[:, 0] for array in arrays], axis=0, weights=weights)
            for arrays in zip(*members, strict=True)
        ]
        yield metric, group.condition, None, measure, errors


def measure_set(
    data: ImageSet, models: Sequence[Any], plan: Conditions, batch_size: int
) -> Outcomes:
    """Measure a data set in memory: one condition after the other."""
    batches = list(in_batches(batch_size, data.x, data.y))
    return [
        measure_batches(
            batches, models, replace(plan, conditions=[condition]), len(batches)
        )[0]
        for condition in plan.conditions
    ]


def measure_batches(
    batches: Batches,
    models: Sequence[Any],
    plan: Conditions,
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
            if condition.instead is None:
                step = condition.step
                rows = x if step is None else step.batch(x, first)
                _measure(meters[index], parts[index], rows, y)
                advance(len(models) / n_batches if n_batches else 0.0)
        first += len(x)
    for index, condition in enumerate(plan.conditions):
        for x, y in condition.instead or ():
            _measure(meters[index], parts[index], x, y)
        advance(float(len(models)) if condition.instead is not None else 0.0)
        if condition.last is not None:
            for part, more in zip(parts[index], condition.last(models), strict=True):
                part.append(more)
    joined = [[np.concatenate(part) for part in by_model] for by_model in parts]
    if plan.gather is None:
        return joined
    return [[plan.gather(array) for array in by_model] for by_model in joined]


def _measure(
    meters: list[Meter], parts: list[list[FloatArray]], x: Tensor, y: Tensor
) -> None:
    for meter, part in zip(meters, parts, strict=True):
        part.append(meter(x, y))


# --- Meters --------------------------------------------------------------------------


def _hits(logits: Tensor, y: Tensor, top: tuple[int, ...]) -> Tensor:
    """Return whether the class is among the k best, one column per k of `top`."""
    order = logits.topk(min(max(top), logits.shape[1]), dim=1).indices
    among = order == y[:, None].to(order.device)
    # Where logits are equal, the best class is that of argmax.
    best = logits.argmax(1) == y.to(logits.device)
    hits = [best if k == 1 else among[:, :k].any(1) for k in top]
    return torch.stack(hits, dim=1)


def top_meter(top: tuple[int, ...], model: Any) -> Meter:
    """Return a meter of inputs whose class is among the k best, for each k of `top`."""

    def measure(x: Tensor, y: Tensor) -> FloatArray:
        return _floats(_hits(_logits(model, x), y.cpu(), top))

    return measure


def _attacked(
    attack: PlannedAttack,
    options: Mapping[str, Any],
    seed: int,
    top: tuple[int, ...],
    surrogate: Any,
    model: Any,
) -> Meter:
    """Return a meter of inputs that are right before and after an attack."""
    target = model if surrogate is None else surrogate
    device, run = device_of(model), logits_of(model)
    extra: dict[str, Any] = {}
    if attack.takes_generator:
        extra["generator"] = torch_generator(seed)

    def measure(x: Tensor, y: Tensor) -> FloatArray:
        x, y = x.to(device), y.to(device)
        moved = {k: v.to(x) if isinstance(v, Tensor) else v for k, v in options.items()}
        with evaluating(model), evaluating(target):
            with torch.no_grad():
                right = _hits(run(x), y, top)
            # Inputs that are wrong already stay wrong, so they need no attack.
            chosen = right.any(1)
            if bool(chosen.any()):
                source = device_of(target)
                victim = logits_of(target) if attack.is_own else target
                attacked = attack.function(
                    victim, x[chosen].to(source), y[chosen].to(source), **moved, **extra
                )
                with torch.no_grad():
                    after = _hits(run(attacked.detach().to(x)), y[chosen], top)
                right[chosen] &= after
        return _floats(right)

    return measure


def _with_tokens(
    layer: str, share: float, seed: int, top: tuple[int, ...], model: Any
) -> Meter:
    correct = top_meter(top, model)
    generator = torch_generator(seed)

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


def _outlier_doubts(outliers: Batches, models: Sequence[Any]) -> list[FloatArray]:
    """Return the rows of outliers for each model; they are read once."""
    meters = [_doubt_meter(1.0, model) for model in models]
    parts: list[list[FloatArray]] = [[] for _ in models]
    for x, y in outliers:
        _measure(meters, parts, x, y)
    return [np.concatenate(part) for part in parts]


def _next_word(shown: Tensor, model: Any) -> Meter:
    """Return a meter of the losses of true words that were not swapped."""
    device, run = device_of(model), logits_of(model)

    def measure(index: Tensor, truth: Tensor) -> FloatArray:
        words = shown[index]
        is_true = (words == truth)[:, 1:]
        with evaluating(model), torch.no_grad():
            logits = run(words.to(device))[:, :-1].double().cpu()
        loss = F.cross_entropy(logits.mT, truth[:, 1:], reduction="none") * is_true
        return torch.stack([loss.sum(1), is_true.double().sum(1)], dim=1).numpy()

    return measure


@torch.no_grad()
def _logits(model: Any, x: Tensor) -> Tensor:
    with evaluating(model):
        return logits_of(model)(x.to(device_of(model))).cpu()


def in_batches(size: int, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and classes in parts of this size."""
    for start in range(0, len(x), size):
        yield x[start : start + size], y[start : start + size]


def _floats(outcomes: Tensor) -> FloatArray:
    return outcomes.double().cpu().numpy()
