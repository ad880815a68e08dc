"""The paper's claims at its own scale: verdicts from made-up evaluations."""

import json

import numpy as np
import pytest

from eigenheads_papers import reproduce
from eigenheads_papers.report import write_report

KEY = "teo2024/imagenet"
TINY = {"image": 224, "patch": 16, "d_model": 192, "depth": 12, "n_heads": 3}
AUTHORS = {
    "sparsity": 4.0,
    "threshold": "reference",
    "multiplier": "paper",
    "query_steps": "none",
    "rest": "symmetric",
}


def write(folder, accuracies, *, n_classes=1000, condition="clean", table="accuracy"):
    """Write an evaluation; `accuracies` has options, n_leading and values by seed."""
    models, rows = [], []
    for name, (options, n_leading, values) in accuracies.items():
        for seed, value in enumerate(values):
            rows.append(
                {
                    "checkpoint": len(models),
                    "table": table,
                    "condition": condition,
                    "metric": "top-1",
                    "value": float(value),
                    "n": 50_000,
                }
            )
            models.append(
                {
                    "name": f"{name}-{seed}",
                    "variant": name,
                    "seed": seed,
                    "task": "imagenet",
                    "attention": {**AUTHORS, "n_iter": 4, **options},
                    "size": TINY,
                    "n_leading": n_leading,
                    "n_classes": n_classes,
                    "screened": False,
                }
            )
    content = {"format": "eigenheads-evaluation/1", "models": models, "rows": rows}
    (folder / "evaluation.json").write_text(json.dumps(content))


def models(gain, *, n_iter=4, n_seeds=5):
    base = 0.70 + 0.002 * np.random.default_rng(0).normal(size=n_seeds)
    noise = 0.001 * np.random.default_rng(1).normal(size=n_seeds)
    return {
        "symmetric": ({"variant": "symmetric"}, 12, base),
        "rpc": ({"variant": "rpc", "n_iter": n_iter}, 1, base + gain + noise),
    }


@pytest.mark.parametrize(
    ("gain", "options", "verdict"),
    [
        (0.015, {}, "held"),
        (-0.015, {}, "contradicted"),
        (0.0, {}, "undecided"),
        # Six iterations: over one point is printed, and half a point is less.
        (0.0, {"n_iter": 6}, "contradicted"),
        # Four seeds decide nothing, however large the gain.
        (0.5, {"n_seeds": 4}, "undecided"),
    ],
)
def test_verdicts_are_those_of_paired_intervals(tmp_path, gain, options, verdict):
    write(tmp_path, models(gain, **options))
    (result,) = reproduce(KEY, data=tmp_path, out=tmp_path / "out")
    (claim,) = result.claims
    assert claim.outcome == verdict
    assert claim.paper == "teo2024" and claim.source == "teo2024, Table 1"
    # The common part of a seed cancels: the interval is that of the differences.
    assert claim.measured == pytest.approx(100 * gain, abs=0.2)


def test_another_size_points_in_a_direction_only(tmp_path):
    write(tmp_path, models(0.015), n_classes=10)
    (result,) = reproduce(KEY, data=tmp_path, out=tmp_path / "out")
    (claim,) = result.claims
    assert (claim.kind, claim.verdict) == ("small model", "same direction")


def test_units_of_attacks_decide_whose_claim_it_is(tmp_path):
    for unit, paper in (("pixel", ""), ("normalised", "teo2024")):
        condition = f"pgd, budget 1/255 ({unit})"
        write(tmp_path, models(0.015), condition=condition, table="attack")
        (result,) = reproduce(KEY, data=tmp_path, out=tmp_path / "out")
        assert [claim.paper for claim in result.claims] == [paper]


def test_control_without_the_sparse_part(tmp_path):
    given = models(0.015)
    without = {"variant": "rpc", "sparsity": "inf"}
    given["rpc, sparsity inf"] = (without, 1, given["rpc"][2] + 1e-4)
    write(tmp_path, given)
    (result,) = reproduce(KEY, data=tmp_path, out=tmp_path / "out")
    control = result.claims[-1]
    assert control.is_check and control.outcome == "held"
    assert "without the sparse part" in control.statement


def test_another_file_is_another_result_and_the_report_shows_its_table(tmp_path):
    write(tmp_path, models(0.015))
    (first,) = reproduce(KEY, data=tmp_path, out=tmp_path / "out")
    (again,) = reproduce(KEY, data=tmp_path, out=tmp_path / "out")
    assert again.reused
    write(tmp_path, models(-0.015))
    (second,) = reproduce(KEY, data=tmp_path, out=tmp_path / "out")
    assert not second.reused
    assert first.claims[0].outcome != second.claims[0].outcome
    page = write_report(tmp_path / "out").read_text()
    assert "Measured numbers" in page and "70.0" in page


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("[" * 50_000, "RecursionError"),
        ("{}", "KeyError"),
        ('{"format": "x"}', "another format"),
        ('{"format": "eigenheads-evaluation/1", "models": []}', "no model of this"),
    ],
)
def test_damaged_evaluations_get_a_sentence(tmp_path, content, match):
    (tmp_path / "evaluation.json").write_text(content)
    with pytest.raises(ValueError, match=rf"`data` must be .* of task.*{match}"):
        reproduce(KEY, data=tmp_path, out=tmp_path / "out")


def test_without_an_evaluation_the_command_says_what_is_missing(tmp_path):
    with pytest.raises(RuntimeError, match=r"needs real data.*evaluation\.json"):
        reproduce(KEY, out=tmp_path)
