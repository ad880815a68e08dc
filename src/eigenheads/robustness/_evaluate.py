"""Evaluate how robust models are: one call, one tidy table."""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final, Literal, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from eigenheads._checks import (
    check_callable,
    check_choice,
    check_count,
    check_flag,
    check_number,
    check_positive,
    fail,
)
from eigenheads._parallel import progress_bar
from eigenheads.robustness._attacks import ATTACKS
from eigenheads.robustness._corruptions import (
    CORRUPTIONS,
    IMAGENET_C,
    SEVERITIES,
    check_corruption,
)
from eigenheads.robustness._intervals import PERPLEXITY, measure_runs
from eigenheads.robustness._plan import (
    EvaluationPlan,
    Outcomes,
    PlannedAttack,
    measure_batches,
    measure_set,
    plan_images,
    plan_words,
    with_means,
)
from eigenheads.robustness._read import (
    ImageSet,
    read_batches,
    read_images,
    read_outliers,
    read_words,
)
from eigenheads.robustness._result import (
    Robustness,
    RobustnessRow,
    compare_outcomes,
    warn_of_masking,
)
from eigenheads.robustness._text import (
    TEXT_CORRUPTIONS,
    plan_texts,
    read_labelled_texts,
)

# Attacks that one paper names live with it; the papers' `evaluate` takes these names.
_OF_A_PAPER: Final = {
    "carlini-wagner": "carlini_wagner",
    "sparse-l1": "sparse_l1_descent",
}
_USUAL: Final = ("fgsm", "pgd", "spsa", "square")
Model = nn.Module | Callable[[Tensor], Any]
Models = Model | Sequence[Model] | Mapping[str, Model | Sequence[Model]]
Attacks = Sequence[str] | Mapping[str, Mapping[str, Any] | Callable[..., Tensor]]


