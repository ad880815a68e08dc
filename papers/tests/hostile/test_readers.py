"""Readers of files meet any bytes: what was written, or one sentence."""

import copy
import json
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.hostile.worker import GRAMMAR

from eigenheads._files import read_arrays, write_arrays
from eigenheads.probes import ModelProbe, Statistic
from eigenheads_papers import Result, StoreError, sweep
from eigenheads_papers._data import using_data
from eigenheads_papers._run import reproduce
from eigenheads_papers._store import load_result
from eigenheads_papers.sweeps._cells import CellStore, _digest
from eigenheads_papers.teo2024.at_scale import FILE, _read

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


@pytest.fixture(scope="module", autouse=True)
def _without_waiting_for_the_disk():
    """Thousands of small files need not survive a power cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _: None)
        yield


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
        assert "is not a whole file of arrays" in str(error)
        return
    for array in found.values():
        assert array.dtype.kind in "biufSU"
        assert array.nbytes <= path.stat().st_size


@FEW
@given(edits=EDITS)
def test_edited_arrays_are_read_or_refused(tmp_path, arrays, edits):
    check_arrays(tmp_path / "x.safetensors", arrays, edits)


@pytest.mark.slow
@MANY
@given(edits=EDITS)
def test_many_edited_arrays_are_read_or_refused(tmp_path, arrays, edits):
    check_arrays(tmp_path / "x.safetensors", arrays, edits)


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
        *([key] for key in ("format", "key", "preset", "seed", "params", "version")),
        *([key] for key in ("created", "seconds", "versions", "sha256")),
        ["claims"],
        ["claims", 0],
        *(["claims", 0, key] for key in ("statement", "source", "relation", "reason")),
        *(["claims", 0, key] for key in ("expected", "measured", "tolerance")),
        *(["claims", 0, key] for key in ("on_record", "undecided", "other")),
        ["sha256", "table.safetensors"],
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


CELLS = {
    "point": np.array(["0" * 32, "1" * 32]),
    "seed": np.array([0, 1]),
    "seconds": np.array([0.1, 0.2]),
    "message": np.array(["", "no"]),
    "names": np.array(["a", "b"]),
    "values": np.array([[1.0, 2.0], [np.nan, np.nan]]),
    "has": np.array([[True, True], [False, False]]),
}
# Arrays that files can hold and that no sweep writes.
ARRAYS = st.builds(
    lambda dtype, shape: np.ones(shape).astype(dtype),
    st.sampled_from(["f8", "f4", "i8", "u1", "?", "U3", "S3"]),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
)


def check_cells(folder, name, array):
    """Store a forged array under a right digest: the file is read, or noted."""
    for old in folder.glob("*.safetensors"):
        old.unlink()
    arrays = {**CELLS, name: array}
    path = folder / f"{_digest(arrays)}.safetensors"
    write_arrays(path, arrays)
    store = CellStore(folder)
    store.refresh()
    assert store.damaged == [path] or len(store) <= 2
    for point, seed in list(store._cells):
        assert isinstance(point, str)
        assert isinstance(seed, int)
        values = store[point, seed].values
        assert all(isinstance(value, float) for value in values.values())


@FEW
@given(name=st.sampled_from(list(CELLS)), array=ARRAYS)
# Found: an array of numbers in place of the digests was an AttributeError, a table in
# place of the seeds a TypeError.
@example(name="point", array=np.ones(2))
@example(name="seed", array=np.ones((2, 1), dtype=np.int64))
def test_forged_cells_are_read_or_noted(tmp_path, name, array):
    check_cells(tmp_path, name, array)


@pytest.mark.slow
@MANY
@given(name=st.sampled_from(list(CELLS)), array=ARRAYS)
def test_many_forged_cells_are_read_or_noted(tmp_path, name, array):
    check_cells(tmp_path, name, array)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    root = tmp_path_factory.mktemp("swept")
    result = sweep(
        "marion2025/bayes", grid={}, seeds=1, preset="smoke", out=root, jobs=1
    )
    return root, result


def check_plan(swept, edits):
    """Edit the plan of a sweep: the next call does not follow it, and replaces it."""
    root, result = swept
    file = result.folder / "sweep.json"
    before = file.read_bytes()
    file.write_bytes(edited(before, edits))
    again = sweep(
        "marion2025/bayes", grid={}, seeds=1, preset="smoke", out=root, jobs=1
    )
    assert file.read_bytes() == before
    assert (again.key, again.folder) == (result.key, result.folder)
    assert again.computed == 0
    for name, column in result.table.items():
        np.testing.assert_array_equal(again.table[name], column)


@FEW
@given(edits=EDITS)
@example(edits=[(0, 10**6, b"[" * 200_000)])
@example(edits=[(0, 10**6, b'{"key": "/etc", "version": "../.."}')])
def test_edited_plans_of_sweeps_are_not_followed(swept, edits):
    check_plan(swept, edits)


@pytest.mark.slow
@settings(FEW, max_examples=2000)
@given(edits=EDITS)
def test_many_edited_plans_of_sweeps_are_not_followed(swept, edits):
    check_plan(swept, edits)


def stored_probe():
    draws = np.linspace(0.0, 1.0, 12).reshape(1, 2, 6)
    nulls = {"keys": draws, "untrained": draws}
    one = Statistic("cka", draws[..., 0], nulls, "greater", "Alignment.")
    settings = {"seed": 0, "n_untrained": 1, "false_discovery": "bh"}
    contrasts = {"without the first token": {"cka": draws[..., 1]}}
    return ModelProbe([0], ["a"], {"cka": one}, settings, ["n"], contrasts)


PROBE_PLACES = st.sampled_from(
    [
        *([key] for key in ("format", "layers", "names", "settings", "notes")),
        *([key] for key in ("statistics", "contrasts", "other")),
        ["layers", 0],
        ["names", 0],
        ["statistics", 0],
        *(["statistics", 0, key] for key in ("name", "nulls", "alternative", "about")),
        ["statistics", 0, "nulls", 0],
        *(["settings", key] for key in ("n_untrained", "false_discovery", "seed")),
        ["contrasts", "without the first token"],
        ["contrasts", "without the first token", 0],
    ]
)


def check_probe(path, place, value):
    """Put any JSON value at a place of a stored probe's header, and use the probe."""
    stored_probe().save(path)
    arrays = read_arrays(path)
    header = json.loads(str(arrays["header"]))
    inner = header
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    # The writer has no lone surrogates, which JSON may contain as escapes.
    write_arrays(path, {**arrays, "header": np.array(json.dumps(header))})
    try:
        probe = ModelProbe.load(path)
    except ValueError as error:
        assert GRAMMAR.fullmatch(str(error)), str(error)
        assert str(error).isprintable()
        return
    assert len(probe.to_records()) <= 4
    assert len(probe.summary()) <= 2
    assert len(probe.contrast_rows()) <= 1
    assert isinstance(probe._repr_html_(), str)


