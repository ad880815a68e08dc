"""What ``eigenheads robustness MODEL`` reads: a callable, and lists."""

from collections.abc import Mapping
from typing import Any

from eigenheads._callables import call_source
from eigenheads._checks import Got, as_float, fail
from eigenheads.robustness._corruptions import CORRUPTIONS
from eigenheads.robustness._evaluate import evaluate_robustness
from eigenheads.robustness._result import Robustness

_OWNER = "robustness"


def evaluate_source(
    source: str,
    *,
    attacks: str | None = None,
    budgets: str | None = None,
    corruptions: str | None = None,
    severities: str | None = None,
    tokens: str | None = None,
    word: int | None = None,
    shares: str | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    progress: bool = False,
) -> Robustness:
    """Call what `source` names, and evaluate the models that it returns.

    Parameters
    ----------
    source
        ``"module:callable"``; the module may lie in the current folder. It returns
        ``(models, data)``, or ``(models, data, options)`` with options of
        :func:`evaluate_robustness`. What is given here goes before these.
    attacks, budgets, corruptions, severities, shares
        Separated by commas.
    tokens, word, batch_size, seed, progress
        As in :func:`evaluate_robustness`.

    Returns
    -------
    robustness
        The table.
    """
    given = call_source(source, name="MODEL", owner=_OWNER)
    if not isinstance(given, tuple) or len(given) not in (2, 3):
        contract = "a callable that returns (models, data) or (models, data, options)"
        got = Got(f"{source!r}, which returned {type(given).__name__}")
        fail("MODEL", contract, got, owner=_OWNER)
    models, data, own = given if len(given) == 3 else (*given, {})
    if not isinstance(own, Mapping):
        fail("options", "a mapping", own, owner=_OWNER)
    asked: dict[str, Any] = {
        "attacks": _given(attacks),
        "budgets": _numbers("budgets", budgets),
        "corruptions": CORRUPTIONS if corruptions == "all" else _given(corruptions),
        "severities": _whole_numbers("severities", severities),
        "shares": _numbers("shares", shares),
        "tokens": tokens,
        "word": word,
        "batch_size": batch_size,
        "seed": seed,
    }
    last = {name: value for name, value in asked.items() if value is not None}
    return evaluate_robustness(models, data, **{"progress": progress, **own, **last})


def _given(text: str | None) -> list[str] | None:
    return None if text is None else _listed(text)


def _listed(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    return [] if names == ["none"] else names


def _numbers(name: str, text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [as_float(float(part)) for part in _listed(text)]
    except ValueError:
        fail(name, "numbers separated by commas", text, owner=_OWNER)


def _whole_numbers(name: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in _listed(text)]
    except ValueError:
        fail(name, "whole numbers separated by commas", text, owner=_OWNER)