def evaluate_robustness(
    model: Models,
    data: Any,
    *,
    corruptions: Collection[str] | None = None,
    severities: Sequence[int] = SEVERITIES,
    attacks: Attacks = _USUAL,
    budgets: Sequence[float] = (1.0, 2.0, 4.0, 8.0),
    budget_unit: Literal["pixel", "normalised"] = "pixel",
    pixel_std: Sequence[float] | None = None,
    surrogate: Model | None = None,
    outliers: Any = None,
    tokens: str | None = None,
    shares: Sequence[float] = (0.1, 0.2, 0.4),
    word: int | None = None,
    tokenizer: Callable[..., Any] | None = None,
    special_ids: Sequence[int] | None = None,
    batch_size: int = 256,
    seed: int = 0,
    confidence: float = 0.95,
    progress: bool = False,
) -> Robustness:
    """Measure the accuracy of models on corrupted and attacked inputs and on outliers.

    Parameters
    ----------
    model
        Function from inputs to logits (or to an output with ``.logits``). A list means
        one model trained several times with different seeds; a mapping from names to
        models or lists compares them.
    data
        Images and classes ``(x, y)``, `x` of shape ``(n, …, height, width)`` with
        entries 0 to 1; a loader (any iterable) of such pairs, which is read once, batch
        by batch; for a causal language model, ids of words ``(n, tokens)``; or, for a
        classifier of texts, texts and classes ``(texts, y)`` with a `tokenizer`, ids
        and classes, or one or several batches as Hugging Face's models take them
        (mappings with ``input_ids``, ``attention_mask`` and ``labels``).
    corruptions, severities
        For texts, some of :data:`TEXT_CORRUPTIONS`: typing mistakes; words left out,
        exchanged with the next one, or inserted; tokens replaced by others; by
        default all. For images, some of :data:`CORRUPTIONS`, and their severities; by
        default those of :data:`IMAGENET_C`.
    attacks
        Names from :data:`ATTACKS`; or a mapping from names to options, such as
        ``{"pgd": {"n_steps": 20}}``, or to your own attack: any callable
        ``attack(model, images, labels)`` that returns attacked images. It gets the
        model itself, and chooses its own budget.
    budgets
        Budgets of the attacks in the maximum norm, in 1/255 of `budget_unit`.
    budget_unit
        ``"pixel"``: of the pixel range. ``"normalised"``: of images divided by
        `pixel_std`, as in programs that attack normalised images; a budget then is
        smaller in pixels by that factor, per channel.
    pixel_std
        Standard deviation per channel by which the model normalises.
    surrogate
        Another model: each attack is also computed on it and transferred.
    outliers
        Images of none of the classes, to be detected by low confidence.
    tokens
        Name of the module whose output ``(batch, tokens, d)`` are embedded tokens, for
        the corruption of tokens (:func:`corrupting_tokens`).
    shares
        Shares of tokens to replace, or of words to corrupt.
    word
        Id of the word that replaces others (:func:`swap_words`).
    tokenizer
        Callable ``tokenizer(texts, padding=True, truncation=True,
        return_tensors="pt")`` to a mapping with ``input_ids``, as Hugging Face's.
    special_ids
        Ids that are never corrupted, such as those of class tokens, for data without
        texts; by default the tokenizer's ``all_special_ids``.
    batch_size
        Examples per batch; a loader has its own.
    seed
        Seed of corruptions and attacks: the same for every model.
    confidence
        Confidence of the intervals. Of one model they are over examples; of a list
        they are over models (Student's t), or over examples if that is wider.
    progress
        Whether to show a progress bar.

    Returns
    -------
    robustness
        Tidy rows, with ``.to_frame()``, ``.save(path)`` and a readable ``str``. Of
        several models, ``.differences`` has each one less the first, paired, with one
        of the verdicts better, worse, cannot tell; ``str`` ends with their sentence.

    Warns
    -----
    GradientMaskingWarning
        If the strongest attack with gradients leaves a model more accurate than noise,
        an attack without gradients, or a transferred one with the same budget.

    Notes
    -----
    Besides the data, one corrupted batch and the results are kept in memory. A loader
    and a pair with the same images give the same corrupted images.

    ``"mean corruption error"`` is the mean of the errors over severities, for each
    corruption and for all; it is not divided by the errors of AlexNet, as benchmarks on
    ImageNet do. Under an attack, an example counts as correct if it is classified
    correctly both before and after. ``"AUPR"`` uses outliers as the positive class and
    one minus the largest probability as the score. ``"perplexity"`` under swapped words
    includes only words that were not swapped.

    Examples
    --------
    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 10))
    >>> x, y = torch.rand(20, 1, 4, 4), torch.randint(0, 10, (20,))
    >>> found = evaluate_robustness(
    ...     model, (x, y), corruptions=["fog"], attacks=["fgsm"], budgets=[8])
    >>> sorted({row.condition for row in found.rows})
    ['all corruptions', 'clean', 'fgsm', 'fog']
    """
    named = _named(model)
    size = check_count("batch_size", batch_size)
    level = check_number("confidence", confidence, minimum=0.5, maximum=0.9999)
    seed = check_count("seed", seed, minimum=0)
    chosen = _check_shares(shares)
    check_has_axes(data)
    n_batches = len(data) if hasattr(data, "__len__") else None
    texts, data = read_labelled_texts(data, tokenizer, special_ids)
    check_text_options(texts is not None, tokenizer, special_ids)
    # Forms of data: texts, a pair in memory, a loader of pairs, ids of words.
    is_loader = not isinstance(data, Sequence | Tensor | np.ndarray)
    if is_loader and not isinstance(data, Iterable):
        contract = "a pair (images, classes), a loader of such pairs, or ids of words"
        fail("data", contract, data, error=TypeError)
    planned: dict[str, PlannedAttack] = {}
    images: ImageSet | None
    if texts is not None:
        plan = plan_texts(texts, _text_kinds(corruptions), chosen, seed)
        images = ImageSet(torch.arange(len(texts.y)), texts.y)
    elif isinstance(data, Sequence) or is_loader:
        if word is not None:
            _fail_useless("word", word, "images", "(n, tokens)")
        images = None if is_loader else read_images(data)
        planned = _read_attacks(attacks)
        plan = plan_images(
            corruptions=_image_kinds(corruptions),
            severities=_check_severities(severities),
            attacks=planned,
            budgets=_read_budgets(budgets, budget_unit, pixel_std),
            surrogate=_check_surrogate(surrogate),
            tokens=tokens,
            shares=chosen,
            outliers=read_outliers(
                outliers, None if images is None else images.x.shape[1:]
            ),
            batch_size=size,
            seed=seed,
        )
    else:
        if tokens is not None:
            _fail_useless("tokens", tokens, "ids of words", "(x, y)")
        ids = read_words(data)
        plan = plan_words(ids, word=word, shares=chosen, seed=seed)
        images = ImageSet(torch.arange(len(ids)), ids)
    # Models of all names are measured together, on the same corrupted inputs. The
    # outcomes are divided by name below.
    flat = [one for several in named.values() for one in several]
    with (
        progress_bar(len(plan.conditions) * len(flat), description="conditions")
        if check_flag("progress", progress)
        else nullcontext()
    ):
        if images is None:
            batches = read_batches(data)
            outcomes = measure_batches(batches, flat, plan, n_batches)
        else:
            outcomes = measure_set(images, flat, plan, size)
    counts = {name: len(several) for name, several in named.items()}
    return Robustness(
        rows=tuple(_all_rows(counts, outcomes, plan, level)),
        differences=tuple(compare_outcomes(counts, outcomes, plan, level)),
        confidence=level,
        interval=_interval_text(plan, several=len(flat) > len(named)),
        budget_unit=_unit_text(budget_unit, pixel_std) if planned else "",
    )