@FEW
@given(place=PROBE_PLACES, value=JSON)
# Found: a header without notes was a KeyError, contrasts that are a list were an
# AttributeError, and an unknown alternative was met only when it was used.
@example(place=["contrasts"], value=[])
@example(place=["notes"], value=None)
@example(place=["statistics", 0, "alternative"], value="sideways")
def test_edited_probes_are_read_or_refused(tmp_path, place, value):
    check_probe(tmp_path / "probe.safetensors", place, value)


@pytest.mark.slow
@MANY
@given(place=PROBE_PLACES, value=JSON)
def test_many_edited_probes_are_read_or_refused(tmp_path, place, value):
    check_probe(tmp_path / "probe.safetensors", place, value)


CONFIG_PLACES = st.sampled_from(
    [
        *([key] for key in ("model_type", "architectures", "hidden_size", "dtype")),
        *([key] for key in ("num_attention_heads", "num_hidden_layers", "vocab_size")),
        *([key] for key in ("intermediate_size", "max_position_embeddings")),
        *([key] for key in ("hidden_act", "layer_norm_eps", "pad_token_id")),
        *([key] for key in ("is_decoder", "tie_word_embeddings", "auto_map")),
        *([key] for key in ("attn_implementation", "quantization_config", "id2label")),
        *([key] for key in ("transformers_version", "use_cache", "other")),
        ["eigenheads_attention"],
        *(["eigenheads_attention", key] for key in ("original", "layers", "other")),
    ]
)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.adapters.models import hugging_face

    from eigenheads.adapters import swap_attention

    folder = tmp_path_factory.mktemp("config")
    swap_attention(hugging_face("bert"), to="rpc", n_iter=2).save_pretrained(folder)
    return folder


