"""The commands `train` and `evaluate`."""

import json

import pytest

from eigenheads.cli import main

pytestmark = pytest.mark.torch


def test_train_then_evaluate(corpus, tmp_path, capsys):
    run, table = tmp_path / "run", tmp_path / "table"
    options = ["--data", str(corpus), "--preset", "smoke", "--epochs", "1"]
    assert main(["train", "wikitext", "--out", str(run), *options]) == 0
    assert f"Model: {run / 'model'}" in capsys.readouterr().out
    evaluated = ["evaluate", str(run), "--data", str(corpus), "--out", str(table)]
    assert main(evaluated) == 0
    assert "perplexity" in capsys.readouterr().out
    rows = json.loads((table / "evaluation.json").read_text())["rows"]
    assert [row["metric"] for row in rows] == ["perplexity"] * 4


def test_reproduce_judges_given_runs(corpus, tmp_path, capsys):
    runs = []
    for variant in ("symmetric", "rpc"):
        out = tmp_path / variant
        options = ["--preset", "smoke", "--epochs", "1", "--batch-size", "32"]
        options += ["--variant", variant, "--out", str(out)]
        assert main(["train", "wikitext", "--data", str(corpus), *options]) == 0
        runs += ["--runs", str(out)]
    command = ["reproduce", "teo2024/wikitext", "--data", str(corpus), *runs]
    capsys.readouterr()
    assert main([*command, "--out", str(tmp_path / "ledger")]) == 0
    # At this size it is no claim of the paper, and one seed decides nothing.
    shown = capsys.readouterr()
    assert "on small models: 4 undecided" in shown.err and "undecided" in shown.out
    page = (tmp_path / "ledger" / "report.html").read_text()
    assert "Measured numbers" in page and "10% of the words swapped" in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["train", "imagnet", "--data", ".", "--out", "x"], "`recipe` must be"),
        (
            ["train", "imagenet", "--data", ".", "--out", "x", "--preset", "huge"],
            "`preset` must be",
        ),
        (["train", "imagenet", "--data", "none", "--out", "x"], "got none"),
        (["evaluate", "none", "--data", "."], "`checkpoint` must be"),
        (["evaluate", "none", "--data", ".", "--budgets", "a"], "`budgets` must be"),
        (["evaluate", "none", "--natural", "a"], "`natural` must be NAME=FOLDER"),
        (["evaluate", "none"], "`data` must be a folder of examples"),
    ],
)
def test_mistakes_get_one_line(options, message, capsys):
    assert main(options) == 2
    found = capsys.readouterr().err
    assert message in found and found.count("\n") == 1
