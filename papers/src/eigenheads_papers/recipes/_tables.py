"""Results of evaluations: rows per checkpoint, tables with intervals over seeds."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from eigenheads.extend import check_path, write_atomically
from eigenheads.extend.models import run_bounds
from eigenheads_papers.recipes._models import AttentionChoice

FORMAT: Final = "eigenheads-evaluation/1"
TABLES: Final[Mapping[str, str]] = {
    "accuracy": "Accuracy",
    "corruption": "Corruption",
    "attack": "Attack",
    "perplexity": "Perplexity",
}
# Numbers that are no shares between 0 and 1.
_PLAIN: Final = ("perplexity", "mCE", "corruption error")


@dataclass(frozen=True, kw_only=True)
class EvaluatedModel:
    """A checkpoint that was evaluated.

    Attributes
    ----------
    name
        Folder of the checkpoint, as it was given.
    variant
        Short name of its attention; checkpoints of one variant differ in their seeds.
    seed
        Seed of its training run; None if unknown.
    task
        Name of its recipe.
    attention, size
        Options of its attention and its size, as plain data.
    n_leading
        Number of leading layers that have the variant.
    n_classes
        Number of classes, or of words.
    screened
        Whether a token screen was put before it.
    """

    name: str
    variant: str
    seed: int | None
    task: str
    attention: Mapping[str, Any]
    size: Mapping[str, Any]
    n_leading: int
    n_classes: int
    screened: bool = False


def describe_model(name: str, state: Mapping[str, Any]) -> EvaluatedModel:
    """Return what the tables say about a checkpoint, from its state."""
    record = state["record"]
    attention = AttentionChoice.read(record["attention"])
    is_text = record["task"] == "wikitext"
    depth, default = int(record["size"]["depth"]), 4 if is_text else 1
    seed = state.get("settings", {}).get("seed")
    return EvaluatedModel(
        name=name,
        variant=attention.label(depth, default),
        seed=seed if isinstance(seed, int) else None,
        task=record["task"],
        attention=attention.record(),
        size=dict(record["size"]),
        n_leading=attention.n_leading(depth, default),
        n_classes=len(record["vocabulary" if is_text else "classes"]),
    )


@dataclass(frozen=True, kw_only=True)
class EvaluationRow:
    """One number of one checkpoint.

    Attributes
    ----------
    checkpoint
        Number of the model in :attr:`Evaluation.models`.
    table
        ``"accuracy"``, ``"corruption"``, ``"attack"`` or ``"perplexity"``.
    condition
        Data or attack, such as ``"clean"`` or ``"corruption fog"``.
    metric
        Such as ``"top-1"``, ``"corruption error"``, ``"AUPR"`` or ``"perplexity"``.
    value
        The number; shares are between 0 and 1.
    n
        Examples that it is made from.
    """

    checkpoint: int
    table: str
    condition: str
    metric: str
    value: float
    n: int


@dataclass(frozen=True)
class Evaluation:
    """Numbers of checkpoints, with intervals over those of one variant."""

    rows: tuple[EvaluationRow, ...]
    models: tuple[EvaluatedModel, ...]
    confidence: float = 0.95

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of the variants, in their order."""
        return tuple(dict.fromkeys(model.variant for model in self.models))

    def summary(self) -> list[dict[str, Any]]:
        """Return mean and interval of every number, per variant.

        The half width is Student's, over checkpoints (training runs); NaN for one.
        """
        groups: dict[tuple[str, str, str, str], list[float]] = {}
        for row in self.rows:
            variant = self.models[row.checkpoint].variant
            key = (row.table, row.condition, row.metric, variant)
            groups.setdefault(key, []).append(row.value)
        entries = []
        for (table, condition, metric, variant), values in groups.items():
            n, half = len(values), math.nan
            if n > 1:
                low, high, _ = run_bounds(values, self.confidence)
                half = (high - low) / 2
            entries.append(
                {
                    "table": table,
                    "condition": condition,
                    "metric": metric,
                    "variant": variant,
                    "mean": float(np.mean(values)),
                    "half_width": half,
                    "n_checkpoints": n,
                }
            )
        return entries

    def to_markdown(self) -> str:
        """Return one table per kind of condition; columns are variants.

        Shares are in percent.
        """
        cells: dict[str, dict[tuple[str, str], dict[str, str]]] = {}
        for entry in self.summary():
            line = (entry["condition"], entry["metric"])
            of_table = cells.setdefault(entry["table"], {})
            of_table.setdefault(line, {})[entry["variant"]] = _shown(entry)
        parts = []
        for name, title in TABLES.items():
            if name not in cells:
                continue
            # A pipe would end the cell.
            heads = [variant.replace("|", "/") for variant in self.variants]
            lines = [
                f"## {title}",
                "",
                "| condition | metric | " + " | ".join(heads) + " |",
                "|---|---|" + "--:|" * len(heads),
            ]
            for (condition, metric), by_variant in cells[name].items():
                shown = [by_variant.get(variant, "") for variant in self.variants]
                lines.append(f"| {condition} | {metric} | " + " | ".join(shown) + " |")
            parts.append("\n".join(lines) + "\n")
        return "\n".join(parts)

    def save(self, folder: str | Path) -> Path:
        """Write ``evaluation.json`` and ``evaluation.md`` into a folder; return it."""
        folder = check_path("folder", folder)
        record = {
            "format": FORMAT,
            "models": [_plain(asdict(model)) for model in self.models],
            "rows": [_plain(asdict(row)) for row in self.rows],
            "summary": [_plain(entry) for entry in self.summary()],
        }
        text = json.dumps(record, indent=1, allow_nan=False)
        for name, content in (
            ("evaluation.json", text),
            ("evaluation.md", self.to_markdown()),
        ):
            write_atomically(folder / name, partial(_write_text, content))
        return folder


def _shown(entry: Mapping[str, Any]) -> str:
    factor, unit = (1.0, "") if entry["metric"] in _PLAIN else (100.0, " %")
    text = f"{factor * entry['mean']:.2f}"
    if entry["n_checkpoints"] > 1:
        text += f" ± {factor * entry['half_width']:.2f}"
    return text + unit


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: NaN and infinities are null or text."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        # An infinite option, such as the sparsity that flags nothing, must be kept.
        return None if math.isnan(value) else str(value)
    return value


def _write_text(text: str, file: IO[bytes]) -> None:
    file.write(text.encode("utf-8"))
