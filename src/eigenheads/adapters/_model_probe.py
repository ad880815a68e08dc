"""What a probe of a whole model returns: a row for each head, statistic and null."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._checks import Got, check_choice, fail
from eigenheads._extras import require
from eigenheads._files import write_atomically
from eigenheads._typing import FloatArray
from eigenheads.probes import q_values

if TYPE_CHECKING:
    import pandas as pd

_FORMAT = "eigenheads probe 1"


@dataclass(frozen=True, eq=False)
class ModelProbe:
    """What was measured of a model's heads.

    Attributes
    ----------
    records
        Rows with ``layer``, ``name``, ``head``, ``probe``, ``statistic``,
        ``observed``, ``null``, ``n_draws``, ``null_mean``, ``null_sd``, ``effect``,
        ``p_value``, ``q_value``, ``alternative``. A q-value is corrected for all heads
        of the model that were asked the same question: one statistic against one null.
    about
        A sentence for each statistic.
    settings
        What was used: model, sequences, permutations, seed, untrained models.
    notes
        What a reader must know: nulls that could not be had, and why.
    """

    records: Sequence[Mapping[str, Any]]
    about: Mapping[str, str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def statistics(self) -> list[str]:
        """Names of the statistics, in the order they were measured."""
        return list(dict.fromkeys(row["statistic"] for row in self.records))

    @property
    def layers(self) -> list[int]:
        """Layers that were probed."""
        return sorted({row["layer"] for row in self.records})

    def nulls(self, statistic: str) -> list[str]:
        """Return the nulls that a statistic was compared with."""
        rows = self._rows(statistic)
        return list(dict.fromkeys(row["null"] for row in rows if row["null"]))

    def by_head(
        self, statistic: str, column: str = "observed", *, null: str | None = None
    ) -> FloatArray:
        """Return one number a head, (layers, heads); NaN where there is none.

        Parameters
        ----------
        statistic
            One of :attr:`statistics`.
        column
            ``"observed"``, or with `null` also ``"effect"``, ``"p_value"``,
            ``"q_value"``, ``"null_mean"``, ``"null_sd"``.
        null
            One of :meth:`nulls`.
        """
        columns = ("observed", "effect", "p_value", "q_value", "null_mean", "null_sd")
        check_choice("column", column, columns, owner="by_head")
        rows = self._rows(statistic)
        if null is not None:
            check_choice("null", null, self.nulls(statistic), owner="by_head")
            rows = [row for row in rows if row["null"] == null]
        layers = self.layers
        n_heads = max(row["head"] for row in self.records) + 1
        table = np.full((len(layers), n_heads), np.nan)
        for row in rows:
            value = row[column]
            place = layers.index(row["layer"]), row["head"]
            table[place] = math.nan if value is None else value
        return table

    def summary(self, level: float = 0.05) -> list[dict[str, Any]]:
        """Return a row for each statistic and null: how many heads stand out.

        ``n_found`` is None where the draws are so few that no head could.

        Parameters
        ----------
        level
            Heads with a q-value up to that stand out.
        """
        rows: list[dict[str, Any]] = []
        for statistic in self.statistics:
            observed = self.by_head(statistic)
            shared = {
                "statistic": statistic,
                "alternative": self._rows(statistic)[0]["alternative"],
                "median": float(np.nanmedian(observed)) if _any(observed) else math.nan,
            }
            for null in self.nulls(statistic):
                q = self.by_head(statistic, "q_value", null=null)
                centre = self.by_head(statistic, "null_mean", null=null)
                rows.append(
                    {
                        **shared,
                        "null": null,
                        "null_median": float(np.nanmedian(centre)),
                        "n_found": int(np.sum(q <= level))
                        if self._smallest_p(statistic, null) <= level
                        else None,
                        "n_heads": int(np.sum(np.isfinite(q))),
                    }
                )
        return rows

    def stands_out(self, statistic: str, level: float = 0.05) -> NDArray[np.bool_]:
        """Return which heads stand out from every null that has draws enough."""
        nulls = [
            null
            for null in self.nulls(statistic)
            if self._smallest_p(statistic, null) <= level
        ]
        found = np.isfinite(self.by_head(statistic)) & bool(nulls)
        for null in nulls:
            found &= self.by_head(statistic, "q_value", null=null) <= level
        return found

    def to_frame(self) -> "pd.DataFrame":
        """Return the rows as a table (extra ``frame``)."""
        pd = require("pandas", "pandas", extra="frame", owner="ModelProbe.to_frame")
        return pd.DataFrame.from_records([dict(row) for row in self.records])

    def save(self, path: str | PathLike[str]) -> None:
        """Write all of it as JSON, to a temporary name that is then renamed."""
        content = {
            "format": _FORMAT,
            "settings": dict(self.settings),
            "notes": list(self.notes),
            "about": dict(self.about),
            "records": [_without_nan(row) for row in self.records],
        }
        text = json.dumps(content, indent=1, allow_nan=False) + "\n"
        write_atomically(Path(path), lambda file: _write(file, text.encode()))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "ModelProbe":
        """Read what :meth:`save` wrote."""
        owner = "ModelProbe.load"
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content["format"] != _FORMAT:
                raise ValueError(f"format {content['format']!r}")
            return cls(**{name: content[name] for name in cls.__dataclass_fields__})
        except (KeyError, TypeError, ValueError) as error:
            got = Got(f"{str(path)!r}, which is not ({error})")
            fail("path", "a file of ModelProbe.save", got, owner=owner)

    def _smallest_p(self, statistic: str, null: str) -> float:
        """Return the smallest p-value that the number of draws allows."""
        rows = [row for row in self._rows(statistic) if row["null"] == null]
        sides = 2 if rows[0]["alternative"] == "two-sided" else 1
        return float(sides / (1 + max(row["n_draws"] for row in rows)))

    def _rows(self, statistic: str) -> list[Mapping[str, Any]]:
        check_choice("statistic", statistic, self.statistics, owner="ModelProbe")
        return [row for row in self.records if row["statistic"] == statistic]


def with_q_values(rows: list[dict[str, Any]], *, method: str) -> list[dict[str, Any]]:
    """Return the rows with false discoveries controlled, question by question."""
    families: dict[tuple[str, str, Any], list[int]] = {}
    for index, row in enumerate(rows):
        key = (row["probe"], row["statistic"], row["null"])
        families.setdefault(key, []).append(index)
    adjusted = np.full(len(rows), np.nan)
    for members in families.values():
        p_values = [rows[index]["p_value"] for index in members]
        adjusted[members] = q_values(p_values, method=method)
    return [{**row, "q_value": float(q)} for row, q in zip(rows, adjusted, strict=True)]


def _any(table: FloatArray) -> bool:
    return bool(np.isfinite(table).any())


def _without_nan(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }


def _write(file: Any, content: bytes) -> None:
    file.write(content)
