import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.testing import assert_array_equal

from eigenheads._files import write_arrays
from eigenheads._trajectories import Trajectories, check_record_every, record_steps


@pytest.fixture
def paths():
    return Trajectories([0, 5, 10], {"kappa": [[0.0, 0.1, 0.2], [0.3, 0.4, 0.5]]})


def test_is_a_mapping_of_curves(paths):
    assert list(paths) == ["kappa"]
    assert len(paths) == 1
    assert "kappa" in paths
    assert "nu" not in paths
    assert_array_equal(paths.final("kappa"), [0.2, 0.5])
    assert "n_runs=2, n_records=3" in repr(paths)


def test_an_unknown_curve_names_the_nearest(paths):
    with pytest.raises(ValueError, match="Did you mean 'kappa'"):
        paths["kapa"]


def test_keeps_the_contract_of_a_mapping(paths):
    assert paths.get("foo") is None
    assert paths.get("kappa") is paths["kappa"]
    with pytest.raises(KeyError) as raised:
        paths["foo"]
    assert str(raised.value) == (
        "Trajectories: `name` must be one of 'kappa'; got 'foo'."
    )
    assert [1] not in paths


def test_equal_if_steps_and_curves_are(paths):
    same = Trajectories(paths.steps.copy(), {"kappa": paths["kappa"].copy()})
    assert paths == same
    assert paths in [same]
    assert paths != Trajectories([0, 5, 11], dict(paths))
    assert paths != Trajectories(paths.steps, {"kappa": paths["kappa"] + 1})
    assert paths != Trajectories(paths.steps, {"nu": paths["kappa"]})
    assert paths != dict(paths)
    unknown = Trajectories([0], {"x": [[np.nan]]})
    assert unknown == Trajectories([0], {"x": [[np.nan]]})


def test_curves_can_be_searched(paths):
    copy = paths["kappa"].copy()
    assert copy in paths.values()
    assert ("kappa", copy) in paths.items()
    assert copy + 1 not in paths.values()
    assert ("nu", copy) not in paths.items()
    assert (copy, copy) not in paths.items()
    assert 3 not in paths.items()
    assert "x" not in paths.values()
    assert dict(paths.items()).keys() == {"kappa"}


@pytest.mark.parametrize(
    ("steps", "curves", "message"),
    [
        ([0], {"steps": [[1.0]]}, "`curves` must be named .* and not .*; got 'steps'"),
        ([0], {"run": [[1.0]]}, "`curves` must be named .* got 'run'"),
        ([0], {"": [[1.0]]}, "`curves` must be named in 1 to 200 characters"),
        ([0], {"a\0b": [[1.0]]}, "`curves` must be named by printable text"),
        ([0], {3: [[1.0]]}, "`curves` must be named by printable text; got 3"),
        ([0], {"a": [[1.0]], "b": [[1], [2]]}, "`b` must be of 1 runs, .* got 2 runs"),
        ([0], {"a": [["x"]]}, r"`a` must be numbers of shape \(n_runs, 1\); got \[\["),
        ([0, 1], {"a": [[1], [2, 3]]}, r"`a` must be numbers of shape \(n_runs, 2\)"),
        (3, {}, r"`steps` must be numbers of shape \(n_records,\); got 3"),
        ([], {}, r"`steps` must be numbers of shape \(n_records,\); got \[\]"),
        (None, {}, "`steps` must be numbers .* got None"),
    ],
)
def test_curves_that_are_none_get_a_sentence(steps, curves, message):
    with pytest.raises(ValueError, match="Trajectories: " + message):
        Trajectories(steps, curves)


def test_curves_are_a_mapping():
    with pytest.raises(TypeError, match="`curves` must be a mapping of names"):
        Trajectories([0], [[1.0]])


@pytest.mark.parametrize("name", ["file", "allow_pickle", "args", "a.npy", "a/b", "λ"])
def test_any_name_survives_the_disk(name, tmp_path):
    paths = Trajectories([0, 1], {name: [[0.0, 1.0]]})
    paths.save(tmp_path / "x.safetensors")
    assert Trajectories.load(tmp_path / "x.safetensors") == paths


