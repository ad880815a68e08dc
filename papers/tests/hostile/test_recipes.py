"""Checkpoints, images and texts from a stranger: read, or refused in one sentence."""

import os
import shutil
import struct
from functools import partial

import numpy as np
import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
from PIL import Image  # noqa: E402
from tests.hostile.files import (  # noqa: E402
    check_sentence,
    with_bomb,
    with_device,
    with_pipe,
    with_terabyte,
    with_value,
)

from eigenheads_papers.recipes import evaluate_checkpoints, train_model  # noqa: E402
from eigenheads_papers.recipes._checkpoints import load_checkpoint  # noqa: E402
from eigenheads_papers.recipes._data import read_image, read_text_words  # noqa: E402
from eigenheads_papers.recipes._tables import describe_model  # noqa: E402


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("text")
    for name in ("train", "valid", "test"):
        (root / f"{name}.txt").write_text("the cat sees the dog .\n" * 40)
    return root


@pytest.fixture(scope="module")
def original(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    train_model("wikitext", data=data, out=out, preset="smoke", epochs=1)
    return out


@pytest.fixture
def run(original, tmp_path):
    return shutil.copytree(original, tmp_path / "run")


stated = partial(with_value, "state.json")
sized = partial(stated, "record", "size")


HOSTILE_STATES = {
    "state is a pipe": with_pipe("state.json"),
    "state is a device": with_device("state.json"),
    "weights are a pipe": with_pipe("model.safetensors"),
    "weights are a device": with_device("model.safetensors"),
    "record is a list": stated("record", value=[]),
    "settings are a list": stated("settings", value=[]),
    "no task": stated("record", "task", value=None),
    "task is a list": stated("record", "task", value=[]),
    "other task": stated("record", "task", value="\x1b[2J"),
    "words are a number": stated("record", "vocabulary", value=3),
    "words are numbers": stated("record", "vocabulary", value=[1, 2]),
    "attention is a text": stated("record", "attention", value="x"),
    "unknown attention": stated("record", "attention", "variant", value="\x1b[2J"),
    "foreign option": stated("record", "attention", "other", value=1),
    "size is a list": stated("record", "size", value=[]),
    "foreign size": sized("other", value=1),
    "negative depth": sized("depth", value=-1),
    "100 000 layers": sized("depth", value=100_000),
    "a million wide": sized("d_model", value=2**20),
    "a long context": sized("context", value=10**12),
    "hidden layer": sized("d_hidden", value=10**12),
    "text as width": sized("d_model", value="16"),
    "no heads": sized("n_heads", value=0),
    "infinite dropout": sized("dropout", value=float("inf")),
}


@pytest.mark.parametrize("change", HOSTILE_STATES.values(), ids=list(HOSTILE_STATES))
def test_a_hostile_checkpoint_is_refused(run, change):
    change(run / "model")
    with pytest.raises(ValueError, match="`checkpoint` must be ") as caught:
        load_checkpoint(run)
    check_sentence(caught.value)


def test_a_seed_that_is_none_is_left_out(run):
    stated("settings", "seed", value=["x"])(run / "model")
    assert describe_model("x", load_checkpoint(run)[1]).seed is None


class Code:
    def __reduce__(self):
        return (os.system, ("touch ran",))


HOSTILE_RUNS = {
    "no step": stated("step", value=None),
    "negative step": stated("step", value=-1),
    "late step": stated("step", value=10**9),
    "metrics are a list": stated("metrics", value=[]),
    "settings are a text": stated("settings", value="x"),
    "optimizer is a pipe": with_pipe("optimizer.pt"),
    "optimizer is a bomb": with_bomb("optimizer.pt"),
    "optimizer is code": lambda f: torch.save(Code(), f / "optimizer.pt"),
    "optimizer is a list": lambda f: torch.save([], f / "optimizer.pt"),
    "no scaler": lambda f: torch.save({"optimizer": {}}, f / "optimizer.pt"),
    "average is a pipe": with_pipe("average.safetensors"),
}


@pytest.mark.parametrize("change", HOSTILE_RUNS.values(), ids=list(HOSTILE_RUNS))
def test_a_hostile_run_is_not_continued(run, data, change, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (checkpoint,) = (run / "checkpoints").iterdir()
    change(checkpoint)
    with pytest.raises(
        ValueError, match=r"train_model: `(checkpoint|out)` must"
    ) as caught:
        train_model("wikitext", data=data, out=run, preset="smoke", epochs=1)
    check_sentence(caught.value)
    assert not (tmp_path / "ran").exists()


def png(width, height):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + bytes(4)

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", b"x") + chunk(b"IEND", b"")


HOSTILE_IMAGES = {
    "empty": b"",
    "text": b"hello",
    "huge": png(2**31 - 1, 2**31 - 1),
    "no pixels": png(0, 0),
    "cut": png(8, 8)[:40],
    # Pillow would start Ghostscript for it.
    "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n"
    b"(ran) (w) file closefile\n%%EOF\n",
    "GIF": b"GIF89a" + bytes(40),
}


@pytest.mark.parametrize("content", HOSTILE_IMAGES.values(), ids=list(HOSTILE_IMAGES))
def test_a_hostile_image_is_refused(tmp_path, content, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x.png"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="`data` must be images that can be") as caught:
        read_image(path)
    check_sentence(caught.value)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("change", [with_pipe, with_device, with_terabyte])
def test_images_and_texts_are_regular_files(tmp_path, change):
    for name, read in (("x.png", read_image), ("x.txt", read_text_words)):
        change(name)(tmp_path)
        with pytest.raises(ValueError, match=r"`data` must be "):
            read(tmp_path / name)


def test_every_byte_of_an_image_may_be_wrong(tmp_path):
    path = tmp_path / "x.png"
    pixels = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
    rng = np.random.default_rng(0)
    for kind in ("png", "jpeg", "bmp", "webp"):
        Image.fromarray(pixels).save(path, format=kind)
        content = path.read_bytes()
        for place in range(len(content)):
            changed = bytearray(content)
            changed[place] = rng.integers(256)
            path.write_bytes(changed)
            try:
                assert read_image(path).mode == "RGB"
            except ValueError as error:
                check_sentence(error)


def test_a_swapped_evaluation_needs_a_folder_that_exists(run):
    with pytest.raises(ValueError, match="`data` must be a folder"):
        evaluate_checkpoints([run], data=run / "\x1b[2J")
