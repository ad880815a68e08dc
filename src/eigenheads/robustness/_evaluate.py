"""Evaluate how robust models are: one call, one tidy table."""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from typing import Any, Final, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from eigenheads._checks import (
    Got,
    check_callable,
    check_choice,
    check_count,
    check_flag,
    check_instance,
    check_number,
    check_positive,
    fail,
)
from eigenheads._parallel import progress_bar
from eigenheads.robustness._attacks import ATTACKS, AUTOATTACK, autoattack
from eigenheads.robustness._corruptions import (
    CORRUPTIONS,
    IMAGENET_C,
    SEVERITIES,
    check_corruption,
)
from eigenheads.robustness._intervals import AUPR, PERPLEXITY, SHARE, measure_runs
from eigenheads.robustness._plan import (
    Batches,
    Conditions,
    Outcomes,
    PlannedAttack,
    RobustnessPlan,
    in_batches,
    measure_batches,
    measure_set,
    plan_images,
    plan_words,
    with_means,
)
from eigenheads.robustness._read import (
    ImageSet,
    OnlyClasses,
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
    outliers: Any = None,
    tokens: str | None = None,
    shares: Sequence[float] = (0.1, 0.2, 0.4),
    word: int | None = None,
    tokenizer: Callable[..., Any] | None = None,
    plan: RobustnessPlan | None = None,
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
        by batch; None, to measure only the corrupted images of `plan`; for a causal
        language model, ids of words ``(n, tokens)``; or, for a
        classifier of texts, texts and classes ``(texts, y)`` with a `tokenizer`, ids
        and classes, or one or several batches as Hugging Face's models take them
        (mappings with ``input_ids``, ``attention_mask`` and ``labels``).
    corruptions, severities
        For texts, some of :data:`TEXT_CORRUPTIONS`: typing mistakes; words left out,
        exchanged with the next one, or inserted; tokens replaced by others; by
        default all. For images, some of :data:`CORRUPTIONS`, and their severities; by
        default those of :data:`IMAGENET_C`.
    attacks
        Names from :data:`ATTACKS`, or ``"autoattack"`` if pyautoattack is installed; or
        a mapping from names to options, such as ``{"pgd": {"n_steps": 20}}``, or to
        your own attack: any callable ``attack(model, images, labels)`` that returns
        attacked images. It gets the model itself, chooses its own budget, and draws
        from `generator` if it has such a parameter.
    budgets
        Budgets of the attacks in the maximum norm, in 1/255 of the pixel range.
    outliers
        Images of none of the classes, to be detected by low confidence; or a loader of
        pairs of these and anything.
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
    plan
        Further options: other numbers of best classes, some classes only, corrupted
        images on disk, errors relative to AlexNet's, budgets of normalised images,
        transferred attacks, several processes.
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
    corruption and for all, as on CIFAR-10-C. ``"relative corruption error"``, with
    ``RobustnessPlan(relative_to=ALEXNET_ERRORS)``, divides the errors by AlexNet's
    first, as on ImageNet-C. Under an attack, an example counts as correct if it is
    classified correctly both before and after, so only such examples are attacked.
    ``"AUPR"`` uses outliers as the positive class and
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
    more = check_instance("plan", plan or RobustnessPlan(), RobustnessPlan)
    n_batches = len(data) if hasattr(data, "__len__") else None
    conditions, inputs = _read(
        data,
        more,
        {
            "corruptions": corruptions,
            "severities": severities,
            "attacks": attacks,
            "budgets": budgets,
            "outliers": outliers,
            "tokens": tokens,
            "word": word,
            "tokenizer": tokenizer,
        },
        shares=_check_shares(shares),
        seed=check_count("seed", seed, minimum=0),
        size=size,
    )
    conditions = replace(conditions, gather=more.gather)
    # Models of all names are measured together, on the same corrupted inputs. The
    # outcomes are divided by name below.
    flat = _with_classes([*chain(*named.values())], more.classes)
    shows_bar = check_flag("progress", progress)
    outcomes = _measure(inputs, flat, conditions, size, n_batches, shows_bar)
    counts = {name: len(several) for name, several in named.items()}
    unit = _unit_text(more.budget_unit, more.pixel_std)
    return Robustness(
        rows=tuple(_all_rows(counts, outcomes, conditions, level)),
        differences=tuple(compare_outcomes(counts, outcomes, conditions, level)),
        confidence=level,
        interval=_interval_text(conditions, several=len(flat) > len(named)),
        budget_unit=unit if conditions.is_attacked else "",
    )


def _read(
    data: Any,
    plan: RobustnessPlan,
    options: Mapping[str, Any],
    *,
    shares: list[float],
    seed: int,
    size: int,
) -> tuple[Conditions, ImageSet | Batches]:
    """Return conditions and inputs: texts, ids of words, images, a loader of them."""
    check_has_axes(data)
    tokenizer, tokens = options["tokenizer"], options["tokens"]
    texts, data = read_labelled_texts(data, tokenizer, plan.special_ids)
    check_text_options(texts is not None, tokenizer, plan.special_ids)
    if texts is not None:
        conditions = plan_texts(
            texts, _text_kinds(options["corruptions"]), shares, seed
        )
        return conditions, ImageSet(torch.arange(len(texts.y)), texts.y)
    if isinstance(data, Tensor | np.ndarray):
        if tokens is not None:
            _fail_useless("tokens", tokens, "ids of words", "(x, y)")
        ids = read_words(data)
        conditions = plan_words(ids, word=options["word"], shares=shares, seed=seed)
        return conditions, ImageSet(torch.arange(len(ids)), ids)
    is_only_corrupted = data is None and bool(plan.corrupted)
    if not (is_only_corrupted or isinstance(data, Iterable)):
        contract = "a pair (images, classes), a loader of such pairs, or ids of words"
        fail("data", contract, data, error=TypeError)
    if options["word"] is not None:
        _fail_useless("word", options["word"], "images", "(n, tokens)")
    inputs = read_images(data) if isinstance(data, Sequence) else read_batches(data)
    shape = inputs.x.shape[1:] if isinstance(inputs, ImageSet) else None
    outliers = read_outliers(options["outliers"], shape)
    conditions = plan_images(
        **_image_options(plan, options, size),
        outliers=_batches_of("outliers", outliers, size),
        tokens=tokens,
        shares=shares,
        seed=seed,
        is_only_corrupted=is_only_corrupted,
    )
    return conditions, () if is_only_corrupted else inputs


def _measure(
    data: ImageSet | Batches,
    models: Sequence[Model],
    conditions: Conditions,
    size: int,
    n_batches: int | None,
    shows_bar: bool,
) -> Outcomes:
    """Return outcomes by condition and model, perhaps with a progress bar."""
    total = len(conditions.conditions) * len(models)
    bar = progress_bar(total, description="conditions") if shows_bar else nullcontext()
    with bar:
        if isinstance(data, ImageSet):
            return measure_set(data, models, conditions, size)
        return measure_batches(data, models, conditions, n_batches)


def _image_options(
    plan: RobustnessPlan, options: Mapping[str, Any], size: int
) -> dict[str, Any]:
    """Return what :func:`plan_images` takes from the options, checked."""
    kinds = _image_kinds(options["corruptions"])
    return {
        "corruptions": kinds,
        "severities": _check_severities(options["severities"]),
        "corrupted": _read_corrupted(plan.corrupted, size),
        "relative_to": _check_errors(plan.relative_to, [*kinds, *plan.corrupted]),
        "attacks": _read_attacks(options["attacks"]),
        "budgets": _read_budgets(options["budgets"], plan.budget_unit, plan.pixel_std),
        "surrogate": _check_surrogate(plan.surrogate),
        "top": _check_top(plan.top),
    }


def _with_classes(models: list[Model], classes: Sequence[int] | None) -> list[Model]:
    """Return the models, or models that answer these classes only."""
    if classes is None:
        return models
    answers = [check_count("classes", number, minimum=0) for number in classes]
    return [OnlyClasses(model, answers) for model in models]


def _batches_of(name: str, data: object, size: int) -> Batches | None:
    """Return batches of a set in memory, or those of a loader; None for None."""
    if isinstance(data, ImageSet):
        return list(in_batches(size, data.x, data.y))
    if data is not None and not isinstance(data, Iterable):
        fail(name, "pairs (images, classes) or loaders of these", data, error=TypeError)
    return None if data is None else read_batches(data)


def _read_corrupted(corrupted: object, size: int) -> dict[str, dict[int, Batches]]:
    """Return batches by kind and severity."""
    contract = "a mapping of kinds to mappings of severities to data"
    if not isinstance(corrupted, Mapping):
        fail("corrupted", contract, corrupted, error=TypeError)
    batches_of: dict[str, dict[int, Batches]] = {}
    for kind, by_severity in corrupted.items():
        if not isinstance(by_severity, Mapping) or not by_severity:
            fail(f"corrupted[{kind!r}]", contract, by_severity, error=TypeError)
        for severity, data in by_severity.items():
            name = f"corrupted[{kind!r}][{severity!r}]"
            is_pair = isinstance(data, Sequence) and len(data) == 2
            batches = _batches_of(name, read_images(data) if is_pair else data, size)
            level = check_count(f"severity of {kind}", severity, minimum=0)
            batches_of.setdefault(str(kind), {})[level] = batches or ()
    return batches_of


def _check_errors(
    errors: Mapping[str, float] | None, kinds: Sequence[str]
) -> Mapping[str, float] | None:
    for kind in kinds if errors is not None else ():
        if errors is not None and kind not in errors:
            got = Got(f"none of {kind}")
            fail("relative_to", "errors of all corruptions", got)
    return errors


def _check_top(top: object) -> tuple[int, ...]:
    numbers = tuple(check_count("top", number) for number in _each("top", top))
    if not numbers or sorted(set(numbers)) != list(numbers):
        fail("top", "increasing numbers, at least one", top)
    return numbers


def _all_rows(
    counts: Mapping[str, int],
    outcomes: Outcomes,
    plan: Conditions,
    confidence: float,
) -> Iterator[RobustnessRow]:
    """Yield the rows of all models; warn of those whose gradients may be masked."""
    done = 0
    for name, count in counts.items():
        runs = [by_model[done : done + count] for by_model in outcomes]
        done += count
        yield from _rows(name, runs, plan, confidence)
        warn_of_masking(name, runs, plan)


def _interval_text(plan: Conditions, *, several: bool) -> str:
    is_words = plan.conditions[0].measure is PERPLEXITY
    text = f"{'Student' if is_words else 'Clopper and Pearson'}'s over examples"
    return f"Student's t over models, or {text} if wider" if several else text


def _text_kinds(corruptions: object) -> list[str] | None:
    """Return names of corruptions of texts, or None for all."""
    if corruptions is None or corruptions is CORRUPTIONS:
        return None
    return _names("corruptions", corruptions, TEXT_CORRUPTIONS)


def _image_kinds(corruptions: object) -> list[str]:
    chosen = IMAGENET_C if corruptions is None else corruptions
    listed = [chosen] if isinstance(chosen, str) else _each("corruptions", chosen)
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


def _fail_useless(name: str, value: object, got: str, form: str) -> NoReturn:
    contract = f"left out where `data` are {got}"
    hint = f"It is for data of the form {form}."
    fail(name, contract, value, hint=hint)


def _named(models: Models) -> dict[str, list[Model]]:
    """Return lists of models by name."""
    named = models if isinstance(models, Mapping) else {"model": models}
    # nn.Sequential and nn.ModuleList are modules, however much they look like lists.
    lists = {
        str(name): list(entry)
        if isinstance(entry, Sequence) and not isinstance(entry, nn.Module)
        else [entry]
        for name, entry in named.items()
    }
    flat = [entry for several in lists.values() for entry in several]
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


def _check_shares(shares: object) -> list[float]:
    return [
        check_number("shares", share, minimum=0.0, maximum=1.0)
        for share in _each("shares", shares)
    ]


def _check_severities(severities: object) -> list[int]:
    return [
        check_count("severities", severity, maximum=5)
        for severity in _each("severities", severities)
    ]


def _check_budgets(budgets: object) -> list[float]:
    return [
        check_number("budgets", budget, minimum=0.0)
        for budget in _each("budgets", budgets)
    ]


def _each(name: str, values: object) -> list[Any]:
    is_listed = isinstance(values, Sequence | np.ndarray | Mapping) and not isinstance(
        values, str | bytes
    )
    if not is_listed or (isinstance(values, np.ndarray) and values.ndim != 1):
        fail(name, "a sequence", values, error=TypeError)
    return list(values)  # type: ignore[call-overload]


def _names(name: str, names: object, choices: Sequence[str]) -> list[str]:
    listed = [names] if isinstance(names, str) else _each(name, names)
    return [check_choice(name, entry, choices) for entry in listed]


def _read_attacks(attacks: Attacks) -> dict[str, PlannedAttack]:
    by_name: Mapping[str, Any]
    if isinstance(attacks, Mapping):
        by_name = attacks
    else:
        listed = [attacks] if isinstance(attacks, str) else _each("attacks", attacks)
        by_name = {_check_attack("attacks", name): {} for name in listed}
    return {name: _planned(name, value) for name, value in by_name.items()}


def _planned(name: str, value: object) -> PlannedAttack:
    """Return an attack of the user, or one of ours with checked options."""
    # `attacks=ATTACKS` means all of ours, without options.
    if value is ATTACKS.get(name):
        value = {}
    if callable(value):
        return PlannedAttack(value, {}, False, _takes(value, "generator"), False)
    _check_attack("attacks", name)
    if not isinstance(value, Mapping):
        contract = "a mapping of options, or a callable attack(model, images, labels)"
        fail(f"attacks[{name!r}]", contract, value)
    function = {**ATTACKS, AUTOATTACK: autoattack}[name]
    parameters = set(inspect.signature(function).parameters)
    # What the evaluation sets itself is no option of the user.
    options = sorted(parameters - {"model", "x", "y", "budget", "generator", "loss"})
    for option in value:
        check_choice(f"attacks[{name!r}]", option, options)
    return PlannedAttack(
        function, value, "budget" in parameters, "generator" in parameters, True
    )


def _takes(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function has a parameter of this name."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _check_attack(name: str, attack: object) -> str:
    """Return the name of an attack of ours, or raise and say where others are."""
    if isinstance(attack, str) and attack in _OF_A_PAPER:
        hint = f"Pass {_OF_A_PAPER[attack]} of eigenheads_papers.teo2024.attacks."
        fail(name, "an attack of `ATTACKS`", attack, hint=hint)
    return check_choice(name, attack, [*ATTACKS, AUTOATTACK])


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
            check_positive("pixel_std", deviation)
            for deviation in (
                [] if pixel_std is None else _each("pixel_std", pixel_std)
            )
        ]
    )
    if unit == "pixel":
        return {number: number for number in numbers}
    return {number: number * std.view(-1, 1, 1) for number in numbers}


def _unit_text(unit: str, pixel_std: Sequence[float] | None) -> str:
    if unit == "pixel" or pixel_std is None:
        return "1/255 of the pixel range"
    listed = ", ".join(f"{deviation:g}" for deviation in pixel_std)
    return f"1/255 of normalised images (pixels divided by {listed})"


def _rows(
    name: str, outcomes: Outcomes, plan: Conditions, confidence: float
) -> Iterator[RobustnessRow]:
    for metric, condition, level, measure, arrays in with_means(outcomes, plan):
        values, low, high = measure_runs(arrays, measure, confidence)
        share = measure in (SHARE, AUPR)
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
