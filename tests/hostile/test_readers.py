"""Readers of files meet any bytes: what was written, or one sentence."""

import copy
import hashlib
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eigenheads._files import read_arrays, write_arrays
from eigenheads._plotting.svg import embedded_svg
from eigenheads.experiments import Result, StoreError
from eigenheads.experiments._run import reproduce
from eigenheads.experiments._store import load_result

FEW = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
MANY = settings(FEW, max_examples=10_000)
# A place, how many bytes are replaced there, and by what.
EDITS = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(0, 40), st.binary(max_size=40)),
    min_size=1,
    max_size=4,
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["\x1b[2J", "\ud800", "[/]", "≥", "reproduced", "../..", "/etc"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def edited(content, edits):
    for place, count, new in edits:
        place %= len(content) + 1
        content = content[:place] + new + content[place + count :]
    return content


@pytest.fixture(scope="module")
def arrays():
    return {"a": np.arange(12.0).reshape(3, 4), "b": np.array(["x", "yz"])}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("readers")
    reproduce("marion2025/bayes", preset="smoke", out=root)
    (folder,) = (root / "marion2025/bayes").iterdir()
    return folder


def check_arrays(path, arrays, edits):
    write_arrays(path, arrays)
    path.write_bytes(edited(path.read_bytes(), edits))
    try:
        found = read_arrays(path)
    except ValueError as error:
        assert "is not a whole .npz file" in str(error)
        return
    for array in found.values():
        assert array.dtype.kind in "biufSU"
        assert array.nbytes <= path.stat().st_size


@FEW
@given(edits=EDITS)
def test_edited_arrays_are_read_or_refused(tmp_path, arrays, edits):
    check_arrays(tmp_path / "x.npz", arrays, edits)


@pytest.mark.slow
@MANY
@given(edits=EDITS)
def test_many_edited_arrays_are_read_or_refused(tmp_path, arrays, edits):
    check_arrays(tmp_path / "x.npz", arrays, edits)


def check_manifest(folder, path, value):
    """Put any JSON value at a place of the manifest, and read the result."""
    file = folder / "manifest.json"
    before = file.read_text(encoding="utf-8")
    manifest = json.loads(before)
    changed = copy.deepcopy(manifest)
    *way, last = path
    inner = changed
    for key in way:
        inner = inner[key]
    inner[last] = value
    try:
        file.write_text(json.dumps(changed), encoding="utf-8")
        result = load_result(folder)
    except StoreError as error:
        assert str(error).startswith("store: `")
        assert str(error).isprintable()
    else:
        assert result is None or isinstance(result, Result)
    finally:
        file.write_text(before, encoding="utf-8")


PLACES = st.sampled_from(
    [
        *([key] for key in ("format", "key", "preset", "seed", "params", "code")),
        *([key] for key in ("created", "seconds", "versions", "drawing", "sha256")),
        ["claims"],
        ["claims", 0],
        *(["claims", 0, key] for key in ("statement", "source", "relation", "reason")),
        *(["claims", 0, key] for key in ("expected", "measured", "tolerance")),
        *(["claims", 0, key] for key in ("on_record", "undecided", "other")),
        ["sha256", "table.npz"],
        ["versions", "numpy"],
        ["params", "other"],
    ]
)


@FEW
@given(path=PLACES, value=JSON)
def test_edited_manifests_are_read_or_refused(folder, path, value):
    check_manifest(folder, path, value)


@pytest.mark.slow
@MANY
@given(path=PLACES, value=JSON)
def test_many_edited_manifests_are_read_or_refused(folder, path, value):
    check_manifest(folder, path, value)


def check_figure(folder, edits):
    content = edited((folder / "figure.svg").read_bytes(), edits)
    try:
        text = embedded_svg(content, "x")
    except ValueError as error:
        assert "`figure` must be an SVG drawing" in str(error)
        return
    assert text.startswith("<svg")
    assert "<script" not in text
    assert hashlib.sha256(text.encode()).digest()


@FEW
@given(edits=EDITS)
def test_edited_figures_are_embedded_or_refused(folder, edits):
    check_figure(folder, edits)
