"""`eigenheads probe` as a user meets it: a folder, a callable, mistakes."""

import csv
import json
import shlex
import shutil
import signal

import pytest

torch = pytest.importorskip("torch")
from tests.adapters.models import VOCABULARY, hugging_face, vision  # noqa: E402

from eigenheads._plotting.svg import render_svg  # noqa: E402
from eigenheads.adapters import load_model  # noqa: E402
from eigenheads.adapters._load import read_texts  # noqa: E402
from eigenheads.cli import main  # noqa: E402
from eigenheads.cli._models import parse_layers  # noqa: E402
from eigenheads.probes import ModelProbe  # noqa: E402
from eigenheads.report import _probe  # noqa: E402

pytestmark = pytest.mark.torch
QUICK = ["--permutations", "3", "--untrained", "0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Save a small BERT with a tokenizer of whole words."""
    transformers = pytest.importorskip("transformers")
    root = tmp_path_factory.mktemp("models") / "tiny-bert"
    hugging_face("bert").save_pretrained(root)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "blue"]
    words += [f"w{i}" for i in range(VOCABULARY - len(words))]
    vocabulary = {word: i for i, word in enumerate(words)}
    transformers.BertTokenizerFast(vocab=vocabulary).save_pretrained(root)
    return root


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("red green blue red\n\n  blue blue green\nw1 w2 w3 w4 w5\n")
    return path


