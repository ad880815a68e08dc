"""Records: the runs at preset paper behind every number that we publish.

A record is a folder ``records/<key>/``: ``record.json`` (parameters, seed, commit,
versions, claims), ``table.safetensors`` (the table that the claims are judged from) and
``smoke.safetensors`` (the table at preset smoke). A record is current while today's
code gives its smoke table within the tolerance that it states.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from eigenheads.extend import read_arrays
from eigenheads_papers._claims import Claim
from eigenheads_papers._core import Experiment, Run, Table
from eigenheads_papers._registry import experiment_keys, get_experiment
from eigenheads_papers._store import claim_from_json, params_from_json

RECORDS = Path(__file__).parent / "records"
# Smallest number that is not only a rounding error.
_ROUNDING = 1e-12
MANIFEST, TABLE, SMOKE = "record.json", "table.safetensors", "smoke.safetensors"


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run on record.

    Attributes
    ----------
    key, seed, params
        The request, always at preset paper.
    commit
        Commit of the code that computed the table.
    version, versions
        Of the package, and of Python and the libraries.
    created, seconds
        When the run ended, and how long it took on two cores.
    tolerance, unstable
        Largest difference of the smoke table, as a share of the largest number of its
        column; and the columns that are not compared.
    claims
        The claims, judged from the table.
    without_table
        Reason why the table is not kept; empty if it is.
    """

    key: str
    seed: int
    params: Mapping[str, Any]
    commit: str
    version: str
    versions: Mapping[str, str]
    created: str
    seconds: float
    tolerance: float
    unstable: tuple[str, ...]
    claims: tuple[Claim, ...]
    without_table: str = ""

    def table(self) -> Table:
        """Return the table of the run; of a large one, the columns of its claims."""
        return read_arrays(RECORDS / self.key / TABLE)

    def smoke_table(self) -> Table:
        """Return the table at preset smoke."""
        return read_arrays(RECORDS / self.key / SMOKE)

    def why_stale(self, smoke: Table) -> str:
        """Return how today's table at preset smoke differs from this one, or nothing.

        Parameters
        ----------
        smoke
            Today's table.
        """
        before, after = (
            {name: table[name] for name in table if name not in self.unstable}
            for table in (self.smoke_table(), smoke)
        )
        return compare_tables(before, after, self.tolerance)

    def judge_again(self) -> list[Claim]:
        """Return the claims that today's rules make of the table."""
        experiment = get_experiment(self.key)
        params = params_from_json(experiment, self.params)
        claims = experiment.check(Run(params, self.table()))
        return [replace(claim, on_record=claim.outcome) for claim in claims]


@cache
def read_record(key: str) -> Record | None:
    """Return the record of an experiment, or None if it has none."""
    path = RECORDS / key / MANIFEST
    if not path.exists():
        return None
    fields = json.loads(path.read_text("utf-8"))
    fields["claims"] = tuple(claim_from_json(claim) for claim in fields["claims"])
    fields["unstable"] = tuple(fields["unstable"])
    return Record(**fields)


def beside_record(key: str, claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """Return claims of a run with the outcomes that are on record for them."""
    record = read_record(key)
    # Two papers may say the opposite of one number.
    recorded = record.claims if record else ()
    outcomes = {
        (claim_on_record.paper, claim_on_record.statement): claim_on_record.outcome
        for claim_on_record in recorded
    }
    return tuple(
        replace(
            claim,
            on_record=outcomes.get((claim.paper, claim.statement), claim.on_record),
        )
        for claim in claims
    )


def read_records() -> list[Record]:
    """Return every record, in the order of the report."""
    records = [read_record(key) for key in experiment_keys()]
    return [record for record in records if record is not None]


def compare_tables(recorded: Table, today: Table, tolerance: float) -> str:
    """Return how two tables differ by more than a tolerance, or nothing.

    A difference is measured as a share of the largest number of its column. Numbers
    below 1e-12 are rounding errors and equal to each other.

    Examples
    --------
    >>> compare_tables({"a": np.array([1.0, 4.0])}, {"a": np.array([1.0, 4.2])}, 0.01)
    'a differs by 5e-02'
    """
    if set(recorded) != set(today):
        return f"other columns: {', '.join(sorted(set(recorded) ^ set(today)))}"
    for name in sorted(recorded):
        before, after = (np.asarray(table[name]) for table in (recorded, today))
        if before.shape != after.shape:
            return f"{name} has shape {after.shape} instead of {before.shape}"
        is_number = np.isfinite(before)
        # Infinities and NaN must stand at the same places.
        if not np.array_equal(before[~is_number], after[~is_number], equal_nan=True):
            return f"{name} is undefined at other places"
        scale = np.max(np.abs(before[is_number]), initial=0.0) or 1.0
        gaps = np.abs(before[is_number] - after[is_number])
        # The comparison is false for NaN, which may stand where a number was.
        if not np.all(gaps <= tolerance * scale + _ROUNDING):
            return f"{name} differs by {np.max(gaps, initial=0.0) / scale:.0e}"
    return ""


def table_columns(key: str) -> list[str]:
    """Return the names of the arrays that an experiment stores."""
    record = read_record(key)
    return sorted(record.smoke_table()) if record else []


def estimated_seconds(experiment: Experiment[Any], params: Any) -> float | None:
    """Return how long a run takes on two cores, or None if that is not known.

    The time at preset paper is on record; the work of other settings is compared with
    its work.
    """
    record = read_record(experiment.key)
    if record is None or "paper" not in experiment.presets:
        return None
    whole = experiment.work(experiment.presets["paper"])
    if not whole > 0:
        return None
    return record.seconds * experiment.work(params) / whole


def told_duration(seconds: float | None) -> str:
    """Return a duration in words, rounded.

    Examples
    --------
    >>> told_duration(0.4), told_duration(48), told_duration(550)
    ('1 s', '50 s', '9 min')
    """
    if seconds is None:
        return "–"
    if seconds < 60:
        rounded = max(1, round(seconds)) if seconds < 10 else 10 * round(seconds / 10)
        return f"{rounded} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"
