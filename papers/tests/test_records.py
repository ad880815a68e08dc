"""Every record is that of today's code, and its claims follow from its table."""

import dataclasses
import importlib
import math
from pathlib import Path

import numpy as np
import pytest
from papers.tests.smoke_runs import smoke_run

from eigenheads_papers import experiment_keys, get_experiment
from eigenheads_papers._records import compare_tables, read_record, read_records
from eigenheads_papers._registry import PAPERS
from eigenheads_papers._store import plain_params

RECORDS = {record.key: record for record in read_records()}
# Runs that were not repeated since tables are kept.
WITHOUT_TABLE = {
    "maulensoto2026/fig8a",
    "screening/photographs",
    "teo2024/sparsity",
    "truong2026/readings",
}


def of_keys(keys):
    """Return the keys, with a mark where PyTorch is needed."""
    return [
        pytest.param(key, marks=pytest.mark.torch) if get_experiment(key).needs else key
        for key in keys
    ]


def test_every_experiment_is_on_record_except_those_of_a_users_models():
    users = {key for key in experiment_keys() if get_experiment(key).is_users}
    assert set(RECORDS) == set(experiment_keys()) - users


@pytest.mark.parametrize("key", of_keys(RECORDS))
def test_todays_code_gives_the_smoke_table_on_record(key):
    assert RECORDS[key].why_stale(smoke_run(key)[1]) == ""


@pytest.mark.parametrize("key", of_keys(RECORDS))
def test_claims_follow_from_the_table_on_record(key):
    record = RECORDS[key]
    assert record.claims
    if record.without_table:
        assert key in WITHOUT_TABLE
        return
    for now, then in zip(record.judge_again(), record.claims, strict=True):
        assert (now.statement, now.verdict) == (then.statement, then.verdict)
        # The same table on another machine; sums may round differently.
        assert now.measured == pytest.approx(then.measured, rel=1e-9, abs=1e-9) or (
            math.isnan(now.measured) and math.isnan(then.measured)
        )


@pytest.mark.parametrize("key", RECORDS)
def test_a_record_says_how_it_was_made(key):
    record, experiment = RECORDS[key], get_experiment(key)
    paper = experiment.presets["paper"]
    params = experiment.with_data(paper) if experiment.with_data else paper
    assert record.params == plain_params(params)
    assert len(record.commit) >= 7
    assert {"python", "numpy"} <= set(record.versions)
    assert (record.tolerance, record.unstable) == (
        experiment.tolerance,
        experiment.unstable,
    )
    assert all(claim.outcome == claim.on_record for claim in record.claims)


@pytest.mark.parametrize("key", RECORDS)
def test_every_claim_of_a_paper_names_its_place(key):
    for claim in RECORDS[key].claims:
        assert bool(claim.paper) == bool(claim.where)
        assert claim.paper in ("", *PAPERS)


@pytest.mark.parametrize("key", of_keys(RECORDS))
def test_no_tolerance_grows_with_the_noise_of_a_run(key):
    """A small run has the bounds of the run on record."""
    recorded = {(one.paper, one.statement): one for one in RECORDS[key].claims}
    for claim in smoke_run(key)[2]:
        same = recorded.get((claim.paper, claim.statement))
        if same is not None and claim.kind in ("claim", "small model"):
            assert (claim.expected, claim.tolerance) == (same.expected, same.tolerance)


def test_the_ledger_counts_a_statement_once(monkeypatch):
    """Two figures of one simulation differ in the last digit, if at all."""
    ledger = load_ledger(monkeypatch)
    whole = ledger.claims()
    (key, claim), *_ = whole
    record = read_record(key)
    nearly = dataclasses.replace(claim, measured=claim.measured * (1 + 1e-6))
    again = dataclasses.replace(record, key="other/figure", claims=(nearly,))
    monkeypatch.setattr(ledger, "read_records", lambda: [*read_records(), again])
    assert ledger.claims() == whole


def load_ledger(monkeypatch):
    docs = Path(__file__).parents[2] / "docs"
    monkeypatch.syspath_prepend(str(docs))
    return importlib.import_module("ledger")


def test_a_changed_number_makes_a_record_stale():
    record = read_record("marion2025/fig5")
    smoke = record.smoke_table()
    assert record.why_stale(smoke) == ""
    name = max(smoke, key=lambda name: smoke[name].size)
    changed = {**smoke, name: smoke[name] * (1 + 1e-8)}
    assert record.why_stale(changed).startswith(f"{name} differs by 1e-08")
    assert dataclasses.replace(record, tolerance=1e-6).why_stale(changed) == ""
    unstable = dataclasses.replace(record, unstable=(name,))
    assert unstable.why_stale(changed) == ""


@pytest.mark.parametrize(
    ("after", "why"),
    [
        ({"a": np.array([1.0, np.nan])}, ""),
        ({"a": np.array([1.0, np.nan]) + 1e-13}, ""),
        ({"b": np.array([1.0, np.nan])}, "other columns: a, b"),
        ({"a": np.array([1.0])}, "a has shape (1,) instead of (2,)"),
        ({"a": np.array([np.nan, 1.0])}, "a is undefined at other places"),
        ({"a": np.array([np.nan, np.nan])}, "a differs by nan"),
        ({"a": np.array([1.0, np.inf])}, "a is undefined at other places"),
        ({"a": np.array([1.1, np.nan])}, "a differs by 1e-01"),
    ],
)
def test_differences_of_tables_are_named(after, why):
    assert compare_tables({"a": np.array([1.0, np.nan])}, after, 1e-10) == why