def test_a_folder_is_probed(folder, texts, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["probe", str(folder), "--data", str(texts), "--layers", "1"]
    assert main([*arguments, *QUICK, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "tiny-bert: BertModel on 3 texts" in shown
    assert "by layer and head" in shown
    assert "annot tell in " in shown
    assert max(len(line) for line in shown.splitlines() if "Page:" not in line) <= 80
    assert f"Page: {out / 'probe.html'}" in shown
    page = (out / "probe.html").read_text()
    assert "data:image/svg+xml" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "src=" not in page.replace('src="data:image/svg+xml;base64,', "")
    assert ModelProbe.load(out / "probe.safetensors").layers == [1]


def test_a_callable_is_probed(tmp_path, capsys, monkeypatch):
    figure = render_svg(lambda figure: None, size=(1.0, 1.0))  # drawing has its test
    for name in ("statistic_figure", "question_figure"):
        monkeypatch.setattr(_probe, name, lambda *_: figure)
    (tmp_path / "my_own_models.py").write_text(
        "import torch\n"
        "def encoder():\n"
        "    layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)\n"
        "    return layer, torch.randn(2, 5, 8)\n"
        "def forgetful():\n"
        "    return encoder()[0]\n"
        "def broken():\n"
        "    raise RuntimeError('no such file')\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["probe", "my_own_models:encoder", *QUICK]) == 0
    assert "TransformerEncoderLayer" in capsys.readouterr().out
    few = ["--statistics", "entropy", "--ignore-tokens", "0,1", "--jobs", "1"]
    assert main(["probe", "my_own_models:encoder", *QUICK, *few]) == 0
    captured = capsys.readouterr()
    assert "linear_cka" not in captured.out
    assert (tmp_path / "results" / "probe" / "probe.html").is_file()
    for name, sentence in (
        ("forgetful", "must be a callable that returns (model, batch)"),
        ("broken", "which raised RuntimeError: no such file (my_own_models.py, line"),
        ("absent", "my_own_models has no 'absent'"),
    ):
        assert main(["probe", f"my_own_models:{name}", *QUICK]) == 2
        assert sentence in capsys.readouterr().err
    assert main(["probe", "my_own_models:encoder", "--data", "x.txt"]) == 2
    assert "left out for module:callable" in capsys.readouterr().err


class Stranger:
    """What a pickle may hold, and what would run when it is read."""

    def __reduce__(self):
        return print, ("this must not run",)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["mymodels:"], "`MODEL` must be module:callable; got 'mymodels:'. mymodels:"),
        (["nowhere/at-all"], "got 'nowhere/at-all', which is neither. --download"),
        (["FOLDER", "--layers", "0,x"], "indices and ranges such as 0,3-5"),
        (["FOLDER", "--layers", "5-3"], "ranges from a layer to a later one"),
        (["FOLDER", "--layers", "9"], "indices from 0 to 1; got 9"),
        (["FOLDER", "--data", "absent.txt"], "a text file that can be read"),
        (["FOLDER", "--data", "EMPTY"], "a file with one text per line"),
        (["FOLDER", "--data", "BYTES"], "a text file in UTF-8"),
        (["FOLDER", "--max-length", "33"], "at most 32, the limit of the model"),
        (["FOLDER", "--max-length", "2"], "an integer >= 3"),
        (["FOLDER", "--permutations", "-1"], "`n_permutations` must be"),
        (["FOLDER", "--redraws", "-1"], "`n_redraws` must be an integer >= 0"),
        (["EMPTY_FOLDER"], "which has no config.json"),
        (["BROKEN_FOLDER"], "AutoModel raised"),
        (["PICKLE_FOLDER"], "a pickle of more than tensors. It could run code"),
    ],
)
def test_mistakes_are_one_line(arguments, sentence, folder, tmp_path, capsys):
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "pickle").mkdir()
    shutil.copy(folder / "config.json", tmp_path / "pickle")
    torch.save({"weight": Stranger()}, tmp_path / "pickle" / "pytorch_model.bin")
    places = {
        "FOLDER": str(folder),
        "EMPTY": str(tmp_path / "empty.txt"),
        "BYTES": str(tmp_path / "bytes.txt"),
        "EMPTY_FOLDER": str(tmp_path / "empty"),
        "BROKEN_FOLDER": str(tmp_path / "broken"),
        "PICKLE_FOLDER": str(tmp_path / "pickle"),
    }
    words = [places.get(word, word) for word in arguments]
    assert main(["probe", *words, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err.strip()
    assert sentence in error
    assert error.startswith("eigenheads: ")
    assert "\n" not in error
    assert not (tmp_path / "out").exists()


def test_a_probe_that_is_interrupted_at_once_stores_nothing(
    folder, tmp_path, capsys, monkeypatch
):
    def interrupt(*_, **__):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("eigenheads.adapters.probe_model", interrupt)
    out = tmp_path / "out"
    arguments = ["probe", str(folder), "--out", str(out)]
    assert main(arguments) == 130
    sentence = capsys.readouterr().err.strip()
    assert sentence.startswith(
        "Interrupted. probe keeps the layers that were finished. To start again: "
    )
    assert sentence.endswith(shlex.join(arguments))
    assert not out.exists()


def test_finished_layers_are_kept(folder, tmp_path, capsys, monkeypatch):
    """Ctrl-C in the second layer: the page has the first, and says so."""
    from eigenheads.probes import _captured

    measure, calls = _captured.LayerProbe.__call__, []

    def interrupt_later(self, captured):
        calls.append(captured.layer)
        if captured.layer == 1:
            signal.raise_signal(signal.SIGINT)
            _captured.advance(0.0)
        return measure(self, captured)

    monkeypatch.setattr(_captured.LayerProbe, "__call__", interrupt_later)
    out = tmp_path / "out"
    assert main(["probe", str(folder), *QUICK, "--out", str(out)]) == 130
    shown = capsys.readouterr()
    assert calls[-1] == 1
    assert "Interrupted: 1 of 2 layers were finished" in shown.out
    assert "Interrupted. probe keeps the layers" in shown.err
    probe = ModelProbe.load(out / "probe.safetensors")
    assert probe.layers == [0]
    assert "linear_cka" not in probe.statistics  # the default leaves kernel PCA out
    assert all(x.shape == (1, 4) for y in probe.contrasts.values() for x in y.values())
    with (out / "heads.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["layer"] for row in rows} == {"0"}
    first = [row for row in rows if row["statistic"] == "sink_mass"]
    assert [row["rank"] for row in first] == ["1", "2", "3", "4"]


def test_models_by_name(folder, tmp_path, capsys, monkeypatch):
    """A name is looked up in the local cache; without --download nothing is fetched."""
    import huggingface_hub

    calls = []

    def lookup(name, **options):
        calls.append((name, options["local_files_only"]))
        if name == "owner/there":
            return str(folder)
        raise OSError("cannot find it\nin two lines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lookup)
    loaded = load_model("owner/there")
    assert loaded.about.startswith("owner/there: BertModel on 12 texts")
    assert main(["probe", "owner/missing"]) == 2
    assert "the name of one in the local cache; got 'owner/missing'" in (
        capsys.readouterr().err
    )
    assert main(["probe", "owner/missing", "--download"]) == 2
    assert "got 'owner/missing': cannot find it." in capsys.readouterr().err
    assert main(["probe", "../no/folder"]) == 2
    assert "which is no folder" in capsys.readouterr().err
    assert calls == [
        ("owner/there", True),
        ("owner/missing", True),
        ("owner/missing", False),
    ]


def test_models_of_images_are_sent_to_callables(tmp_path, capsys):
    pytest.importorskip("transformers")
    vision().save_pretrained(tmp_path / "vit")
    assert main(["probe", str(tmp_path / "vit")]) == 2
    assert "takes pixel_values. Use module:callable" in capsys.readouterr().err


def test_a_pickle_is_never_run(folder, tmp_path, capsys):
    """Weights of a stranger may be a program; it is refused, not run."""
    ran = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (ran.write_text, ("yes",))

    copy = tmp_path / "evil"
    copy.mkdir()
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            (copy / file.name).write_bytes(file.read_bytes())
    torch.save(
        {"embeddings.word_embeddings.weight": Evil()}, copy / "pytorch_model.bin"
    )
    assert main(["probe", str(copy)]) == 2
    assert not ran.exists()
    assert "whose weights are a pickle of more than tensors" in capsys.readouterr().err


@pytest.mark.parametrize("named", ["sdpa", "flex_attention"])
def test_the_attention_of_the_configuration_is_not_used(folder, tmp_path, named):
    copy = shutil.copytree(folder, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(
        json.dumps({**config, "attn_implementation": named})
    )
    assert load_model(copy).model.config._attn_implementation == "eager"


def test_long_texts_are_cut_and_it_is_said(folder, tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("red " * 50 + "\nblue green red\n")
    loaded = load_model(folder, data=path)
    assert loaded.batch["input_ids"].shape == (2, 32)
    assert loaded.about.endswith("on 2 texts, 1 cut at 32 tokens")


def test_own_texts_are_enough_and_different():
    texts = read_texts(None)
    assert len(texts) == len(set(texts)) == 12
    # A word is a token or more: 70 tell of the captured variance at 64 columns.
    assert min(len(text.split()) for text in texts) > 70


def test_layers_are_parsed():
    assert parse_layers(None) is None
    assert parse_layers("4,0-2,1") == [0, 1, 2, 4]


def test_without_pytorch_the_extra_is_named(monkeypatch, capsys):
    import sys

    for name in [n for n in sys.modules if n.startswith("eigenheads.adapters")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["probe", "anything"]) == 2
    assert "pip install 'eigenheads[torch]'" in capsys.readouterr().err


def test_without_transformers_the_extra_is_named(folder, monkeypatch, capsys):
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    assert main(["probe", str(folder)]) == 2
    assert "pip install 'eigenheads[hf]'" in capsys.readouterr().err
