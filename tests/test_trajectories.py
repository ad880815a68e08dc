import numpy as np
import pytest
from numpy.testing import assert_array_equal

from eigenheads._trajectories import Trajectories, record_steps


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


def test_curves_must_match_the_steps():
    with pytest.raises(ValueError, match=r"`kappa` must be of shape \(n_runs, 2\)"):
        Trajectories([0, 1], {"kappa": [[0.0, 1.0, 2.0]]})


def test_survives_the_disk_byte_by_byte(paths, tmp_path):
    first, second = tmp_path / "a.npz", tmp_path / "b.npz"
    paths.save(first)
    again = Trajectories.load(first)
    again.save(second)
    assert first.read_bytes() == second.read_bytes()
    assert_array_equal(again["kappa"], paths["kappa"])
    assert_array_equal(again.steps, paths.steps)


def test_a_file_that_is_missing_damaged_or_foreign_is_named(paths, tmp_path):
    with pytest.raises(ValueError, match="must be an existing file; got"):
        Trajectories.load(tmp_path / "none.npz")
    whole = tmp_path / "whole.npz"
    paths.save(whole)
    broken = tmp_path / "broken.npz"
    broken.write_bytes(whole.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"Trajectories\.save; got .*broken\.npz"):
        Trajectories.load(broken)
    foreign = tmp_path / "foreign.npz"
    np.savez(foreign, other=np.zeros(2))
    with pytest.raises(ValueError, match=r"Trajectories\.save; got .*foreign\.npz"):
        Trajectories.load(foreign)


def test_pickled_objects_are_never_loaded(tmp_path):
    path = tmp_path / "pickle.npz"
    np.savez(path, steps=np.array([{"a": 1}], dtype=object))
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
