"""Folders of models from a stranger: refused in one sentence, nothing invented."""

import json
import shutil
from contextlib import suppress

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402
from tests.adapters.models import VOCABULARY, hugging_face, vision  # noqa: E402
from tests.hostile.files import (  # noqa: E402
    with_bomb,
    with_device,
    with_pipe,
    with_terabyte,
    with_value,
)

from eigenheads.adapters import load_swapped, screen_tokens, swap_attention  # noqa: E402
from eigenheads.cli import main  # noqa: E402

QUICK = ["--permutations", "2", "--untrained", "0", "--layers", "0"]
KEY = "encoder.layer.0.attention.self.query.weight"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    root = tmp_path_factory.mktemp("models") / "tiny-bert"
    hugging_face("bert").save_pretrained(root)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words += [f"w{i}" for i in range(VOCABULARY - len(words))]
    vocabulary = {word: i for i, word in enumerate(words)}
    transformers.BertTokenizerFast(vocab=vocabulary).save_pretrained(root)
    return root


@pytest.fixture(scope="module")
def original_swapped(tmp_path_factory):
    root = tmp_path_factory.mktemp("swapped")
    swap_attention(hugging_face("bert"), to="rpc", n_iter=2).save_pretrained(root)
    return root


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "model")


@pytest.fixture
def swapped(original_swapped, tmp_path):
    return shutil.copytree(original_swapped, tmp_path / "swapped")


def change_weights(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def probe(folder, capsys):
    status = main(["probe", str(folder), *QUICK, "--out", str(folder / "out")])
    return status, capsys.readouterr().err


def lose(tensors):
    del tensors[KEY]


def narrow(tensors):
    tensors[KEY] = tensors[KEY][:, :-1].contiguous()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lose, f"must be a folder with all weights of its model; got * `{KEY}`."),
        (narrow, f"weights of the shapes in config.json; got * `{KEY}` differ."),
        (dict.clear, "must be a folder"),
    ],
)
def test_weights_that_are_missing_are_not_invented(folder, change, sentence, capsys):
    change_weights(folder, change)
    status, said = probe(folder, capsys)
    assert status == 2
    assert said.count("\n") == 1
    for part in sentence.split("*"):
        assert part.strip() in said


@pytest.mark.parametrize(
    ("change", "sentence"),
    [(lose, "all weights of its model"), (narrow, "of the shapes in config.json")],
)
def test_swapped_weights_that_are_missing_are_not_invented(swapped, change, sentence):
    change_weights(swapped, change)
    with pytest.raises(ValueError, match=f"load_swapped: `path` must be .*{sentence}"):
        load_swapped(swapped)


def test_a_missing_pooler_is_no_harm(folder, capsys):
    change_weights(
        folder,
        lambda tensors: [tensors.pop(k) for k in list(tensors) if "pooler" in k],
    )
    status, _ = probe(folder, capsys)
    assert status == 0


def test_a_class_of_the_callers_may_add_a_head_but_not_lose_the_rest(swapped):
    kind = transformers.AutoModelForSequenceClassification
    assert load_swapped(swapped, model_class=kind).num_labels == 2
    change_weights(swapped, lose)
    with pytest.raises(ValueError, match=r"which lacks `bert.encoder.layer.0"):
        load_swapped(swapped, model_class=kind)


def test_an_escape_sequence_in_a_name_is_printed_in_plain(folder, capsys):
    folder = folder.rename(folder.with_name("\x1b[2Jmodel"))
    with_value("config.json", "model_type", value="\x1b]0;owned\x07")(folder)
    status, said = probe(folder, capsys)
    assert status == 2
    assert said[:-1].isprintable()


HOSTILE_CONFIGS = {
    "kernel": {"attn_implementation": "stranger/kernel"},
    "kernel by another key": {"_attn_implementation": "stranger/kernel:run"},
    "many layers": {"num_hidden_layers": 100_000},
    "wide": {"hidden_size": 400_000, "intermediate_size": 1_600_000},
    "no layers": {"num_hidden_layers": -1},
    "text as size": {"hidden_size": "16"},
    "no heads": {"num_attention_heads": 0},
    "remote code": {"model_type": "x", "auto_map": {"AutoConfig": "evil.Config"}},
    "no type": {"model_type": None},
    "list": {"hidden_size": [1]},
}