def check_config(folder, path, value):
    """Put any JSON value at a place of a configuration, and load the model."""
    from eigenheads.adapters import load_swapped

    file = folder / "config.json"
    before = file.read_text(encoding="utf-8")
    config = json.loads(before)
    inner = config
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    try:
        file.write_text(json.dumps(config), encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = load_swapped(folder, local_files_only=True)
    except (ValueError, TypeError) as error:
        assert GRAMMAR.fullmatch(str(error)), str(error)
        assert str(error).isprintable()
    else:
        assert all(bool(p.isfinite().all()) for p in model.parameters())
    finally:
        file.write_text(before, encoding="utf-8")


@pytest.mark.torch
@settings(FEW, max_examples=15)
@given(path=CONFIG_PLACES, value=JSON)
def test_edited_configurations_are_loaded_or_refused(model_folder, path, value):
    check_config(model_folder, path, value)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(1200)
@settings(FEW, max_examples=1500)
@given(path=CONFIG_PLACES, value=JSON)
def test_many_edited_configurations_are_loaded_or_refused(model_folder, path, value):
    check_config(model_folder, path, value)


EVALUATION = {
    "format": "eigenheads-evaluation/1",
    "models": [
        {
            "name": "run",
            "variant": "softmax",
            "seed": 0,
            "task": "wikitext",
            "attention": {"variant": "softmax", "n_iter": 4, "sparsity": 4.0},
            "size": {"depth": 2, "d_model": 16},
            "n_leading": 2,
            "n_classes": 9,
            "screened": False,
        }
    ],
    "rows": [
        {
            "checkpoint": 0,
            "table": "clean",
            "condition": "clean",
            "metric": "perplexity",
            "value": 9.0,
            "n": 40,
        }
    ],
    "summary": [],
}
EVALUATION_PLACES = st.sampled_from(
    [
        *([key] for key in EVALUATION),
        ["models", 0],
        *(["models", 0, key] for key in EVALUATION["models"][0]),
        *(["models", 0, "size", key] for key in ("depth", "other")),
        *(["models", 0, "attention", key] for key in ("variant", "n_iter")),
        ["rows", 0],
        *(["rows", 0, key] for key in EVALUATION["rows"][0]),
    ]
)


def put(content, place, value):
    """Return a copy of nested lists and mappings with a value at one place."""
    changed = copy.deepcopy(content)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return changed


def check_evaluation(folder, place, value):
    changed = put(EVALUATION, place, value)
    (folder / FILE).write_text(json.dumps(changed), encoding="utf-8")
    with using_data(folder):
        try:
            params, table = _read("wikitext")
        except ValueError as error:
            assert GRAMMAR.fullmatch(str(error)), str(error)
            assert str(error).isprintable()
            return
    assert table["values"].size <= 1
    assert all(name.isprintable() for name in params.variants + params.measures)


def test_an_evaluation_that_is_right_is_read(tmp_path):
    (tmp_path / FILE).write_text(json.dumps(EVALUATION))
    with using_data(tmp_path):
        assert _read("wikitext")[1]["values"].tolist() == [[[9.0]]]


@FEW
@given(place=EVALUATION_PLACES, value=JSON)
# Found: an infinite seed was an OverflowError, a size that is a text an
# AttributeError.
@example(place=["models", 0, "seed"], value=float("inf"))
@example(place=["models", 0, "size"], value="x")
def test_edited_evaluations_are_read_or_refused(tmp_path, place, value):
    check_evaluation(tmp_path, place, value)


@pytest.mark.slow
@MANY
@given(place=EVALUATION_PLACES, value=JSON)
def test_many_edited_evaluations_are_read_or_refused(tmp_path, place, value):
    check_evaluation(tmp_path, place, value)


STATE_PLACES = st.sampled_from(
    [
        *([key] for key in ("step", "n_steps", "metrics", "settings", "record")),
        ["settings", "seed"],
        *(["record", key] for key in ("task", "size", "attention", "vocabulary")),
        *(["record", "size", key] for key in ("context", "d_model", "d_hidden")),
        *(["record", "size", key] for key in ("depth", "n_heads", "dropout", "other")),
        *(["record", "attention", key] for key in ("variant", "layers", "rest")),
        *(["record", "attention", key] for key in ("n_iter", "sparsity", "other")),
        ["record", "vocabulary", 0],
    ]
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    pytest.importorskip("accelerate")
    from eigenheads_papers.recipes import train_model

    root = tmp_path_factory.mktemp("trained")
    for name in ("train", "valid"):
        (root / f"{name}.txt").write_text("the cat sees the dog .\n" * 40)
    train_model("wikitext", data=root, out=root / "run", preset="smoke", epochs=1)
    return root / "run" / "model"


def check_state(folder, place, value):
    from eigenheads_papers.recipes._checkpoints import load_checkpoint
    from eigenheads_papers.recipes._tables import describe_model

    file = folder / "state.json"
    before = file.read_text(encoding="utf-8")
    try:
        file.write_text(json.dumps(put(json.loads(before), place, value)))
        model, state = load_checkpoint(folder)
        about = describe_model("x", state)
    except ValueError as error:
        assert GRAMMAR.fullmatch(str(error)), str(error)
        assert str(error).isprintable()
    else:
        assert about.task == "wikitext"
        assert all(bool(p.isfinite().all()) for p in model.parameters())
    finally:
        file.write_text(before, encoding="utf-8")


@pytest.mark.torch
@settings(FEW, max_examples=30)
@given(place=STATE_PLACES, value=JSON)
# Found: a character that is in no version of Unicode was not written out.
@example(place=["record", "attention"], value={"\U00011daa": None})
def test_edited_checkpoints_are_read_or_refused(trained, place, value):
    check_state(trained, place, value)


@pytest.mark.slow
@pytest.mark.torch
@settings(FEW, max_examples=3000)
@given(place=STATE_PLACES, value=JSON)
def test_many_edited_checkpoints_are_read_or_refused(trained, place, value):
    check_state(trained, place, value)
