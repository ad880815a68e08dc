"""Result of an evaluation: a tidy table with intervals."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from eigenheads._checks import Got, check_path, check_text, fail
from eigenheads._files import write_atomically
from eigenheads._notebook import html_table

if TYPE_CHECKING:
    import pandas

Comparison = Literal["better", "worse", "cannot tell"]


def check_names(**names: object) -> None:
    """Raise unless every name is text or None."""
    for name, value in names.items():
        if value is not None:
            check_text(name, value, owner="select")


@dataclass(frozen=True, kw_only=True)
class RobustnessRow:
    """One measurement of a model under one condition.

    Attributes
    ----------
    model
        Name of the model.
    metric
        ``"top-1"``, ``"top-5"``, ``"mean corruption error"``, ``"AUPR"``: shares; or
        ``"perplexity"``.
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
        wanted = {"model": model, "metric": metric, "condition": condition}
        return tuple(
            row
            for row in self.rows
            if all(v is None or getattr(row, k) == v for k, v in wanted.items())
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
        check_path("path", path, owner="save")
        target = Path(path)
        if target.suffix not in (".csv", ".json"):
            got = Got(repr(str(path)))
            fail("path", "a name that ends in .csv or .json", got, owner="save")
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
    for model in dict.fromkeys(one.model for one in differences):
        own = [one for one in differences if one.model == model]
        parts = []
        for condition, where in (
            ("all corruptions", "corrupted inputs"),
            ("clean", "clean inputs"),
        ):
            found = [one for one in own if one.condition == condition]
            # Top-1 stands before top-5 among clean conditions.
            found = found[:1]
            if found:
                parts.append(f"on {where} {_told(found[-1], confidence)}")
        if parts:
            sentences.append(f"{model} against {own[0].baseline}: {'; '.join(parts)}.")
    return "\n".join(sentences)


def _told(one: RobustnessDifference, confidence: float) -> str:
    unit, factor = ("points", 100.0) if one.metric != "perplexity" else ("", 1.0)
    # An error of less is an accuracy of more.
    sign = -factor if one.metric == "mean corruption error" else factor
    # Adding zero turns a negative zero into a positive one.
    low, high = sorted((sign * one.low + 0.0, sign * one.high + 0.0))
    value = f"{sign * one.value + 0.0:+.1f} {unit}".rstrip()
    interval = f"{100 * confidence:g} %: {low:+.1f} to {high:+.1f}"
    if one.verdict != "cannot tell":
        return f"{one.verdict} ({value}, {interval})"
    where = "" if one.n_discordant else " in all inputs and runs"
    seen = f"{factor * one.detectable:.1f} {unit}".rstrip()
    return f"cannot tell ({value}{where}, {interval}; detectable: {seen})"


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
