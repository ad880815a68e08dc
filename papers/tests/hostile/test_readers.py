"""Readers of files meet any bytes and any JSON: what was written, or one sentence."""

import json
import warnings
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.hostile.files import EDITS, JSON, check_sentence, edited, places_in, put

from eigenheads._files import read_arrays, write_arrays
from eigenheads.probes import ModelProbe, Statistic
from eigenheads_papers import Result, reproduce, sweep
from eigenheads_papers._data import using_data
from eigenheads_papers._store import load_result
from eigenheads_papers.sweeps.cells import CellStore, _digest
from eigenheads_papers.teo2024.at_scale import FILE, _read

FEW = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# `make test-all` tries more.
N_TRIES = [1, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]


def tried(n, check, **strategies):
    """Try a check on values of the strategies, `n` times as often as usual."""
    n_examples = round(n * FEW.max_examples)
    settings(FEW, max_examples=n_examples)(given(**strategies)(check))()


@pytest.fixture(scope="module", autouse=True)
def _without_waiting_for_the_disk():
    """Thousands of small files need not survive a power cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _: None)
        yield


# --- JSON: a value at any place of a document ----------------------------------------


class Manifest:
    """The manifest of a stored result."""

    found: ClassVar = []
    share = 1

    def make(self, root):
        reproduce("marion2025/bayes", preset="smoke", out=root)
        (self.folder,) = (root / "marion2025/bayes").iterdir()
        self.file = self.folder / "manifest.json"
        return json.loads(self.file.read_text(encoding="utf-8"))

    def read(self, document):
        self.file.write_text(json.dumps(document), encoding="utf-8")
        result = load_result(self.folder)
        assert result is None or isinstance(result, Result)


class Probe:
    """The header of a stored probe."""

    # Found: a KeyError, an AttributeError, and what was met only when it was used.
    found: ClassVar = [
        (("contrasts",), []),
        (("notes",), None),
        (("statistics", 0, "alternative"), "sideways"),
    ]
    share = 1

    def make(self, root):
        draws = np.linspace(0.0, 1.0, 12).reshape(1, 2, 6)
        nulls = {"keys": draws, "untrained": draws}
        cka = Statistic("cka", draws[..., 0], nulls, "greater", "Alignment.")
        options = {"seed": 0, "n_untrained": 1, "false_discovery": "bh"}
        contrasts = {"without the first token": {"cka": draws[..., 1]}}
        self.file = root / "probe.safetensors"
        probe = ModelProbe([0], ["a"], {"cka": cka}, options, ["n"], contrasts)
        probe.save(self.file)
        self.arrays = read_arrays(self.file)
        return json.loads(str(self.arrays["header"]))

    def read(self, document):
        # The writer has no lone surrogates, which JSON may contain as escapes.
        header = np.array(json.dumps(document))
        write_arrays(self.file, {**self.arrays, "header": header})
        probe = ModelProbe.load(self.file)
        assert len(probe.to_records()) <= 4
        assert len(probe.summary()) <= 2
        assert len(probe.contrast_rows()) <= 1
        assert isinstance(probe._repr_html_(), str)


class Configuration:
    """The configuration of a model whose attention was swapped."""

    found: ClassVar = []
    share = 0.25  # loading a model takes long

    def make(self, root):
        from tests.adapters.models import hugging_face

        from eigenheads.adapters import load_swapped, swap_attention

        self.load, self.folder = load_swapped, root
        swap_attention(hugging_face("bert"), to="rpc", n_iter=2).save_pretrained(root)
        return json.loads((root / "config.json").read_text())

    def read(self, document):
        (self.folder / "config.json").write_text(json.dumps(document))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = self.load(self.folder, local_files_only=True)
        assert all(bool(p.isfinite().all()) for p in model.parameters())


class Evaluation:
    """An evaluation of trained models, as `eigenheads evaluate` writes it."""

    # Found: an OverflowError and an AttributeError.
    found: ClassVar = [
        (("models", 0, "seed"), float("inf")),
        (("models", 0, "size"), "x"),
    ]
    share = 1

    def make(self, root):
        self.folder = root
        model = {"name": "run", "variant": "softmax", "seed": 0, "task": "wikitext"}
        model |= {"attention": {"variant": "softmax", "n_iter": 4, "sparsity": 4.0}}
        model |= {"size": {"depth": 2, "d_model": 16}, "screened": False}
        row = {"checkpoint": 0, "table": "clean", "condition": "clean"}
        row |= {"metric": "perplexity", "value": 9.0, "n": 40}
        models = [{**model, "n_leading": 2, "n_classes": 9}]
        document = {"format": "eigenheads-evaluation/1", "models": models}
        return {**document, "rows": [row], "summary": []}

    def read(self, document):
        (self.folder / FILE).write_text(json.dumps(document), encoding="utf-8")
        with using_data(self.folder):
            params, table = _read("wikitext")
        assert table["values"].size <= 1
        assert all(name.isprintable() for name in params.variants + params.measures)


class Checkpoint:
    """The state of a checkpoint of a training run."""

    # Found: a character that is in no version of Unicode was not written out.
    found: ClassVar = [(("record", "attention"), {"\U00011daa": None})]
    share = 0.5

    def make(self, root):
        from eigenheads_papers.recipes import train_model
        from eigenheads_papers.recipes._checkpoints import load_checkpoint
        from eigenheads_papers.recipes._tables import describe_model

        self.load, self.describe = load_checkpoint, describe_model
        for name in ("train", "valid"):
            (root / f"{name}.txt").write_text("the cat sees the dog .\n" * 40)
        train_model("wikitext", data=root, out=root / "run", preset="smoke", epochs=1)
        self.folder = root / "run" / "model"
        return json.loads((self.folder / "state.json").read_text())

    def read(self, document):
        (self.folder / "state.json").write_text(json.dumps(document))
        model, state = self.load(self.folder)
        assert self.describe("x", state).task == "wikitext"
        assert all(bool(p.isfinite().all()) for p in model.parameters())


KINDS = [
    Manifest,
    Probe,
    Evaluation,
    pytest.param(Configuration, marks=pytest.mark.torch),
    pytest.param(Checkpoint, marks=pytest.mark.torch),
]


@pytest.mark.parametrize("n", N_TRIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_document_with_any_value_anywhere_is_read_or_refused(kind, n, tmp_path):
    reader = kind()
    document = reader.make(tmp_path)
    reader.read(document)

    def check(place, value):
        try:
            reader.read(put(document, place, value))
        except (ValueError, TypeError) as error:
            check_sentence(error)

    for place, value in reader.found:
        check(place, value)
    places = st.sampled_from(list(places_in(document)))
    tried(n * reader.share, check, place=places, value=JSON)


# --- Bytes and arrays ----------------------------------------------------------------


@pytest.mark.parametrize("n", N_TRIES)
def test_edited_arrays_are_read_or_refused(n, tmp_path):
    path = tmp_path / "x.safetensors"
    write_arrays(path, {"a": np.arange(12.0).reshape(3, 4), "b": np.array(["x", "yz"])})
    content = path.read_bytes()

    def check(edits):
        path.write_bytes(edited(content, edits))
        try:
            arrays = read_arrays(path)
        except ValueError as error:
            assert "is not a whole file of arrays" in str(error)
            return
        for array in arrays.values():
            assert array.dtype.kind in "biufSU"
            assert array.nbytes <= path.stat().st_size

    tried(n, check, edits=EDITS)


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


@pytest.mark.parametrize("n", N_TRIES)
def test_forged_cells_under_a_right_digest_are_read_or_noted(n, tmp_path):
    # Found: an array of numbers in place of the digests was an AttributeError, a table
    # in place of the seeds a TypeError.
    @example(name="point", array=np.ones(2))
    @example(name="seed", array=np.ones((2, 1), dtype=np.int64))
    def check(name, array):
        for old in tmp_path.glob("*.safetensors"):
            old.unlink()
        arrays = {**CELLS, name: array}
        path = tmp_path / f"{_digest(arrays)}.safetensors"
        write_arrays(path, arrays)
        store = CellStore(tmp_path)
        assert store.damaged == [path] or len(store) <= 2
        for point, seed in list(store._cells):
            assert isinstance(point, str)
            assert isinstance(seed, int)
            values = store[point, seed].values
            assert all(isinstance(value, float) for value in values.values())

    tried(n, check, name=st.sampled_from(list(CELLS)), array=ARRAYS)


@pytest.mark.parametrize("n", N_TRIES)
def test_edited_plans_of_sweeps_are_not_followed(n, tmp_path):
    """The next call does not follow an edited plan, and replaces it."""

    def run():
        options = {"grid": {}, "seeds": 1, "preset": "smoke", "jobs": 1}
        return sweep("marion2025/bayes", out=tmp_path, **options)

    result = run()
    file = result.folder / "sweep.json"
    before = file.read_bytes()

    @example(edits=[(0, 10**6, b"[" * 200_000)])
    @example(edits=[(0, 10**6, b'{"key": "/etc", "version": "../.."}')])
    def check(edits):
        file.write_bytes(edited(before, edits))
        again = run()
        assert file.read_bytes() == before
        assert (again.key, again.folder) == (result.key, result.folder)
        assert again.computed == 0
        for name, column in result.table.items():
            np.testing.assert_array_equal(again.table[name], column)

    tried(n, check, edits=EDITS)
