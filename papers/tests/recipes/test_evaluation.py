"""Evaluation: benchmark layouts, class masks, intervals, odd checkpoints."""

import json
import math
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from eigenheads.robustness import ALEXNET_ERRORS  # noqa: E402
from eigenheads_papers.recipes import (  # noqa: E402
    AttentionChoice,
    Evaluation,
    VisionTransformer,
    evaluate_checkpoints,
    train_model,
)
from eigenheads_papers.recipes._checkpoints import load_checkpoint  # noqa: E402
from eigenheads_papers.recipes._models import VisionSize  # noqa: E402
from eigenheads_papers.recipes._tables import EvaluatedModel, EvaluationRow  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def run(miniature, tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    train_model("imagenet", data=miniature, out=out, preset="smoke", epochs=1)
    return out


def values(found: Evaluation) -> dict:
    return {(row.condition, row.metric): row.value for row in found.rows}


def test_clean_accuracy_is_that_of_the_last_evaluation(miniature, run):
    found = evaluate_checkpoints([run], data=miniature)
    logged = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    last = [entry for entry in logged if "evaluation" in entry][-1]["evaluation"]
    assert values(found)["clean", "top-1"] == last["top-1"]
    assert found.rows[0].n == 40


def test_attacks_in_normalised_units_are_smaller(miniature, run):
    options = {"data": miniature, "attacks": ["pgd"], "budgets": [64.0]}
    pixel = evaluate_checkpoints([run], **options, n_attacked=20)
    normalised = evaluate_checkpoints(
        [run], **options, n_attacked=20, units="normalised"
    )
    strong, _ = [row for row in pixel.rows if row.condition.startswith("pgd")]
    weak, _ = [row for row in normalised.rows if row.condition.startswith("pgd")]
    assert strong.value <= weak.value and strong.n == weak.n == 20


def test_all_attacks_in_both_units(miniature, run):
    from eigenheads.robustness import ATTACKS
    from eigenheads_papers.teo2024.attacks import PAPERS_ATTACKS

    names = [*ATTACKS, *PAPERS_ATTACKS]
    found = evaluate_checkpoints(
        [run],
        data=miniature,
        attacks=names,
        budgets=[2.0],
        units="both",
        n_attacked=2,
    )
    clean = values(found)["clean", "top-5"]
    attacked = [row for row in found.rows if row.table == "attack"]
    # Each attack in both units, top-1 and top-5; Carlini and Wagner's has no budget.
    assert len(attacked) == 2 * (2 * len(names) - 1)
    assert all(0 <= row.value <= 1 for row in attacked) and 0 <= clean <= 1


def test_variants_are_columns(miniature, run, tmp_path):
    other = AttentionChoice(variant="rpc", n_iter=2, multiplier="admm")
    train_model(
        "imagenet",
        data=miniature,
        out=tmp_path,
        preset="smoke",
        epochs=1,
        attention=other,
    )
    found = evaluate_checkpoints(
        [run, tmp_path], data=miniature, screened=True, n_calibration=75
    )
    names = ("softmax", "rpc n=2, 1 of 2 layers, multiplier admm")
    assert found.variants == tuple(
        name for one in names for name in (one, f"{one} + screen")
    )
    head = "| condition | metric | " + " | ".join(found.variants) + " |"
    assert head in found.to_markdown()
    assert found.models[0].seed == 0


def test_screen_hides_what_does_not_fit(miniature):
    from eigenheads_papers.recipes._models import ScreenedTransformer

    torch.manual_seed(0)
    size = VisionSize(image=8, patch=4, d_model=16, depth=2, n_heads=2)
    batches = [torch.rand(100, 3, 8, 8) * 0.1 for _ in range(3)]
    for variant in ("softmax", "symmetric", "rpc"):
        choice = AttentionChoice(variant=variant, layers="all", n_iter=2)
        model = VisionTransformer(5, size=size, attention=choice).eval()
        screened = ScreenedTransformer(model, batches).eval()
        image = torch.rand(1, 3, 8, 8) * 0.1
        spoiled = image.clone()
        spoiled[:, :, :4, :4] = 1.0  # the first patch
        flags = screened.screen(model.embed(spoiled))
        assert flags[0].tolist() == [False, True, False, False, False]
        # A hidden token cannot reach the class token, whatever it is.
        worse = spoiled.clone()
        worse[:, 1, :4, :4] = 0.5
        torch.testing.assert_close(screened(spoiled), screened(worse))
        assert (model(spoiled) - model(worse)).abs().max() > 1e-5


def test_corruption_errors_are_divided_by_alexnets(miniature, run, tmp_path):
    for severity in ("1", "2"):
        shutil.copytree(miniature / "val", tmp_path / "fog" / severity)
    found = values(evaluate_checkpoints([run], corrupted=tmp_path))
    clean = values(evaluate_checkpoints([run], data=miniature))["clean", "top-1"]
    expected = 100 * (1 - clean) / ALEXNET_ERRORS["fog"]
    assert found["corruption fog", "corruption error"] == pytest.approx(expected)
    assert found["mean of 1 corruptions", "mCE"] == pytest.approx(expected)


def test_fewer_classes_make_it_easier(miniature, run, tmp_path):
    name = "n00000000"
    shutil.copytree(miniature / "val" / name, tmp_path / name)
    found = evaluate_checkpoints([run], natural={"imagenet-a": tmp_path})
    # One class is left, so every prediction is right.
    assert values(found)["imagenet-a", "top-1"] == 1.0


def test_outliers_equal_to_the_clean_images_are_at_chance(miniature, run):
    found = evaluate_checkpoints([run], data=miniature, outliers=miniature / "val")
    assert values(found)["outliers", "AUPR"] == pytest.approx(0.5, abs=0.03)


def test_swapped_words_raise_the_perplexity(corpus, tmp_path):
    train_model(
        "wikitext", data=corpus, out=tmp_path, preset="smoke", epochs=6, batch_size=16
    )
    found = evaluate_checkpoints([tmp_path], data=corpus, word_shares=[0.3])
    table = values(found)
    assert 1 < table["clean", "perplexity"] < 15
    swapped = table["30% of the words swapped", "perplexity"]
    assert swapped > table["clean", "perplexity"]


def test_intervals_are_students_over_checkpoints(tmp_path):
    rows = tuple(
        EvaluationRow(
            checkpoint=k,
            table="accuracy",
            condition="clean",
            metric="top-1",
            value=v,
            n=10,
        )
        for k, v in enumerate([0.7, 0.8, 0.9])
    )
    models = tuple(
        EvaluatedModel(
            name=str(k),
            variant="rpc",
            seed=k,
            task="imagenet",
            attention={"sparsity": math.inf},
            size={},
            n_leading=1,
            n_classes=10,
        )
        for k in range(3)
    )
    (entry,) = Evaluation(rows, models).summary()
    # t quantile 4.3027 at 2 degrees of freedom, standard error 0.1 / √3.
    assert entry["half_width"] == pytest.approx(4.302653 * 0.1 / math.sqrt(3))
    folder = Evaluation(rows[:1], models[:1]).save(tmp_path)
    saved = json.loads((folder / "evaluation.json").read_text())
    assert saved["summary"][0]["half_width"] is None
    assert saved["models"][0]["attention"] == {"sparsity": "inf"}
    assert "| clean | top-1 | 70.00 % |" in (folder / "evaluation.md").read_text()


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda f: (f / "state.json").unlink(), "`checkpoint` must be"),
        (lambda f: (f / "state.json").write_text("[" * 100_000), "RecursionError"),
        (lambda f: (f / "state.json").write_text('{"record": {}}'), "record"),
        (lambda f: (f / "model.safetensors").write_bytes(b"no"), "safetensors"),
    ],
)
def test_damaged_checkpoints_get_a_sentence(run, tmp_path, spoil, match):
    folder = tmp_path / "model"
    shutil.copytree(run / "model", folder)
    spoil(folder)
    with pytest.raises(ValueError, match=match):
        load_checkpoint(folder)