@pytest.mark.parametrize("changes", HOSTILE_CONFIGS.values(), ids=HOSTILE_CONFIGS)
def test_a_hostile_configuration_is_refused_in_one_line(folder, changes, capsys):
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    for key, value in changes.items():
        with_value("config.json", key, value=value)(folder)
    status, said = probe(folder, capsys)
    assert status == 2
    assert said.count("\n") == 1
    assert said.startswith(
        ("eigenheads: probe: `source` must be ", "eigenheads: probe: `model` must be ")
    )


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 10_000, "\xff", "null"])
def test_a_configuration_that_is_none_is_refused_in_one_line(folder, content, capsys):
    (folder / "config.json").write_text(content, encoding="latin-1")
    status, said = probe(folder, capsys)
    assert status == 2
    assert said.count("\n") == 1


def configured(*place, value):
    return with_value("config.json", *place, value=value)


def marked(key, value):
    return configured("eigenheads_attention", key, value=value)


HOSTILE_SWAPS = {
    "marker is a text": configured("eigenheads_attention", value="x"),
    "marker is a list": configured("eigenheads_attention", value=[]),
    "no layers": marked("layers", None),
    "unknown variant": marked("layers", {"a": {"to": "nonsense"}}),
    "record is a number": marked("layers", {"a": 3}),
    "no such layer": marked("layers", {"a": {"to": "rpc"}}),
    "kernel": marked("original", "stranger/kernel"),
    "original is a number": marked("original", 3),
    "architecture is a function": configured("architectures", value=["pipeline"]),
    "architecture is no list": configured("architectures", value="x"),
    "architecture is a number": configured("architectures", value=[3]),
    "many layers": configured("num_hidden_layers", value=100_000),
    "wide": configured("hidden_size", value=400_000),
    "not JSON": lambda folder: (folder / "config.json").write_text("{"),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "cut weights": lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 50),
    "nothing": lambda folder: shutil.rmtree(folder),
}


@pytest.mark.parametrize("change", HOSTILE_SWAPS.values(), ids=HOSTILE_SWAPS)
def test_a_hostile_swap_is_refused_in_one_sentence(swapped, change):
    change(swapped)
    sentence = r"^load_swapped: `(path|model_class|layers|to)` must be .*; got "
    with pytest.raises((ValueError, TypeError), match=sentence) as caught:
        load_swapped(swapped)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("model_type", ["bert", "x"])
def test_code_in_a_folder_is_not_run(swapped, model_type, monkeypatch, tmp_path):
    # Transformers asks in the terminal unless it is told not to trust the folder.
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    ran = tmp_path / "ran"
    (swapped / "evil.py").write_text(f"open({str(ran)!r}, 'w')")
    theirs = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
    configured("model_type", value=model_type)(swapped)
    configured("auto_map", value=theirs)(swapped)
    with suppress(ValueError):
        load_swapped(swapped)
    assert not ran.exists()


def compressed(folder):
    """Write the weights as a pickle of tensors in an archive that is compressed."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    with_bomb("pytorch_model.bin")(folder)


HOSTILE_FILES = {
    "pipe of weights": with_pipe("model.safetensors"),
    "pipe of another name": with_pipe("pytorch_model.bin"),
    "pipe as configuration": with_pipe("config.json"),
    "pipe as generation": with_pipe("generation_config.json"),
    "pipe as vocabulary": with_pipe("tokenizer.json"),
    "device of weights": with_device("model.safetensors"),
    "device as vocabulary": with_device("tokenizer.json"),
    "terabyte of configuration": with_terabyte("config.json"),
    "compressed weights": compressed,
}


@pytest.mark.parametrize("change", HOSTILE_FILES.values(), ids=HOSTILE_FILES)
def test_files_that_never_end_are_not_read(folder, swapped, change, capsys):
    change(folder)
    status, said = probe(folder, capsys)
    assert status == 2
    assert said.count("\n") == 1
    assert said.startswith("eigenheads: probe: `source` must be ")
    change(swapped)
    with pytest.raises(ValueError, match=r"^load_swapped: `path` must be "):
        load_swapped(swapped)


def test_a_screen_far_larger_than_the_weights_is_not_made(tmp_path):
    model = vision()
    images = torch.rand(100, 3, 8, 8, generator=torch.manual_seed(0))
    screen_tokens(model, images, n_components=2).save_pretrained(tmp_path)
    assert load_swapped(tmp_path) is not None
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for record in config["eigenheads_attention"]["layers"].values():
        record["shape"] = [10_000, 16, 10]
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="as large as its weights; got 1000"):
        load_swapped(tmp_path)
