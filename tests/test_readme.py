"""README and docs: their code runs, their numbers are those of the manifests."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.test_guides import BLOCK, prints_as_shown, run_block

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = list(BLOCK.finditer(README))


def run_blocks(blocks, namespace):
    for block in blocks:
        printed = run_block(block["code"], "README.md", namespace)
        assert block["shown"], "a block without its output"
        assert prints_as_shown(printed, block["text"]), printed


def test_the_code_of_the_readme_prints_what_it_shows_without_torch():
    blocks = [block for block in BLOCKS if "import torch" not in block["code"]]
    assert len(blocks) >= 2
    run_blocks(blocks, {"__name__": "readme"})


@pytest.mark.torch
def test_the_code_of_the_readme_that_needs_torch_prints_what_it_shows():
    from tests.readme_model import readme_names

    blocks = [block for block in BLOCKS if "import torch" in block["code"]]
    assert len(blocks) >= 2
    run_blocks(blocks, {"__name__": "readme", **readme_names()})


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 120


def test_every_number_of_readme_and_docs_is_that_of_the_manifests():
    shown = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "ledger.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr


@pytest.fixture
def ledger(monkeypatch):
    """The script that makes the tables, as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import ledger

    return ledger


def test_the_ledger_agrees_with_the_record(ledger):
    counted = ledger.manifests()
    assert {"marion2025", "maulensoto2026"} <= {
        one["key"].partition("/")[0] for one in counted
    }
    for manifest in counted:
        assert manifest["preset"] == "paper"
        assert manifest["claims"], manifest["key"]
        assert all(
            claim["verdict"] == claim["on_record"] for claim in manifest["claims"]
        ), manifest["key"]


def of_earlier_commits(ledger):
    from eigenheads.experiments._digest import code_version

    return [
        one
        for one in ledger.manifests()
        if "smoke" in one and one["code"] != code_version(one["key"])
    ]


def test_records_of_an_earlier_commit_are_long_and_name_it(ledger):
    for manifest in of_earlier_commits(ledger):
        assert manifest["seconds"] >= ledger.LONG
        assert len(manifest["commit"]) >= 7


@pytest.mark.slow
@pytest.mark.torch
def test_records_of_an_earlier_commit_have_todays_table_at_preset_smoke(ledger):
    for manifest in of_earlier_commits(ledger):
        assert manifest["smoke"] == ledger.smoke_digest(manifest["key"])


def test_other_code_other_parameters_and_old_rules_make_a_record_stale(
    ledger, monkeypatch
):
    from eigenheads.experiments._digest import claims_version, code_version
    from eigenheads.experiments._store import FORMAT

    key = "marion2025/fig5"
    current = {
        "key": key,
        "format": FORMAT,
        "params": ledger.paper_params(key),
        "code": code_version(key),
        "checking": claims_version(key),
    }
    assert ledger.why_stale(current) == ""
    for change, why in (
        ({"format": "eigenheads-result/1"}, "rules"),
        ({"params": {}}, "parameters"),
        ({"code": "0"}, "simulation"),
        ({"checking": "0"}, "claims"),
    ):
        assert why in ledger.why_stale(current | change)
    # A record of other code is current only while the smoke tables are equal.
    monkeypatch.setattr(ledger, "smoke_digest", lambda key: "equal")
    assert ledger.why_stale(current | {"code": "0", "smoke": "equal"}) == ""
    assert "smoke" in ledger.why_stale(current | {"code": "0", "smoke": "other"})


def test_only_stale_records_are_run_again(ledger, monkeypatch):
    from eigenheads.experiments import experiment_keys

    found = dict.fromkeys(experiment_keys(), "")
    monkeypatch.setattr(ledger, "status", lambda: found)
    assert ledger.stale() == ({}, {})
    found["marion2025/fig5"] = found["teo2024/sparsity"] = "the simulation changed"
    again, elsewhere = ledger.stale()
    assert again == {"marion2025/fig5": "the simulation changed"}
    # This one needs MNIST, and is left for a machine that has it.
    assert [*elsewhere] == ["teo2024/sparsity"]


def test_the_drawing_of_the_ledger_has_both_counts(ledger):
    drawn = ledger.overview()
    assert ledger.counts() in drawn
    for paper, numbers, passed, n_checks in ledger.paper_counts():
        if numbers:
            assert f">{paper}<" in drawn
            assert f">{passed} of {n_checks}<" in drawn
            assert all(f">{number}<" in drawn for number in numbers if number)


def test_smoke_digests_tell_tables_apart(ledger):
    found = {ledger.smoke_digest(f"marion2025/{name}") for name in ("fig5", "bayes")}
    assert len(found) == 2
    assert all(len(digest) == 64 for digest in found)


def test_a_changed_number_would_be_noticed(ledger):
    page = (ROOT / "docs/papers/marion2025.md").read_text()
    assert ledger.renewed(page) == page
    changed = re.sub(r"\| 0\.\d+ \| held", "| 0.123456789 | held", page, count=1)
    assert changed != page
    assert ledger.renewed(changed) == page


@pytest.mark.parametrize(
    "page",
    ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/papers/marion2025.md"],
)
def test_links_lead_somewhere_and_make_targets_exist(page):
    text = (ROOT / page).read_text()
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert ((ROOT / page).parent / link).exists(), link
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)) <= set(targets)


def test_commands_of_the_readme_name_real_experiments():
    from eigenheads.experiments._registry import select_keys

    for key in re.findall(r"eigenheads reproduce ([\w/]+)", README):
        assert select_keys([key])


def test_architecture_names_real_files():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for name in re.findall(r"`((?:[a-z_0-9]+/)+_?[a-z_0-9]+\.py)`", text):
        inside = ROOT / "src/eigenheads" / name
        assert inside.exists() or (ROOT / name).exists(), name
