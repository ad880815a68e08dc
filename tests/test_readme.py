"""README and docs: their code runs, their numbers are those of the manifests."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def run_blocks(blocks):
    namespace = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)


def test_the_code_of_the_readme_runs_without_torch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(BLOCKS) >= 5
    run_blocks(block for block in BLOCKS if "import torch" not in block)


@pytest.mark.torch
def test_the_code_of_the_readme_that_needs_torch_runs():
    blocks = [block for block in BLOCKS if "import torch" in block]
    assert blocks
    run_blocks(blocks)


def test_every_number_of_readme_and_docs_is_that_of_the_manifests():
    shown = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "ledger.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr


def test_the_ledger_covers_every_experiment_and_agrees_with_the_record():
    import json

    from eigenheads.experiments import experiment_keys, get_experiment
    from eigenheads.experiments._store import FORMAT, plain_params

    paths = {key: ROOT / f"docs/papers/ledger/{key}.json" for key in experiment_keys()}
    committed = {
        key: json.loads(path.read_text())
        for key, path in paths.items()
        if path.exists()
    }
    # The others are listed as to be run; a record is entered by `make ledger`.
    counted = {key: one for key, one in committed.items() if one["format"] == FORMAT}
    assert {"marion2025", "maulensoto2026", "teo2024"} <= {
        key.partition("/")[0] for key in counted
    }
    for key, manifest in counted.items():
        assert manifest["preset"] == "paper"
        assert manifest["claims"], key
        assert all(
            claim["verdict"] == claim["on_record"] for claim in manifest["claims"]
        )
        experiment = get_experiment(key)
        params = experiment.presets["paper"]
        if experiment.with_data:  # the ledger's runs had the data
            params = experiment.with_data(params)
        assert manifest["params"] == plain_params(params)


def test_a_changed_number_would_be_noticed():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import ledger

        page = (ROOT / "docs/papers/marion2025.md").read_text()
        assert ledger.renewed(page) == page
        changed = re.sub(r"\| 0\.\d+ \| held", "| 0.123456789 | held", page, count=1)
        assert changed != page
        assert ledger.renewed(changed) == page
    finally:
        sys.path.remove(str(ROOT / "docs"))


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
