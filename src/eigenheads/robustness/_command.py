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
    attacks: str,
    budgets: str,
    corruptions: str,
    severities: str = "1,2,3,4,5",
    tokens: str | None = None,
    word: int | None = None,
    shares: str = "0.1,0.2,0.4",
    batch_size: int,
    seed: int,
    progress: bool,
) -> Robustness:
    """Call what `source` names, and evaluate the models that it returns.

    Parameters
    ----------
    source
        ``"module:callable"``; the module may lie in the current folder. It returns
        ``(models, data)``, or ``(models, data, options)`` with options of
        :func:`evaluate_robustness`, which go before those of the command line but
        `tokens` and `word`.
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
    options: dict[str, Any] = {
        "attacks": _listed(attacks),
        "budgets": _numbers("budgets", budgets),
        "corruptions": CORRUPTIONS if corruptions == "all" else _listed(corruptions),
        "severities": _whole_numbers("severities", severities),
        "shares": _numbers("shares", shares),
        "batch_size": batch_size,
        "seed": seed,
        "progress": progress,
    }
    asked = {"tokens": tokens, "word": word}
    last = {name: value for name, value in asked.items() if value is not None}
    return evaluate_robustness(models, data, **{**options, **own, **last})


def _listed(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    return [] if names == ["none"] else names


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [as_float(float(part)) for part in _listed(text)]
    except ValueError:
        fail(name, "numbers separated by commas", text, owner=_OWNER)


def _whole_numbers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in _listed(text)]
    except ValueError:
        fail(name, "whole numbers separated by commas", text, owner=_OWNER)
