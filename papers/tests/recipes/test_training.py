"""Training: resumes exactly, shares batches between processes, stops cleanly."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from eigenheads_papers.recipes import AttentionChoice, train_model  # noqa: E402
from eigenheads_papers.recipes._data import epoch_order  # noqa: E402
from eigenheads_papers.recipes._tasks import PRESETS  # noqa: E402
from eigenheads_papers.recipes._training import learning_rate  # noqa: E402

pytestmark = pytest.mark.torch
# One process and two add the same gradients in another order (float32).
REORDERED = 2e-5


def weights(folder: Path) -> dict:
    return load_file(folder / "model" / "model.safetensors")


def largest_gap(one: dict, other: dict) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def script(data: Path, out: Path, **options) -> list[str]:
    """Return a command that trains in a process of its own."""
    code = (
        "import torch; torch.set_num_threads(1)\n"
        "from eigenheads_papers.recipes import train_model\n"
        f"train_model('imagenet', data={str(data)!r}, out={str(out)!r}, "
        f"preset='smoke', **{options!r})\n"
    )
    path = out.parent / f"{out.name}.py"
    path.write_text(code)
    return [str(path)]


def test_killed_run_resumes_to_the_same_weights(miniature, tmp_path):
    options = {"epochs": 3, "checkpoint_every": 4}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train_model("imagenet", data=miniature, out=whole, preset="smoke", **options)
    command = [sys.executable, *script(miniature, killed, **options)]
    process = subprocess.Popen(command)
    deadline = time.monotonic() + 100
    while not list((killed / "checkpoints").glob("step-*")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not (killed / "model").exists()
    train_model("imagenet", data=miniature, out=killed, preset="smoke", **options)
    assert largest_gap(weights(whole), weights(killed)) == 0.0
    losses = [_losses(folder) for folder in (whole, killed)]
    assert losses[0] == losses[1] and len(losses[0]) == 30


def _losses(folder: Path) -> list[float]:
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [entry["loss"] for entry in map(json.loads, lines) if "loss" in entry]


@pytest.mark.slow  # twelve seconds; tests/nn/test_distributed.py is shorter
def test_two_processes_train_as_one(miniature, tmp_path, monkeypatch):
    # Augmentation of batches and drop path differ between processes: without them.
    one, two = tmp_path / "one", tmp_path / "two"
    change = (
        "from dataclasses import replace\n"
        "from eigenheads_papers.recipes import _tasks\n"
        "from eigenheads_papers.recipes._augment import Augmentation\n"
        "smoke = _tasks.PRESETS['imagenet']['smoke']\n"
        "plain = replace(Augmentation.none(), smallest_crop=0.5, repeats=3)\n"
        "changed = replace(smoke, augmentation=plain, drop_path=0.0)\n"
    )
    code = (
        "import sys, torch; torch.set_num_threads(1)\n"
        "from eigenheads_papers.recipes import train_model\n"
        f"{change}"
        "_tasks.PRESETS['imagenet']['smoke'] = changed\n"
        f"train_model('imagenet', data={str(miniature)!r}, out=sys.argv[1], "
        "preset='smoke', epochs=1)\n"
    )
    names: dict = {}
    exec(change, names)
    monkeypatch.setitem(names["_tasks"].PRESETS["imagenet"], "smoke", names["changed"])
    train_model("imagenet", data=miniature, out=one, preset="smoke", epochs=1)
    (tmp_path / "train.py").write_text(code)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    subprocess.run(
        [sys.executable, *launch, str(tmp_path / "train.py"), str(two)],
        check=True,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert largest_gap(weights(one), weights(two)) < REORDERED
    np.testing.assert_allclose(_losses(one), _losses(two), atol=REORDERED)


def test_sigterm_saves_and_the_next_call_goes_on(miniature, tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, *script(miniature, out, epochs=40)]
    process = subprocess.Popen(command)
    deadline = time.monotonic() + 100
    while not (out / "log.jsonl").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    (state,) = [
        json.loads((path / "state.json").read_text())
        for path in sorted((out / "checkpoints").glob("step-*"))[-1:]
    ]
    assert 0 < state["step"] < state["n_steps"]
    assert not (out / "model").exists()


def test_accumulated_parts_make_the_same_update(corpus, tmp_path):
    folders = []
    for accumulate in (1, 2):
        out = tmp_path / str(accumulate)
        train_model(
            "wikitext",
            data=corpus,
            out=out,
            preset="smoke",
            epochs=1,
            batch_size=32,
            accumulate=accumulate,
            attention=AttentionChoice(variant="rpc"),
        )
        folders.append(out)
    # Dropout differs between parts, so the paths differ a little, but not the task.
    losses = [_losses(folder) for folder in folders]
    assert len(losses[0]) == len(losses[1])
    assert losses[0][0] == pytest.approx(losses[1][0], abs=0.05)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_language_model_learns_the_grammar(corpus, tmp_path, precision):
    result = train_model(
        "wikitext",
        data=corpus,
        out=tmp_path,
        preset="smoke",
        epochs=3,
        batch_size=16,
        precision=precision,
    )
    assert result.is_finished
    losses = _losses(tmp_path)
    assert losses[-1] < losses[0] - 0.05


def test_other_settings_do_not_overwrite_a_run(corpus, tmp_path):
    options = {"data": corpus, "out": tmp_path, "preset": "smoke", "epochs": 1}
    train_model("wikitext", **options, batch_size=64)
    with pytest.raises(
        ValueError, match=r"train_model: `out` must be a new folder .* seed"
    ):
        train_model("wikitext", **options, batch_size=64, seed=1)


def test_indivisible_batches_are_refused(corpus, tmp_path):
    with pytest.raises(ValueError, match=r"`batch_size` must be a multiple of .* = 3"):
        train_model("wikitext", data=corpus, out=tmp_path, preset="smoke", accumulate=3)


def test_epochs_have_every_example_once_or_repeated():
    assert sorted(epoch_order(10, seed=0, epoch=0, repeats=1)) == list(range(10))
    repeated = epoch_order(12, seed=0, epoch=1, repeats=3)
    assert len(repeated) == 12 and len(set(repeated.tolist())) == 4
    other = epoch_order(10, seed=0, epoch=1, repeats=1)
    assert (other != epoch_order(10, seed=0, epoch=0, repeats=1)).any()


def test_learning_rate_rises_then_falls_to_its_end():
    schedule = PRESETS["imagenet"]["paper"].schedule
    rates = [learning_rate(schedule, step, 10) for step in range(10 * schedule.epochs)]
    peak = int(np.argmax(rates))
    assert peak == 50 and rates[peak] == pytest.approx(1e-3)
    assert np.all(np.diff(rates[:peak]) > 0) and np.all(np.diff(rates[peak:]) < 0)
    assert rates[-1] == pytest.approx(schedule.final_learning_rate, rel=1e-2)