def test_missing_tensors_are_refused(run, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "model"
    shutil.copytree(run / "model", folder)
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("blocks.0.attn.qkv.weight")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match="whose tensors do not fit"):
        load_checkpoint(folder)


def test_rows_are_finite(miniature, run):
    found = evaluate_checkpoints([run, run], data=miniature)
    assert np.isfinite([row.value for row in found.rows]).all()
    assert {row.checkpoint for row in found.rows} == {0, 1}


@pytest.mark.slow  # two processes import everything
def test_two_processes_evaluate_as_one(miniature, run, tmp_path):
    options = ["--data", str(miniature), "--outliers", str(miniature / "train")]
    options += ["--attacks", "fgsm", "--budgets", "8", "--out", str(tmp_path)]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    subprocess.run(
        [sys.executable, *launch, "-m", "eigenheads", "evaluate", str(run), *options],
        check=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    rows = json.loads((tmp_path / "evaluation.json").read_text())["rows"]
    one = evaluate_checkpoints(
        [run],
        data=miniature,
        outliers=miniature / "train",
        attacks=["fgsm"],
        budgets=[8.0],
    )
    found = {(row["condition"], row["metric"]): row["value"] for row in rows}
    assert found == pytest.approx(values(one), abs=1e-6)
    assert [row["n"] for row in rows] == [row.n for row in one.rows]
