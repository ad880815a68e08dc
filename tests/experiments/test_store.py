"""Results survive kills, damage and company."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from eigenheads.experiments import StoreError, reproduce, stored_results
from eigenheads.experiments._store import load_result

KEY = "marion2025/fig3b"


def folder_of(root, key=KEY):
    (folder,) = (root / key).iterdir()
    return folder


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    (result,) = reproduce(KEY, preset="smoke", out=root)
    return root, result


@pytest.fixture
def copy(original, tmp_path):
    import shutil

    root = tmp_path / "copy"
    shutil.copytree(original[0], root)
    return root


def test_a_result_survives_the_disk(original):
    root, result = original
    (again,) = stored_results(root)
    assert again.reused
    assert again.claims == result.claims
    assert again.params == result.params
    assert again.figure == result.figure
    assert set(again.table) == set(result.table)
    for name in result.table:
        np.testing.assert_array_equal(again.table[name], result.table[name])


def test_a_manifest_says_how_it_was_made(original):
    manifest = json.loads((folder_of(original[0]) / "manifest.json").read_text())
    assert {"params", "seed", "versions", "seconds", "claims", "code"} <= set(manifest)
    assert manifest["claims"][0]["verdict"] == "reproduced"


def test_a_second_call_reuses_and_force_computes_the_same_bytes(copy):
    (first,) = reproduce(KEY, preset="smoke", out=copy)
    assert first.reused
    table = folder_of(copy) / "table.npz"
    before = table.read_bytes()
    (again,) = reproduce(KEY, preset="smoke", out=copy, force=True, jobs=1)
    assert not again.reused
    assert table.read_bytes() == before


def test_another_seed_is_another_result(copy):
    reproduce(KEY, preset="smoke", out=copy, seed=1)
    one, other = (result.table["kappa"] for result in stored_results(copy))
    assert not np.array_equal(one, other)


def _cut(path):
    path.write_bytes(path.read_bytes()[:-20])


def _foreign(path):
    path.write_text('{"hello": "world"}')


@pytest.mark.parametrize(
    ("name", "harm", "why"),
    [
        ("table.npz", _cut, "its digest"),
        ("table.npz", _foreign, "its digest"),
        ("table.npz", lambda path: path.unlink(), "cannot be read"),
        ("figure.svg", lambda path: path.unlink(), "cannot be read"),
        ("manifest.json", _cut, "not JSON"),
        ("manifest.json", _foreign, "format"),
        ("manifest.json", lambda path: path.write_bytes(b"\xff\xfe"), "not JSON"),
    ],
)
def test_a_damaged_or_foreign_file_is_named_and_computed_only_on_request(
    copy, name, harm, why
):
    path = folder_of(copy) / name
    harm(path)
    with pytest.raises(StoreError, match=rf"{path.name}.*{why}.*--force"):
        reproduce(KEY, preset="smoke", out=copy)
    (result,) = reproduce(KEY, preset="smoke", out=copy, force=True)
    assert not result.reused
    assert load_result(path.parent) is not None


@pytest.mark.parametrize("field", ["key", "claims", "table_sha256", "params"])
def test_a_manifest_without_a_field_is_named(copy, field):
    path = folder_of(copy) / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest[field]
    path.write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match=r"manifest\.json.*a field is missing"):
        load_result(path.parent)


def test_a_result_in_the_wrong_folder_is_noticed(copy):
    path = folder_of(copy) / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["params"]["d"] = 7
    path.write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match="or of other parameters"):
        reproduce(KEY, preset="smoke", out=copy)


def test_an_unwritable_folder_is_named(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ValueError, match=r"`out` must be a folder that can be written"):
        reproduce(KEY, preset="smoke", out=blocked / "below")


@pytest.mark.parametrize(("name", "value"), [("seed", -1), ("jobs", 0), ("seed", 0.5)])
def test_bad_numbers_get_a_sentence(tmp_path, name, value):
    with pytest.raises(ValueError, match=f"reproduce: `{name}` must be an integer"):
        reproduce(KEY, preset="smoke", out=tmp_path, **{name: value})


def test_kill_at_any_moment_leaves_a_whole_result_or_none(original, tmp_path):
    """The writer is killed at forty moments spread over a write of about 20 ms."""
    code = f"""
import sys, pathlib
from eigenheads.experiments._store import load_result, save_result
result = load_result(pathlib.Path({str(folder_of(original[0]))!r}))
print("ready", flush=True)
while True:
    save_result(pathlib.Path(sys.argv[1]), result)
"""
    whole = 0
    for trial in range(8):
        folder = tmp_path / f"trial{trial}"
        writer = subprocess.Popen(
            [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE
        )
        with writer:
            assert writer.stdout.readline().strip() == b"ready"
            time.sleep(0.01 + 0.013 * trial)
            os.kill(writer.pid, signal.SIGKILL)
        result = load_result(folder)  # raises if neither whole nor absent
        whole += result is not None
        if result is not None:
            assert result.claims == original[1].claims
    assert whole < 8 or load_result(tmp_path / "trial7") is not None


def test_an_interrupted_reproduce_goes_on_where_it_stopped(tmp_path):
    class Stop(Exception):
        pass

    from eigenheads.experiments import Listener

    class StopAtSecond(Listener):
        seen = 0

        def start(self, key, work):
            self.seen += 1
            if self.seen == 2:
                raise Stop

    keys = ["marion2025/fig3b", "marion2025/bayes"]
    with pytest.raises(Stop):
        reproduce(keys, preset="smoke", out=tmp_path, listener=StopAtSecond())
    first, second = reproduce(keys, preset="smoke", out=tmp_path)
    assert first.reused
    assert not second.reused
