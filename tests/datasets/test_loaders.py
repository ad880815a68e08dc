"""MUSK is read from both file formats."""

import gzip

import numpy as np
import pytest

from eigenheads.datasets import load_musk

ROWS = np.arange(4 * 166).reshape(4, 166)
NAMES, LABELS = ["a", "a", "b", "a"], [1, 1, 0, 1]


def check(musk):
    assert musk.molecules in (["a", "b"], ["1", "2"])
    assert musk.targets.tolist() == [True, False]
    np.testing.assert_array_equal(musk.bags[0], ROWS[[0, 1, 3]])
    np.testing.assert_array_equal(musk.bags[1], ROWS[[2]])


def test_the_file_of_the_repository(tmp_path):
    lines = [
        ",".join([name, f"{name}_{i}", *map(str, row), f"{label}."])
        for i, (name, row, label) in enumerate(zip(NAMES, ROWS, LABELS, strict=True))
    ]
    (tmp_path / "clean1.data").write_text("\n".join(lines))
    check(load_musk(tmp_path))


def test_the_compressed_table(tmp_path):
    with gzip.open(tmp_path / "musk2.csv.gz", "wt") as file:
        for name, row, label in zip([1, 1, 2, 1], ROWS, LABELS, strict=True):
            file.write(",".join(map(str, [label, name, *row])) + "\n")
    check(load_musk(tmp_path, version=2))


def test_errors_say_where_to_find_it(tmp_path):
    with pytest.raises(ValueError, match="UCI Machine Learning Repository"):
        load_musk(tmp_path)
    (tmp_path / "clean1.data").write_text("a,b,1\n")
    with pytest.raises(ValueError, match="3 columns in line 1"):
        load_musk(tmp_path)
    with pytest.raises(ValueError, match="`version` must be 1 or 2"):
        load_musk(tmp_path, version=3)
