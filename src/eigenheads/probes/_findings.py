"""Findings of a probe in plain words, grouped by question."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from eigenheads._notebook import format_number
from eigenheads.probes._result import LEVEL
from eigenheads.probes._statistics import QUESTIONS, STATISTICS

if TYPE_CHECKING:
    from eigenheads.probes import ModelProbe

# Medians that differ by this share of the larger one are listed, the first few by name.
_CHANGE = 0.1
_N_CHANGES = 4
_OTHERS = "Other statistics"
_NOTHING = "No statistic was compared with a null."
# The paragraph names so many statistics per question, the most frequent ones.
_N_NAMED = 3
# Heads of a statistic that a sentence of its own names.
_N_HEADS = 3
# Share of the attention that is most of it.
_MOST = 0.5


def questions(probe: "ModelProbe") -> dict[str, list[str]]:
    """Return the statistics of a probe by question; unknown ones come last."""
    grouped: dict[str, list[str]] = {name: [] for name in (*QUESTIONS, _OTHERS)}
    for name in probe.statistics:
        entry = STATISTICS.get(name)
        grouped[_OTHERS if entry is None else entry.question].append(name)
    return {question: names for question, names in grouped.items() if names}


def paragraph(probe: "ModelProbe", level: float = LEVEL) -> str:
    """Return the findings in plain words, one sentence per question."""
    sentences = []
    rows = _rows_by_statistic(probe, level)
    undecided: list[str] = []
    for names in questions(probe).values():
        answered, none = [], []
        for name in names:
            n_found, n_heads = _counts(probe, name, level)
            if n_found:
                leading = _leading(probe, name, 1, level)
                text = f"{leading} ({_counted(probe, name, level)})"
                answered.append((n_found, text))
            elif _is_open(probe, name, level):
                undecided.append(name)
                if _is_share(name):
                    leading = _leading(probe, name, 1, level)
                    text = f"{leading} ({_counted(probe, name, level)})"
                    answered.append((0, text))
            elif n_heads and probe[name].nulls:
                none.append(_words(probe, name))
        if text := _question_text(answered, none):
            sentences.append(f"{text[0].upper()}{text[1:]}.")
    if undecided:
        # Once for all questions: mostly one null has too few draws for all of them.
        needs = _needs([row for name in undecided for row in rows[name]])
        sentences.append(
            f"Cannot tell in {_plural(len(undecided), 'statistic')}, "
            f"needs {_listed(needs)}."
        )
    changed = dict.fromkeys(probe.contrasts, 0)
    for row in probe.contrast_rows():
        changed[row["tokens"]] += is_change(row)
    n_all = len(probe.statistics)
    sentences += [
        f"{tokens.capitalize()}, {n} of {n_all} medians change by more than a tenth."
        for tokens, n in changed.items()
    ]
    return " ".join(sentences) or _NOTHING


def _question_text(answered: list[tuple[int, str]], none: list[str]) -> str:
    """Return one sentence: the most frequent findings, and absences."""
    answered.sort(key=lambda one: -one[0])
    parts = [text for _, text in answered[:_N_NAMED]]
    if not answered:
        parts = [f"no head {_for_one(phrase)}" for phrase in none[:1]]
    elif none:
        parts.append(f"none {_for_one(none[0])}")
    text = _listed(parts) if parts else ""
    n_more = max(0, len(answered) - _N_NAMED) + max(0, len(none) - 1)
    return f"{text} ({n_more} more below)" if n_more else text


def _leading(probe: "ModelProbe", name: str, number: int, level: float) -> str:
    """Return which heads lead in a statistic, with their values."""
    first, *more = probe.top_heads(name, number, level)
    place = f"layer {first['layer']}, head {first['head']}"
    entry = STATISTICS.get(name)
    reading = entry.reading if entry is not None else ""
    reading = reading or f"has {name.replace('_', ' ')} {{}}"
    text = f"{place} {reading.format(format_number(first['value']))}"
    if not more:
        return text
    others = [
        f"layer {row['layer']}, head {row['head']} ({format_number(row['value'])})"
        for row in more
    ]
    return f"{text}, then {_listed(others)}"


def _counted(probe: "ModelProbe", name: str, level: float) -> str:
    """Return the number of heads that stand out, and of those with most of a share."""
    n_found, n_heads = _counts(probe, name, level)
    if not _is_share(name):
        return f"{n_found} of {n_heads} heads stand out"
    n_most = int((probe[name].observed > _MOST).sum())
    text = f"{n_most} of {n_heads} heads more than half; "
    return text + (f"{n_found} stand out" if n_found else "cannot tell against chance")


def _is_share(name: str) -> bool:
    return name in STATISTICS and STATISTICS[name].is_share


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _for_one(phrase: str) -> str:
    """Return a phrase with its verb in the singular.

    Examples
    --------
    >>> _for_one("have outlier keys"), _for_one("attend to the first token")
    ('has outlier keys', 'attends to the first token')
    """
    verb, _, remainder = phrase.partition(" ")
    return f"{'has' if verb == 'have' else verb + 's'} {remainder}"


def _words(probe: "ModelProbe", name: str) -> str:
    """Return what a head does that stands out in a statistic."""
    if name in STATISTICS:
        return STATISTICS[name].finding
    words = {"greater": "larger", "less": "smaller", "two-sided": "different"}
    kind = words[probe[name].alternative]
    return f"have a {kind} {name.replace('_', ' ')} than chance"


def _counts(probe: "ModelProbe", name: str, level: float) -> tuple[int, int]:
    """Return the number of heads that stand out, and of those with a value."""
    n_found = int(probe.stands_out(name, level).sum())
    return n_found, int(np.isfinite(probe[name].observed).sum())


def _rows_by_statistic(
    probe: "ModelProbe", level: float
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the summary, one per null, by statistic."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in probe.statistics}
    for row in probe.summary(level):
        rows[row["statistic"]].append(row)
    return rows


def findings(probe: "ModelProbe", level: float = LEVEL) -> list[str]:
    """Return sentences: leading heads and tests, statistics without any, open cases."""
    rows = _rows_by_statistic(probe, level)
    answered, none, open_cases = [], [], []
    for name, of_statistic in rows.items():
        n_found, n_heads = _counts(probe, name, level)
        # A head that stands out from all nulls is a finding. The case is open if more
        # draws could still make one: a null that decides against a head closes it.
        if n_found:
            phrase = _words(probe, name)
            phrase = _for_one(phrase) if n_found == 1 else phrase
            text = _leading(probe, name, _N_HEADS, level)
            text = f"{text[0].upper()}{text[1:]} ({_counted(probe, name, level)}). "
            text += f"{n_found} of {n_heads} heads {phrase}"
            answered.append((n_found, f"{text} ({name}: {_numbers(of_statistic)})."))
        elif _is_open(probe, name, level):
            open_cases.append(f"{name} (needs {_listed(_needs(of_statistic))})")
            if _is_share(name):
                text = _leading(probe, name, _N_HEADS, level)
                text = f"{text[0].upper()}{text[1:]} ({_counted(probe, name, level)})."
                answered.append((0, text))
        elif of_statistic and n_heads:
            none.append(name)
    answered.sort(key=lambda one: -one[0])
    sentences = [sentence for _, sentence in answered]
    if none:
        sentences.append(f"No head stands out in {_listed(none)}.")
    if open_cases:
        sentences.append(f"Cannot tell: {_listed(open_cases)}.")
    return (sentences or [_NOTHING]) + _changes(probe)


def _is_open(probe: "ModelProbe", name: str, level: float) -> bool:
    """Return whether a head may stand out with more draws of the nulls that need them.

    Such a head has been found against every null that could decide about it.
    """
    heads = np.isfinite(probe[name].observed)
    is_short = False
    for null in probe[name].nulls:
        if not probe.can_decide(name, null, level):
            is_short = True
            continue
        waiting = probe.is_undecided(name, null, level) & heads
        is_short |= bool(waiting.any())
        heads &= waiting | (probe.q_value(name, null) <= level)
    return is_short and bool(heads.any())


def _changes(probe: "ModelProbe") -> list[str]:
    """Return which medians other sets of tokens change by more than a tenth."""
    changed: dict[str, list[str]] = {}
    for row in probe.contrast_rows():
        if is_change(row):
            numbers = f"{format_number(row['other_median'])}"
            text = f"{row['statistic']} {numbers} instead of "
            text += format_number(row["median"])
            changed.setdefault(row["tokens"], []).append(text)
    sentences = []
    for tokens in probe.contrasts:
        texts = changed.get(tokens, [])
        if not texts:
            change = "no median changes by more than a tenth"
        else:
            n_more = len(texts) - _N_CHANGES
            more = [f"{n_more} more"] if n_more > 0 else []
            change = f"medians change: {_listed([*texts[:_N_CHANGES], *more])}"
        sentences.append(f"{tokens.capitalize()}, {change}.")
    return sentences


def is_change(row: Mapping[str, Any]) -> bool:
    """Return whether a median differs by more than a tenth on other tokens."""
    before, after = row["median"], row["other_median"]
    return bool(abs(after - before) > _CHANGE * max(abs(before), abs(after)))


def found_text(row: Mapping[str, Any]) -> str:
    """Return the number of heads found, and the draws that would decide open cases.

    Examples
    --------
    >>> row = {"n_found": 3, "n_heads": 12, "n_undecided": 0, "needs": ""}
    >>> found_text(row)
    '3 of 12'
    >>> found_text({**row, "n_undecided": 2, "needs": "89 draws"})
    '3 of 12; cannot tell for 2, needs 89 draws'
    >>> found_text({**row, "n_found": None, "needs": "39 draws"})
    'cannot tell, needs 39 draws'
    """
    if row["n_found"] is None:
        return f"cannot tell, needs {row['needs']}"
    text = f"{row['n_found']} of {row['n_heads']}"
    if row["n_undecided"]:
        text += f"; cannot tell for {row['n_undecided']}, needs {row['needs']}"
    return text


def _needs(rows: list[dict[str, Any]]) -> list[str]:
    """Return what would decide: the largest number of draws, and that of copies."""
    most: dict[str, int] = {}
    for row in rows:
        if row["needs"]:
            number, unit = row["needs"].split()
            unit = "untrained copies" if unit == "copies" else unit
            most[unit] = max(int(number), most.get(unit, 0))
    return [f"{number} {unit}" for unit, number in most.items()]


def _numbers(rows: list[dict[str, Any]]) -> str:
    """Return the medians of a statistic and of its nulls."""
    nulls = ", ".join(
        f"{row['null'].replace('_', ' ')} {format_number(row['null_median'])}"
        + (f", which needs {row['needs']} to decide" if row["n_found"] is None else "")
        for row in rows
    )
    return f"median {format_number(rows[0]['median'])}; {nulls}"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]