def _all_rows(
    counts: Mapping[str, int],
    outcomes: Outcomes,
    plan: EvaluationPlan,
    confidence: float,
) -> Iterator[RobustnessRow]:
    """Yield the rows of all models; warn of those whose gradients may be masked."""
    done = 0
    for name, count in counts.items():
        own = [by_model[done : done + count] for by_model in outcomes]
        done += count
        yield from _rows(name, own, plan, confidence)
        warn_of_masking(name, own, plan)


def _interval_text(plan: EvaluationPlan, *, several: bool) -> str:
    is_words = plan.conditions[0].measure is PERPLEXITY
    text = f"{'Student' if is_words else 'Clopper and Pearson'}'s over examples"
    return f"Student's t over models, or {text} if wider" if several else text


def _text_kinds(corruptions: object) -> list[str] | None:
    """Return names of corruptions of texts, or None for all."""
    if corruptions is None or corruptions is CORRUPTIONS:
        return None
    return _names("corruptions", corruptions, TEXT_CORRUPTIONS)


def _image_kinds(corruptions: object) -> list[str]:
    given = IMAGENET_C if corruptions is None else corruptions
    listed = [given] if isinstance(given, str) else _each("corruptions", given)
    return [check_corruption("corruptions", kind) for kind in listed]


def _check_corruptions(corruptions: object) -> None:
    """Raise unless all are corruptions of texts, or all are corruptions of images."""
    listed = [corruptions] if isinstance(corruptions, str) else corruptions
    if not set(_each("corruptions", listed)) <= set(TEXT_CORRUPTIONS):
        _image_kinds(corruptions)


def check_has_axes(data: Any) -> None:
    """Raise if `data` is an array or tensor without axes."""
    if getattr(data, "ndim", 1) == 0:
        contract = "a pair (images, classes), a loader of such pairs, or ids of words"
        fail("data", contract, data, error=TypeError)


def check_text_options(is_text: bool, tokenizer: Any, special_ids: Any) -> None:
    """Raise if an option for texts comes with data of another kind."""
    for name, value in (("tokenizer", tokenizer), ("special_ids", special_ids)):
        if value is not None and not is_text:
            _fail_useless(name, value, "not texts", "(texts, y)")


def _fail_useless(name: str, value: object, got: str, wanted: str) -> NoReturn:
    contract = f"left out where `data` are {got}"
    hint = f"It is for data of the form {wanted}."
    fail(name, contract, value, hint=hint)


def _named(models: Models) -> dict[str, list[Model]]:
    """Return lists of models by name."""
    named = models if isinstance(models, Mapping) else {"model": models}
    # nn.Sequential and nn.ModuleList are modules, however much they look like lists.
    lists = {
        str(name): list(one)
        if isinstance(one, Sequence) and not isinstance(one, nn.Module)
        else [one]
        for name, one in named.items()
    }
    flat = [one for several in lists.values() for one in several]
    if not flat or not all(lists.values()) or not all(map(callable, flat)):
        contract = "a model, a list of models, or a mapping of names to these"
        fail("model", contract, models, error=TypeError)
    return lists


def _check_surrogate(model: Model | None) -> Model | None:
    if model is None:
        return None
    return check_callable("surrogate", model, "a model")


def check_options(options: Mapping[str, Any]) -> None:
    """Raise unless options that need no model and no data are right.

    The command line calls this before the user's code, which may take long.
    """
    checks: dict[str, Callable[[Any], object]] = {
        "attacks": _read_attacks,
        "batch_size": lambda value: check_count("batch_size", value),
        "budgets": _check_budgets,
        "corruptions": _check_corruptions,
        "seed": lambda value: check_count("seed", value, minimum=0),
        "severities": _check_severities,
        "shares": _check_shares,
    }
    for name, value in options.items():
        if name in checks:
            checks[name](value)