def test_paths_that_are_no_files_get_a_sentence(paths, tmp_path):
    with pytest.raises(
        ValueError, match=r"Trajectories\.load: `path` .* is not a regular file"
    ):
        Trajectories.load(tmp_path)
    with pytest.raises(
        OSError, match=r"Trajectories\.save: `path` must be a file that"
    ):
        paths.save(tmp_path)
    with pytest.raises(ValueError, match="`path` must be a file that can be written"):
        paths.save(tmp_path / "a\0b")
    for method in (paths.save, Trajectories.load):
        with pytest.raises(
            TypeError, match="`path` must be the path of a file; got No"
        ):
            method(None)


names = st.text(max_size=4) | st.sampled_from(["steps", "file", "kappa"])
some_arrays = arrays(
    st.sampled_from([np.float64, np.int32, "U2", object, np.complex128]),
    array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)


@given(steps=some_arrays, curves=st.dictionaries(names, some_arrays, max_size=3))
@settings(max_examples=100, deadline=None)
def test_any_arrays_give_curves_or_a_sentence(steps, curves, tmp_path_factory):
    try:
        paths = Trajectories(steps, curves)
    except ValueError as error:
        assert str(error).startswith("Trajectories: `")
        assert "` must be " in str(error)
    else:
        file = tmp_path_factory.getbasetemp() / "any.safetensors"
        paths.save(file)
        assert Trajectories.load(file) == paths


def test_too_many_records_get_a_sentence():
    options = {"n_runs": 10, "n_curves": 5}
    message = "`record_every` must be large enough .* got 1, which makes 50000000050"
    with pytest.raises(ValueError, match=message):
        check_record_every(1, n_steps=10**9, **options)
    assert check_record_every(10**9, n_steps=10**9, **options) == 10**9


def test_curves_must_match_the_steps():
    with pytest.raises(
        ValueError, match=r"`kappa` must be numbers of shape \(n_runs, 2\)"
    ):
        Trajectories([0, 1], {"kappa": [[0.0, 1.0, 2.0]]})


def test_survives_the_disk_byte_by_byte(paths, tmp_path):
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    paths.save(first)
    again = Trajectories.load(first)
    again.save(second)
    assert first.read_bytes() == second.read_bytes()
    assert_array_equal(again["kappa"], paths["kappa"])
    assert_array_equal(again.steps, paths.steps)


def test_a_file_that_is_missing_damaged_or_foreign_is_named(paths, tmp_path):
    with pytest.raises(ValueError, match="must be an existing file; got"):
        Trajectories.load(tmp_path / "none.safetensors")
    whole = tmp_path / "whole.safetensors"
    paths.save(whole)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(whole.read_bytes()[:100])
    with pytest.raises(
        ValueError, match=r"Trajectories\.save; got .*broken\.safetensors"
    ):
        Trajectories.load(broken)
    foreign = tmp_path / "foreign.safetensors"
    write_arrays(foreign, {"other": np.zeros(2)})
    with pytest.raises(
        ValueError, match=r"Trajectories\.save; got .*foreign\.safetensors"
    ):
        Trajectories.load(foreign)


def test_pickled_objects_are_never_loaded(tmp_path):
    path = tmp_path / "pickle.safetensors"
    path.write_bytes(pickle.dumps(np.array([{"a": 1}], dtype=object)))
    with pytest.raises(ValueError, match="a file written by Trajectories"):
        Trajectories.load(path)


def test_frame_has_a_row_a_run_and_record(paths):
    frame = paths.to_frame()
    assert list(frame.columns) == ["run", "step", "kappa"]
    assert frame.query("run == 1 and step == 5")["kappa"].item() == 0.4


@pytest.mark.parametrize(("n_steps", "every"), [(10, 1), (10, 3), (10, 10), (7, 2)])
def test_records_start_at_zero_and_count_as_promised(n_steps, every):
    steps = record_steps(n_steps, every)
    assert steps[0] == 0
    assert len(steps) == n_steps // every + 1
