"""Result of an evaluation: rows, differences of models, warning of masked gradients."""

import csv
import io
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal

import numpy as np

from eigenheads._checks import Got, check_path, check_text, fail
from eigenheads._files import write_atomically
from eigenheads._notebook import html_table
from eigenheads.robustness._intervals import (
    Measure,
    Runs,
    mean_outcome,
    pair_bounds,
    run_bounds,
)
from eigenheads.robustness._plan import Conditions, Outcomes, with_means

if TYPE_CHECKING:
    import pandas

Comparison = Literal["better", "worse", "cannot tell"]
_ERRORS: Final = ("mean corruption error", "relative corruption error")
_LOWER: Final = (*_ERRORS, "perplexity")
# Attacks in the same norm, with and without gradients: the former should be stronger.
_WITH_GRADIENT = ("fgsm", "pgd", "apgd-ce", "apgd-dlr")
_WITHOUT = ("noise", "spsa", "square", *(f"{n} transferred" for n in _WITH_GRADIENT))
_ONE_POINT = 0.01


def check_names(**names: object) -> None:
    """Raise unless every name is text or None."""
    for name, value in names.items():
        if value is not None:
            check_text(name, value)


@dataclass(frozen=True, kw_only=True)
class RobustnessRow:
    """One measurement of a model under one condition.

    Attributes
    ----------
    model
        Name of the model.
    metric
        ``"top-1"``, ``"top-5"``, ``"mean corruption error"``, ``"AUPR"``: shares;
        ``"relative corruption error"``; or ``"perplexity"``.
    condition
        ``"clean"``, a corruption, an attack, ``"tokens replaced"``, ``"outliers"``,
        ``"words swapped"``.
    level
        Severity, budget, or share; None where there is none.
    value, low, high
        Mean over the models, and its interval. For several models it is the wider
        of Student's t over models and the interval over examples.
    values
        One value per model, in their order: pair them to compare two rows.
    n_examples
        Examples measured.
    """

    model: str
    metric: str
    condition: str
    level: float | None
    value: float
    low: float
    high: float
    values: tuple[float, ...]
    n_examples: int


@dataclass(frozen=True, kw_only=True)
class RobustnessDifference:
    """A model less the first one, under one condition.

    Attributes
    ----------
    model, baseline
        Names of the two models.
    metric, condition, level
        As in the rows of the table.
    value, low, high
        Mean difference and its interval, in the unit of the metric.
    verdict
        ``"better"`` or ``"worse"`` if zero is outside the interval, else ``"cannot
        tell"``. Of errors and perplexities, less is better.
    detectable
        Difference that so many pairs show with a probability of about 80 %.
    n_pairs
        Number of pairs: of training runs if each model is a list, else of examples.
    n_discordant
        Number of examples (of runs, for areas and perplexities) on which the two
        differ.
    """

    model: str
    baseline: str
    metric: str
    condition: str
    level: float | None
    value: float
    low: float
    high: float
    verdict: Comparison
    detectable: float
    n_pairs: int
    n_discordant: int


