"""README and docs: their code runs, their numbers are those of the records."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.test_guides import BLOCK, prints_as_shown, run_block

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = list(BLOCK.finditer(README))


def needs_torch(block):
    return "import torch" in block["code"] or "eigenheads.adapters" in block["code"]


def run_blocks(blocks, namespace):
    for block in blocks:
        printed = run_block(block["code"], "README.md", namespace)
        assert block["shown"], "a block without its output"
        assert prints_as_shown(printed, block["text"]), printed


def test_the_code_of_the_readme_prints_what_it_shows_without_torch():
    blocks = [block for block in BLOCKS if not needs_torch(block)]
    assert len(blocks) >= 2
    run_blocks(blocks, {"__name__": "readme"})


@pytest.mark.torch
def test_the_code_of_the_readme_that_needs_torch_prints_what_it_shows():
    from tests.readme_model import readme_names

    blocks = [block for block in BLOCKS if needs_torch(block)]
    assert len(blocks) >= 2
    run_blocks(blocks, {"__name__": "readme", **readme_names()})


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 120


def test_every_number_of_readme_and_docs_is_that_of_the_records():
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


def test_the_drawing_of_the_ledger_has_every_count(ledger):
    drawn = ledger.overview()
    assert ledger.counts() in drawn
    for paper, outcomes, n_untested in ledger.paper_counts():
        if paper[-4:].isdigit():
            assert f">{paper}<" in drawn
            passed, n = outcomes["theory"][0], sum(outcomes["theory"])
            assert f">{passed} of {n}<" in drawn
            counted = (*outcomes["claim"], *outcomes["small model"], n_untested)
            assert all(f">{number}<" in drawn for number in counted if number)


def test_a_number_in_a_sentence_is_that_of_the_record(ledger):
    mark = "<!-- marion2025/fig4: the worst run's risk -->{}<!-- end -->"
    assert ledger.renewed(mark.format("1.5")) == mark.format("0.01256")
    with pytest.raises(ValueError, match="0 statements begin"):
        ledger.renewed("<!-- marion2025/fig4: no such statement -->1<!-- end -->")


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
    from eigenheads_papers._registry import select_keys

    for key in re.findall(r"eigenheads reproduce ([\w/]+)", README):
        assert select_keys([key])


def test_architecture_names_real_files():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for name in re.findall(r"`((?:[a-z_0-9]+/)+_?[a-z_0-9]+\.py)`", text):
        homes = (ROOT, ROOT / "src/eigenheads", ROOT / "papers/src")
        assert any((home / name).exists() for home in homes), name