def _check_shares(given: object) -> list[float]:
    return [
        check_number("shares", one, minimum=0.0, maximum=1.0)
        for one in _each("shares", given)
    ]


def _check_severities(given: object) -> list[int]:
    return [
        check_count("severities", one, maximum=5) for one in _each("severities", given)
    ]


def _check_budgets(given: object) -> list[float]:
    return [
        check_number("budgets", one, minimum=0.0) for one in _each("budgets", given)
    ]


def _each(name: str, given: object) -> list[Any]:
    is_listed = isinstance(given, Sequence | np.ndarray | Mapping) and not isinstance(
        given, str | bytes
    )
    if not is_listed or (isinstance(given, np.ndarray) and given.ndim != 1):
        fail(name, "a sequence", given, error=TypeError)
    return list(given)  # type: ignore[call-overload]


def _names(name: str, given: object, known: Sequence[str]) -> list[str]:
    listed = [given] if isinstance(given, str) else _each(name, given)
    return [check_choice(name, one, known) for one in listed]


def _read_attacks(attacks: Attacks) -> dict[str, PlannedAttack]:
    given: Mapping[str, Any]
    if isinstance(attacks, Mapping):
        given = attacks
    else:
        listed = [attacks] if isinstance(attacks, str) else _each("attacks", attacks)
        given = {_check_attack("attacks", name): {} for name in listed}
    return {name: _planned(name, value) for name, value in given.items()}


def _planned(name: str, value: object) -> PlannedAttack:
    """Return an attack of the user, or one of ours with checked options."""
    # `attacks=ATTACKS` means all of ours, without options.
    if value is ATTACKS.get(name):
        value = {}
    if callable(value):
        return PlannedAttack(value, {}, False, False, False)
    _check_attack("attacks", name)
    if not isinstance(value, Mapping):
        contract = "a mapping of options, or a callable attack(model, images, labels)"
        fail(f"attacks[{name!r}]", contract, value)
    function = ATTACKS[name]
    known = set(inspect.signature(function).parameters)
    # What the evaluation sets itself is no option of the user.
    own = sorted(known - {"model", "x", "y", "budget", "generator", "loss"})
    for option in value:
        check_choice(f"attacks[{name!r}]", option, own)
    return PlannedAttack(function, value, "budget" in known, "generator" in known, True)


def _check_attack(name: str, attack: object) -> str:
    """Return the name of an attack of ours, or raise and say where others are."""
    if isinstance(attack, str) and attack in _OF_A_PAPER:
        hint = f"Pass {_OF_A_PAPER[attack]} of eigenheads_papers.teo2024.attacks."
        fail(name, "an attack of `ATTACKS`", attack, hint=hint)
    return check_choice(name, attack, list(ATTACKS))


def _read_budgets(
    budgets: Sequence[float], unit: str, pixel_std: Sequence[float] | None
) -> dict[float, float | Tensor]:
    """Return budgets in 1/255 of the pixel range, by their number in the table."""
    numbers = _check_budgets(budgets)
    check_choice("budget_unit", unit, ("pixel", "normalised"))
    if pixel_std is None and unit != "pixel":
        contract = "given for budget_unit='normalised'"
        fail("pixel_std", contract, pixel_std)
    # A change of e in normalised units is a change of e times std in pixels.
    std = torch.tensor(
        [
            check_positive("pixel_std", one)
            for one in ([] if pixel_std is None else _each("pixel_std", pixel_std))
        ]
    )
    if unit == "pixel":
        return {number: number for number in numbers}
    return {number: number * std.view(-1, 1, 1) for number in numbers}


def _unit_text(unit: str, pixel_std: Sequence[float] | None) -> str:
    if unit == "pixel" or pixel_std is None:
        return "1/255 of the pixel range"
    listed = ", ".join(f"{one:g}" for one in pixel_std)
    return f"1/255 of normalised images (pixels divided by {listed})"


def _rows(
    name: str, outcomes: Outcomes, plan: EvaluationPlan, confidence: float
) -> Iterator[RobustnessRow]:
    for metric, condition, level, measure, arrays in with_means(outcomes, plan):
        values, low, high = measure_runs(arrays, measure, confidence)
        share = metric != "perplexity"
        yield RobustnessRow(
            model=name,
            metric=metric,
            condition=condition,
            level=level,
            value=float(np.mean(values)),
            low=max(low, 0.0) if share else low,
            high=min(high, 1.0) if share else high,
            values=tuple(values),
            n_examples=len(arrays[0]),
        )
