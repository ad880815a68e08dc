"""Evaluate how robust models are: one call, one tidy table."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from eigenheads._checks import (
    check_choice,
    check_count,
    check_number,
    fail,
)
from eigenheads._parallel import advance, progress_bar
from eigenheads.robustness._attacks import fgsm, pgd
from eigenheads.robustness._blind_attacks import spsa, square
from eigenheads.robustness._corruptions import CORRUPTIONS, SEVERITIES
from eigenheads.robustness._plan import Plan, mean, plan_images, plan_words
from eigenheads.robustness._read import read_images, read_words
from eigenheads.robustness._result import (
    Resampling,
    Robustness,
    RobustnessRow,
    interval,
)

_OWNER = "evaluate_robustness"
_ATTACKS: Final[dict[str, Callable[..., Tensor]]] = {
    "fgsm": fgsm,
    "pgd": pgd,
    "spsa": spsa,
    "square": square,
}
ATTACKS: Final = tuple(_ATTACKS)
Model = nn.Module | Callable[[Tensor], Any]
Models = Model | Sequence[Model] | Mapping[str, Model | Sequence[Model]]


def evaluate_robustness(
    model: Models,
    data: Any,
    *,
    corruptions: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    attacks: Sequence[str] | Mapping[str, Mapping[str, Any]] = ATTACKS,
    budgets: Sequence[float] = (1.0, 2.0, 4.0, 8.0),
    outliers: Any = None,
    tokens: str | None = None,
    shares: Sequence[float] = (0.1, 0.2, 0.4),
    word: int | None = None,
    batch_size: int = 256,
    seed: int = 0,
    confidence: float = 0.95,
    n_resamples: int = 500,
    progress: bool = False,
) -> Robustness:
    """Measure what models lose on corrupted, attacked and foreign input.

    Parameters
    ----------
    model
        Inputs to logits (or to an output with ``.logits``). A list holds one model
        trained several times, with different seeds; a mapping holds models to compare,
        by name, each alone or as such a list.
    data
        Images and classes ``(x, y)``, `x` of shape ``(n, …, height, width)`` with
        entries 0 to 1; or, for a causal language model, ids of words ``(n, tokens)``.
    corruptions, severities
        Which of :data:`CORRUPTIONS`, and how severe.
    attacks
        Names of attacks, or a mapping from names to options, such as
        ``{"pgd": {"n_steps": 20}}``.
    budgets
        Of the attacks, in 1/255 of the range of pixels.
    outliers
        Images of none of the classes: how well does low confidence tell them?
    tokens
        Name of the module whose output ``(batch, tokens, d)`` are embedded tokens, for
        the corruption of tokens (:func:`corrupting_tokens`).
    shares
        Of tokens replaced, or of words swapped.
    word
        Id of the word that is swapped in (:func:`swap_words`).
    batch_size
        Examples at a time.
    seed
        Of corruptions, attacks and resampling; every model meets the same.
    confidence
        Of the intervals: Student's t over models of a list, bootstrap over examples
        for a model alone.
    n_resamples
        Of the bootstrap.
    progress
        Whether to show a bar.

    Returns
    -------
    robustness
        Tidy rows, with ``.to_frame()``, ``.save(path)`` and a readable ``str``.

    Notes
    -----
    ``"mean corruption error"`` is the mean of the errors over severities, for each
    corruption and for all; it is not divided by the errors of AlexNet, as benchmarks on
    ImageNet do. Under an attack, an example counts as right if it is right both before
    and after. ``"AUPR"`` takes outliers for the positive class and one minus the
    largest probability for the score. ``"perplexity"`` under swapped words counts only
    words that were not swapped themselves.

    Examples
    --------
    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 10))
    >>> x, y = torch.rand(20, 1, 4, 4), torch.randint(0, 10, (20,))
    >>> found = evaluate_robustness(
    ...     model, (x, y), corruptions=["blur"], attacks=["fgsm"], budgets=[8])
    >>> sorted({row.condition for row in found.rows})
    ['all corruptions', 'blur', 'clean', 'fgsm']
    """
    named = _named(model)
    size = check_count("batch_size", batch_size, owner=_OWNER)
    level = check_number(
        "confidence", confidence, owner=_OWNER, minimum=0.5, maximum=0.9999
    )
    seed = check_count("seed", seed, owner=_OWNER, minimum=0)
    resampling = Resampling(
        level, check_count("n_resamples", n_resamples, owner=_OWNER), seed
    )
    chosen = _check_shares(shares)
    if isinstance(data, Sequence):
        if word is not None:
            _fail_useless("word", word, "images", "(n, tokens)")
        plan = plan_images(
            read_images(data, outliers, owner=_OWNER),
            corruptions=_names("corruptions", corruptions, CORRUPTIONS),
            severities=_check_severities(severities),
            attacks=_read_attacks(attacks),
            budgets=_check_budgets(budgets),
            tokens=tokens,
            shares=chosen,
            seed=seed,
        )
    else:
        if tokens is not None:
            _fail_useless("tokens", tokens, "ids of words", "(x, y)")
        ids = read_words(data, owner=_OWNER)
        plan = plan_words(ids, word=word, shares=chosen, seed=seed)
    n_units = len(plan.conditions) * sum(map(len, named.values()))
    bar = progress_bar(n_units, description="conditions") if progress else nullcontext()
    with bar:
        rows = [
            row
            for name, models in named.items()
            for row in _rows(name, _outcomes(models, plan, size), plan, resampling)
        ]
    several = any(len(models) > 1 for models in named.values())
    return Robustness(
        rows=tuple(rows),
        confidence=level,
        interval="Student's t over models" if several else "bootstrap over examples",
    )


def _fail_useless(name: str, value: object, got: str, wanted: str) -> NoReturn:
    contract = f"left out where `data` are {got}"
    hint = f"It is for data of the form {wanted}."
    fail(name, contract, value, owner=_OWNER, hint=hint)


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
        fail("model", contract, models, owner=_OWNER, error=TypeError)
    return lists


def check_options(options: Mapping[str, Any]) -> None:
    """Raise unless options that need no model and no data are right.

    The command line calls this before the user's code, which may take long.
    """
    checks: dict[str, Callable[[Any], object]] = {
        "attacks": _read_attacks,
        "batch_size": lambda value: check_count("batch_size", value, owner=_OWNER),
        "budgets": _check_budgets,
        "corruptions": lambda value: _names("corruptions", value, CORRUPTIONS),
        "seed": lambda value: check_count("seed", value, owner=_OWNER, minimum=0),
        "severities": _check_severities,
        "shares": _check_shares,
    }
    for name, value in options.items():
        if name in checks:
            checks[name](value)


def _check_shares(given: object) -> list[float]:
    return [
        check_number("shares", one, owner=_OWNER, minimum=0.0, maximum=1.0)
        for one in _each("shares", given)
    ]


def _check_severities(given: object) -> list[int]:
    return [
        check_count("severities", one, owner=_OWNER, maximum=5)
        for one in _each("severities", given)
    ]


def _check_budgets(given: object) -> list[float]:
    return [
        check_number("budgets", one, owner=_OWNER, minimum=0.0)
        for one in _each("budgets", given)
    ]


def _each(name: str, given: object) -> list[Any]:
    is_listed = isinstance(given, Sequence | np.ndarray | Mapping) and not isinstance(
        given, str | bytes
    )
    if not is_listed or np.ndim(given) > 1:  # type: ignore[arg-type]
        fail(name, "a sequence", given, owner=_OWNER, error=TypeError)
    return list(given)  # type: ignore[call-overload]


def _names(name: str, given: object, known: Sequence[str]) -> list[str]:
    listed = [given] if isinstance(given, str) else _each(name, given)
    return [check_choice(name, one, known, owner=_OWNER) for one in listed]


def _read_attacks(
    attacks: Sequence[str] | Mapping[str, Mapping[str, Any]],
) -> dict[str, tuple[Callable[..., Tensor], Mapping[str, Any]]]:
    names = _names("attacks", attacks, ATTACKS)
    options = attacks if isinstance(attacks, Mapping) else {}
    for name in names:
        known = set(inspect.signature(_ATTACKS[name]).parameters)
        for option in options.get(name, {}):
            own = sorted(known - {"model", "x", "y", "budget", "generator"})
            check_choice(f"attacks[{name!r}]", option, own, owner=_OWNER)
    return {name: (_ATTACKS[name], options.get(name, {})) for name in names}


def _outcomes(
    models: list[Model], plan: Plan, size: int
) -> list[list[NDArray[np.float64]]]:
    """Return the outcomes by condition and model."""
    found = []
    for condition in plan.conditions:
        by_model = []
        for model in models:
            by_model.append(condition.measure(model, size))
            advance(1.0)
        found.append(by_model)
    return found


def _rows(
    name: str,
    outcomes: list[list[NDArray[np.float64]]],
    plan: Plan,
    resampling: Resampling,
) -> Iterator[RobustnessRow]:
    measured = [
        (one.metric, one.condition, one.level, one.statistic, arrays)
        for one, arrays in zip(plan.conditions, outcomes, strict=True)
    ]
    for group in plan.means:
        members = [outcomes[index] for index in group.members]
        errors = [1 - np.mean(arrays, axis=0) for arrays in zip(*members, strict=True)]
        measured.append((group.metric, group.condition, None, mean, errors))
    for metric, condition, level, statistic, arrays in measured:
        # The same resamples for every row and model, so that rows compare.
        values, low, high = interval(arrays, statistic, resampling)
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