@dataclass(frozen=True, kw_only=True)
class Robustness:
    """Result of :func:`evaluate_robustness`.

    Attributes
    ----------
    rows
        One per model, metric, condition and level.
    confidence
        Confidence of the intervals.
    interval
        Method of the intervals, as text.
    budget_unit
        Unit of the attacks' budgets, as text; empty without attacks.
    differences
        Each further model less the first one, paired over training runs or examples.
    """

    rows: tuple[RobustnessRow, ...]
    confidence: float
    interval: str
    budget_unit: str = ""
    differences: tuple[RobustnessDifference, ...] = ()

    def select(
        self,
        *,
        model: str | None = None,
        metric: str | None = None,
        condition: str | None = None,
    ) -> tuple[RobustnessRow, ...]:
        """Return the rows with these names; None means any."""
        check_names(model=model, metric=metric, condition=condition)
        names = {"model": model, "metric": metric, "condition": condition}
        return tuple(
            row
            for row in self.rows
            if all(v is None or getattr(row, k) == v for k, v in names.items())
        )

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models, in their order."""
        return tuple(dict.fromkeys(row.model for row in self.rows))

    def to_frame(self) -> "pandas.DataFrame":
        """Return the rows as a pandas frame (extra ``frame``)."""
        import pandas

        return pandas.DataFrame([asdict(row) for row in self.rows])

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the rows to a ``.csv`` or ``.json`` file, atomically.

        In CSV the values of several models are separated by semicolons.
        """
        check_path("path", path)
        target = Path(path)
        if target.suffix not in (".csv", ".json"):
            got = Got(repr(str(path)))
            fail("path", "a name that ends in .csv or .json", got)
        text = self._csv() if target.suffix == ".csv" else self._json()
        write_atomically(target, lambda file: _write(file, text))
        return target

    def _json(self) -> str:
        # JSON has no infinity: the interval of a single text has no ends.
        plain = json.loads(json.dumps(asdict(self)), parse_constant=lambda _: None)
        return json.dumps(plain, indent=1) + "\n"

    def _csv(self) -> str:
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow([field.name for field in fields(RobustnessRow)])
        for row in self.rows:
            joined = ";".join(repr(value) for value in row.values)
            writer.writerow({**asdict(row), "values": joined}.values())
        return buffer.getvalue()

    def summary(self) -> list[list[str]]:
        """Return a table of texts: one line per condition and level, columns by model.

        The severities of one corruption are averaged into one line.
        """
        lines: dict[tuple[str, str], dict[str, str]] = {}
        for row in self.rows:
            if row.metric == "top-1" and row.condition in _corruptions(self.rows):
                continue
            level = "" if row.level is None else f" {row.level:g}"
            lines.setdefault((row.metric, row.condition + level), {})[row.model] = (
                _shown(row)
            )
        head = ["metric", "condition", *self.models]
        body = [
            [*names, *(cells.get(model, "") for model in self.models)]
            for names, cells in lines.items()
        ]
        return [head, *body]

    def __str__(self) -> str:
        table = self.summary()
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(width) for cell, width in zip(line, widths, strict=True)
            ).rstrip()
            for line in table
        ]
        if self.budget_unit:
            lines.append(f"budgets: {self.budget_unit}")
        if self.differences:
            lines.append(conclude(self.differences, self.confidence))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the summary as a table for notebooks, with its conclusions."""
        header, *rows = self.summary()
        notes = [f"{self.interval}, {100 * self.confidence:g} % in brackets"]
        if self.budget_unit:
            notes.append(f"budgets: {self.budget_unit}")
        notes += conclude(self.differences, self.confidence).splitlines()
        return html_table("Robustness", header, rows, notes=notes, n_texts=2)


def conclude(differences: Sequence[RobustnessDifference], confidence: float) -> str:
    """Return one sentence per model: corrupted inputs first, then clean ones."""
    sentences = []
    for model in dict.fromkeys(row.model for row in differences):
        rows = [row for row in differences if row.model == model]
        parts = []
        for condition, where in (
            ("all corruptions", "corrupted inputs"),
            ("clean", "clean inputs"),
        ):
            at = [row for row in rows if row.condition == condition]
            # Top-1 stands before top-5 among clean conditions.
            at = at[:1]
            if at:
                parts.append(f"on {where} {_told(at[-1], confidence)}")
        if parts:
            sentences.append(f"{model} against {rows[0].baseline}: {'; '.join(parts)}.")
    return "\n".join(sentences)


def _told(row: RobustnessDifference, confidence: float) -> str:
    unit, factor = ("points", 100.0) if row.metric != "perplexity" else ("", 1.0)
    # An error of less is an accuracy of more.
    sign = -factor if row.metric in _ERRORS else factor
    # Adding zero turns a negative zero into a positive one.
    low, high = sorted((sign * row.low + 0.0, sign * row.high + 0.0))
    value = f"{sign * row.value + 0.0:+.1f} {unit}".rstrip()
    interval = f"{100 * confidence:g} %: {low:+.1f} to {high:+.1f}"
    if row.verdict != "cannot tell":
        return f"{row.verdict} ({value}, {interval})"
    where = "" if row.n_discordant else " in all inputs and runs"
    detectable = f"{factor * row.detectable:.1f} {unit}".rstrip()
    return f"cannot tell ({value}{where}, {interval}; detectable: {detectable})"


def _corruptions(rows: Sequence[RobustnessRow]) -> set[str]:
    """Return the corruptions that have a line of their mean over severities."""
    return {row.condition for row in rows if row.metric == "mean corruption error"}


def _shown(row: RobustnessRow) -> str:
    if row.metric == "perplexity":
        return f"{row.value:.4g} [{row.low:.4g}, {row.high:.4g}]"
    value, low, high = (100 * x for x in (row.value, row.low, row.high))
    return f"{value:.1f} % [{low:.1f}, {high:.1f}]"


def _write(file: IO[bytes], text: str) -> None:
    file.write(text.encode())


# --- From outcomes -------------------------------------------------------------------


def compare_outcomes(
    counts: Mapping[str, int],
    outcomes: Outcomes,
    plan: Conditions,
    confidence: float,
) -> Iterator[RobustnessDifference]:
    """Yield the differences of each model from the first one.

    Parameters
    ----------
    counts
        Number of training runs of each model, by name.
    outcomes
        By condition and run, runs in the order of `counts`.
    plan
        The conditions.
    confidence
        Confidence of each interval.
    """
    names = list(counts)
    ends = np.cumsum(list(counts.values())).tolist()
    runs = {
        name: slice(end - counts[name], end)
        for name, end in zip(names, ends, strict=True)
    }
    for rival in names[1:]:
        # Runs are paired by their order, so there must be as many of each.
        if counts[rival] != counts[names[0]]:
            continue
        for metric, condition, level, measure, arrays in with_means(outcomes, plan):
            found = _difference(
                arrays[runs[names[0]]],
                arrays[runs[rival]],
                measure,
                confidence,
                model=rival,
                baseline=names[0],
                metric=metric,
                condition=condition,
                level=level,
            )
            if found is not None:
                yield found


def _difference(
    first: Runs, second: Runs, measure: Measure, confidence: float, **names: Any
) -> RobustnessDifference | None:
    """Return the difference with an interval, or None if one run has none.

    The interval is the wider of those over runs and over examples. Runs whose
    differences are equal by chance would have none.
    """
    by_run = np.array(
        [
            measure.value(b) - measure.value(a)
            for a, b in zip(first, second, strict=True)
        ]
    )
    pairs, bounds = by_run, []
    # A perplexity or an area is no mean over examples.
    if measure.unit is not None:
        pairs = np.mean(second, axis=0) - np.mean(first, axis=0)
        low, high, smallest = pair_bounds(pairs, confidence)
        bounds.append(
            (measure.unit * low, measure.unit * high, measure.unit * smallest)
        )
    if len(by_run) > 1:
        bounds.append(run_bounds(by_run, confidence))
    if not bounds:
        return None
    lows, highs, detectable = zip(*bounds, strict=True)
    low, high, value = min(lows), max(highs), float(by_run.mean())
    verdict: Comparison = "cannot tell"
    if (low > 0 or high < 0) and low < high:
        verdict = "better" if (value > 0) != (names["metric"] in _LOWER) else "worse"
    return RobustnessDifference(
        **names,
        value=value,
        low=low,
        high=high,
        verdict=verdict,
        detectable=max(detectable),
        n_pairs=len(by_run) if len(by_run) > 1 else len(pairs),
        n_discordant=int(np.count_nonzero(pairs)),
    )


class GradientMaskingWarning(UserWarning):
    """Warning: gradient attacks are weaker than others; accuracy is overestimated."""


def warn_of_masking(name: str, outcomes: Outcomes, plan: Conditions) -> None:
    """Warn if the best attack with gradients is weaker than one without.

    Compared are the same examples; the difference must exceed one point and two
    standard errors.
    """
    by_level: dict[float | None, dict[str, np.ndarray[Any, Any]]] = {}
    for condition, arrays in zip(plan.conditions, outcomes, strict=True):
        if condition.condition in (*_WITH_GRADIENT, *_WITHOUT):
            by_condition = by_level.setdefault(condition.level, {})
            by_condition[condition.condition] = np.mean(arrays, axis=0)[:, 0]
    for level, outcomes_of in by_level.items():
        # FGSM alone may be weak without any masking, so the strongest one counts.
        strong = [
            outcomes_of[attack] for attack in _WITH_GRADIENT if attack in outcomes_of
        ]
        if not strong:
            continue
        best = min(strong, key=mean_outcome)
        for rival in (attack for attack in _WITHOUT if attack in outcomes_of):
            difference = best - outcomes_of[rival]
            # The examples are the same, so this is the error of paired differences.
            error = float(np.std(difference)) / max(len(difference), 1) ** 0.5
            gap = float(difference.mean())
            if gap > max(_ONE_POINT, 2 * error):
                warnings.warn(
                    f"evaluate_robustness: {name!r} keeps {100 * gap:.1f} points more "
                    f"accuracy under the strongest attack with gradients than under "
                    f"{rival!r} at budget {level:g}. Its gradients may be masked: do "
                    "not take its accuracy under these attacks for robustness.",
                    GradientMaskingWarning,
                    stacklevel=4,
                )
                break
