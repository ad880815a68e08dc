"""Checkpoints, images and texts from a stranger: read, or refused in one sentence."""

import json
import os
import shutil
import struct
import zipfile

import numpy as np
import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
from PIL import Image  # noqa: E402
from tests.hostile.worker import GRAMMAR  # noqa: E402

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


def check_sentence(error):
    assert GRAMMAR.fullmatch(str(error)), str(error)
    assert str(error).isprintable()


def changed(path, value):
    """Return a function that puts a value at a place of a checkpoint's state."""

    def change(folder):
        file = folder / "state.json"
        state = json.loads(file.read_text())
        inner = state
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        file.write_text(json.dumps(state))

    return change


def pipe(name):
    def change(folder):
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change


def device(name):
    def change(folder):
        (folder / name).unlink()
        (folder / name).symlink_to("/dev/zero")

    return change


HOSTILE_STATES = {
    "state is a pipe": pipe("state.json"),
    "state is a device": device("state.json"),
    "weights are a pipe": pipe("model.safetensors"),
    "weights are a device": device("model.safetensors"),
    "record is a list": changed(["record"], []),
    "settings are a list": changed(["settings"], []),
    "no task": changed(["record", "task"], None),
    "task is a list": changed(["record", "task"], []),
    "other task": changed(["record", "task"], "\x1b[2J"),
    "words are a number": changed(["record", "vocabulary"], 3),
    "words are numbers": changed(["record", "vocabulary"], [1, 2]),
    "attention is a text": changed(["record", "attention"], "x"),
    "unknown attention": changed(["record", "attention", "variant"], "\x1b[2J"),
    "foreign option": changed(["record", "attention", "other"], 1),
    "size is a list": changed(["record", "size"], []),
    "foreign size": changed(["record", "size", "other"], 1),
    "negative depth": changed(["record", "size", "depth"], -1),
    "100 000 layers": changed(["record", "size", "depth"], 100_000),
    "a million wide": changed(["record", "size", "d_model"], 2**20),
    "a long context": changed(["record", "size", "context"], 10**12),
    "hidden layer": changed(["record", "size", "d_hidden"], 10**12),
    "text as width": changed(["record", "size", "d_model"], "16"),
    "no heads": changed(["record", "size", "n_heads"], 0),
    "infinite dropout": changed(["record", "size", "dropout"], float("inf")),
}


@pytest.mark.parametrize("change", HOSTILE_STATES.values(), ids=list(HOSTILE_STATES))
def test_a_hostile_checkpoint_is_refused(run, change):
    change(run / "model")
    with pytest.raises(ValueError, match="evaluate: `checkpoint` must be ") as caught:
        load_checkpoint(run)
    check_sentence(caught.value)


def test_a_seed_that_is_none_is_left_out(run):
    changed(["settings", "seed"], ["x"])(run / "model")
    assert describe_model("x", load_checkpoint(run)[1]).seed is None


def bomb(name):
    """Return a function that compresses the members of an archive."""

    def change(folder):
        with zipfile.ZipFile(folder / name) as archive:
            members = {one: archive.read(one) for one in archive.namelist()}
        with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
            for one, content in members.items():
                archive.writestr(one, content)

    return change


class Code:
    def __reduce__(self):
        return (os.system, ("touch ran",))


HOSTILE_RUNS = {
    "no step": changed(["step"], None),
    "negative step": changed(["step"], -1),
    "late step": changed(["step"], 10**9),
    "metrics are a list": changed(["metrics"], []),
    "settings are a text": changed(["settings"], "x"),
    "optimizer is a pipe": pipe("optimizer.pt"),
    "optimizer is a bomb": bomb("optimizer.pt"),
    "optimizer is code": lambda f: torch.save(Code(), f / "optimizer.pt"),
    "optimizer is a list": lambda f: torch.save([], f / "optimizer.pt"),
    "no scaler": lambda f: torch.save({"optimizer": {}}, f / "optimizer.pt"),
    "average is a pipe": pipe("average.safetensors"),
}


@pytest.mark.parametrize("change", HOSTILE_RUNS.values(), ids=list(HOSTILE_RUNS))
def test_a_hostile_run_is_not_continued(run, data, change, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (checkpoint,) = (run / "checkpoints").iterdir()
    change(checkpoint)
    with pytest.raises(ValueError, match=r"train: `(checkpoint|out)` must") as caught:
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
        read_image(path, owner="train")
    check_sentence(caught.value)
    assert list(tmp_path.iterdir()) == [path]


def test_images_and_texts_are_regular_files(tmp_path):
    for suffix in ("png", "txt"):
        os.mkfifo(tmp_path / f"pipe.{suffix}")
        (tmp_path / f"zero.{suffix}").symlink_to("/dev/zero")
        with (tmp_path / f"sparse.{suffix}").open("wb") as file:
            file.truncate(2**40)
    for name in ("pipe", "zero", "sparse"):
        with pytest.raises(ValueError, match=r"train: `data` must be "):
            read_image(tmp_path / f"{name}.png", owner="train")
        with pytest.raises(ValueError, match=r"train: `data` must be "):
            read_text_words(tmp_path / f"{name}.txt", owner="train")


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
                assert read_image(path, owner="train").mode == "RGB"
            except ValueError as error:
                check_sentence(error)


def test_a_swapped_evaluation_needs_a_folder_that_exists(run):
    with pytest.raises(ValueError, match="`data` must be a folder"):
        evaluate_checkpoints([run], data=run / "\x1b[2J")
