"""Results survive kills, damage and company."""

import contextlib
import json
import os
import signal
import warnings

import numpy as np
import pytest

import eigenheads_papers._store as store_module
from eigenheads_papers import StoreError, reproduce, stored_results
from eigenheads_papers._store import load_result

KEY = "marion2025/bayes"


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
    assert {"params", "seed", "versions", "seconds", "claims", "version"} <= set(
        manifest
    )
    assert manifest["claims"][0]["verdict"] == "held"


def test_a_second_call_reuses_and_force_computes_the_same_bytes(copy):
    (first,) = reproduce(KEY, preset="smoke", out=copy)
    assert first.reused
    table = folder_of(copy) / "table.safetensors"
    before = table.read_bytes()
    (again,) = reproduce(KEY, preset="smoke", out=copy, force=True, jobs=1)
    assert not again.reused
    assert table.read_bytes() == before


def test_another_seed_is_another_result(copy):
    reproduce(KEY, preset="smoke", out=copy, seed=1)
    one, other = (result.table["bayes"] for result in stored_results(copy))
    assert not np.array_equal(one, other)


def _cut(path):
    path.write_bytes(path.read_bytes()[:-20])


def _foreign(path):
    path.write_text('{"hello": "world"}')


@pytest.mark.parametrize(
    ("name", "harm", "why"),
    [
        ("table.safetensors", _cut, "its digest"),
        ("table.safetensors", _foreign, "its digest"),
        ("table.safetensors", lambda path: path.unlink(), "cannot be read"),
        ("figure.svg", lambda path: path.unlink(), "cannot be read"),
        ("figure.svg", lambda path: path.write_bytes(b"<svg onload='x'>"), "digest"),
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


@pytest.mark.parametrize("field", ["key", "claims", "versions", "params"])
def test_a_manifest_without_a_field_is_named(copy, field):
    path = folder_of(copy) / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest[field]
    path.write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match=r"manifest\.json.*a field is missing"):
        load_result(path.parent)


@pytest.mark.parametrize(
    ("field", "nonsense"),
    [
        ("versions", [1]),
        ("created", 5),
        ("seconds", "soon"),
        ("params", 3),
        ("claims", [{"statement": "s"}]),
        ("claims", 7),
        ("sha256", None),
    ],
)
def test_a_field_of_the_wrong_kind_is_named(copy, field, nonsense):
    path = folder_of(copy) / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, field: nonsense}))
    with pytest.raises(StoreError, match="damaged or foreign"):
        load_result(path.parent)


def test_a_measured_text_is_not_a_number(copy):
    path = folder_of(copy) / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["claims"][0]["measured"] = "x"
    path.write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match="could not convert"):
        load_result(path.parent)


def test_folders_that_are_none_of_ours_do_no_harm(copy):
    foreign = copy / "a" / "b" / "c"
    foreign.mkdir(parents=True)
    (foreign / "manifest.json").write_text("{}")
    assert len(list(stored_results(copy))) == 1


def test_a_result_in_the_wrong_folder_is_noticed(copy):
    path = folder_of(copy) / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["params"]["gamma"] = 7
    path.write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match="got another one"):
        reproduce(KEY, preset="smoke", out=copy)


def test_an_unwritable_folder_is_named(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ValueError, match=r"`out` must be a folder that can be written"):
        reproduce(KEY, preset="smoke", out=blocked / "below")


@pytest.mark.parametrize("keys", [5, [5], None])
def test_keys_must_be_names(tmp_path, keys):
    with pytest.raises(ValueError, match="reproduce: `keys` must be a key, a glob"):
        reproduce(keys, preset="smoke", out=tmp_path)


def test_out_must_be_a_path():
    with pytest.raises(
        ValueError, match="reproduce: `out` must be the path of a folde"
    ):
        reproduce(KEY, preset="smoke", out=None)


@pytest.mark.parametrize(("name", "value"), [("seed", -1), ("jobs", 0), ("seed", 0.5)])
def test_bad_numbers_get_a_sentence(tmp_path, name, value):
    with pytest.raises(ValueError, match=f"reproduce: `{name}` must be an integer"):
        reproduce(KEY, preset="smoke", out=tmp_path, **{name: value})


MOMENTS = 30  # more than there are operations on files in one write


def _die_at(moment, folder, result):
    """Write a result and die right before the given operation on files."""
    import pathlib

    import eigenheads_papers._store as store

    seen = iter(range(moment))

    def counted(operation):
        def call(*arguments, **options):
            if next(seen, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return operation(*arguments, **options)

        return call

    for name in ("replace", "unlink", "open"):
        setattr(pathlib.Path, name, counted(getattr(pathlib.Path, name)))
    os.fsync = counted(os.fsync)
    store.save_result(folder, result)


@pytest.mark.parametrize("there_already", [False, True])
def test_kill_at_any_moment_leaves_a_whole_result_or_none(
    original, copy, tmp_path, there_already
):
    _, result = original
    outcomes = []
    for moment in range(MOMENTS):
        folder = folder_of(copy) if there_already else tmp_path / str(moment)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads
            child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                _die_at(moment, folder, result)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status)
        again = load_result(folder)  # raises if neither whole nor absent
        assert again is None or again.claims == result.claims
        outcomes.append((killed, again is not None))
        if there_already:
            store_module.save_result(folder, result)
    assert (True, False) in outcomes  # some kills hit the middle
    assert outcomes[-1] == (False, True)  # and the last write was left alone


def test_an_interrupted_reproduce_goes_on_where_it_stopped(tmp_path):
    class Stop(Exception):
        pass

    from eigenheads_papers import Listener

    class StopAtSecond(Listener):
        seen = 0

        def start(self, key, work):
            self.seen += 1
            if self.seen == 2:
                raise Stop

    keys = ["marion2025/fig5", "marion2025/bayes"]
    with pytest.raises(Stop):
        reproduce(keys, preset="smoke", out=tmp_path, listener=StopAtSecond())
    first, second = reproduce(keys, preset="smoke", out=tmp_path)
    assert first.reused
    assert not second.reused
