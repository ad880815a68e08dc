"""Folders of results from a stranger: refused in one sentence, or harmless."""

import hashlib
import json
import os
import re
import shutil
import time
from base64 import b64encode
from pathlib import Path

import numpy as np
import pytest

import eigenheads.report
import eigenheads_papers.report
from eigenheads._files import read_arrays, write_arrays
from eigenheads.cli import main
from eigenheads_papers import StoreError, reproduce, stored_results
from eigenheads_papers.report import render_report, write_report

KEY = "marion2025/bayes"
SVG = (
    b'<svg xmlns="http://www.w3.org/2000/svg" '
    b'xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 9 9">%s</svg>'
)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    root = tmp_path_factory.mktemp("hostile")
    reproduce(KEY, preset="smoke", out=root)
    return root


@pytest.fixture
def root(original, tmp_path):
    shutil.copytree(original, tmp_path / "results")
    return tmp_path / "results"


def folder_of(root):
    (folder,) = (root / KEY).iterdir()
    return folder


def rewrite(root, change):
    """Change the manifest, which carries the right digests again."""
    folder = folder_of(root)
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    for name in ("table.safetensors", "figure.svg"):
        if (folder / name).is_file():
            digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
            manifest["sha256"][name] = digest
    (folder / "manifest.json").write_text(json.dumps(manifest))


DRAWING = '<path id="a" d="M 0 0 L 1 1"/>'
HOSTILE_FIGURES = {
    "script": "<script>alert(1)</script>",
    "handler": '<g onload="alert(1)"><rect width="1" height="1" onclick="x()"/></g>',
    "foreign object": "<foreignObject><body onload='x()'></body></foreignObject>",
    "link": '<a xlink:href="javascript:alert(1)"><text>click</text></a>',
    "image": '<image xlink:href="http://example.org/x.png"/>',
    "SVG in an image": '<image xlink:href="data:image/svg+xml;base64,AAAA"/>',
    "other file": '<use xlink:href="http://example.org/x.svg#a"/>',
    "style sheet": "<style>@import url(http://example.org/x.css);</style>",
    "address in a style": '<g style="fill: url(http://example.org/x)"/>',
    "escaped address": '<g style="fill: u\\72l(http://example.org/x)"/>',
    "animation": '<animate attributeName="href" to="javascript:alert(1)"/>',
    "set": '<set attributeName="onmouseover" to="alert(1)"/>',
    "nested": '<svg onload="alert(1)"></svg>',
    "prefixed": '<x:script xmlns:x="http://www.w3.org/2000/svg">alert(1)</x:script>',
    "clip path": '<g clip-path="url(http://example.org/x)"/>',
    "breaking out": "<text>&lt;/svg&gt;&lt;script&gt;alert(1)&lt;/script&gt;</text>",
    "quotes": "<g id='a\"&gt;&lt;script&gt;alert(1)'/>",
    "covering the page": '<g style="position: fixed; top: 0; left: 0"/>',
}


def write_figure(root, content):
    (folder_of(root) / "figure.svg").write_bytes(content)
    rewrite(root, lambda manifest: manifest.update(version="other"))
    return write_report(root)


def test_a_figure_is_only_ever_the_content_of_an_image(root):
    for content in (b"", b"no drawing", b'"><script>alert(1)</script>', b"\xff" * 9):
        page = write_figure(root, content).read_text()
        assert "<script" not in page
        assert (
            f'<img src="data:image/svg+xml;base64,{b64encode(content).decode()}"'
            in page
        )


@pytest.mark.browser
def test_nothing_in_a_figure_runs_or_loads(root, browser):
    """Every trick at once, as an image, in a page without its policy."""
    tricks = "".join(HOSTILE_FIGURES.values())
    tricks = tricks.replace("alert(1)", "fetch('http://example.org')")
    path = write_figure(root, SVG % (tricks + DRAWING).encode())
    page = path.read_text()
    policy = re.search(r"<meta http-equiv=[^>]+>", page)[0]
    path.write_text(page.replace(policy, ""))
    browser.open(path.as_uri())
    assert browser.run("[...document.images].every((image) => image.complete)")
    outside = [
        url for url in browser.requests if not url.startswith(("file:", "data:"))
    ]
    assert outside == []
    assert browser.complaints == []


@pytest.mark.parametrize("name", ["report", "probe", "bags"])
def test_pages_allow_nothing_from_outside(root, name):
    pages = {
        path.name.partition(".")[0]: path
        for package in (eigenheads.report, eigenheads_papers.report)
        for path in (Path(package.__file__).parent / "templates").glob("*.html.*")
    }
    assert set(pages) == {"report", "probe", "bags"}
    page = pages[name].read_text()
    if name == "report":
        page = write_report(root).read_text()
    policy = page.index("Content-Security-Policy")
    assert policy < page.index("<style>")
    assert "default-src 'none'" in page[policy : policy + 100]


def set_claim(field, value):
    def change(manifest):
        manifest["claims"][0][field] = value

    return change


HOSTILE_MANIFESTS = {
    "escape sequence": set_claim("statement", "\x1b]0;owned\x07\x1b[2J"),
    "lone surrogate": set_claim("statement", "\ud800"),
    "markup in the relation": set_claim("relation", "[/]"),
    "other relation": set_claim("relation", "~"),
    "other record": set_claim("on_record", "[/]"),
    "escape in versions": lambda m: m["versions"].update({"\x1b[2J": "1"}),
    "escape in parameters": lambda m: m["params"].update({"x": ["\x9b2J"]}),
    "text as seed": lambda m: m.update(seed="\x1b"),
    "infinite seed": lambda m: m.update(seed=float("inf")),
    "huge seconds": lambda m: m.update(seconds=10**400),
    "list of versions": lambda m: m.update(versions=[]),
    "claims of numbers": lambda m: m.update(claims=[1]),
    "no claim fields": lambda m: m.update(claims=[{}]),
}


@pytest.mark.parametrize(
    "change", HOSTILE_MANIFESTS.values(), ids=list(HOSTILE_MANIFESTS)
)
def test_a_hostile_manifest_is_refused_in_a_plain_sentence(root, change, capsys):
    rewrite(root, change)
    assert main(["report", "--out", str(root)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("eigenheads: store: `")
    assert said.count("\n") == 1
    assert said[:-1].isprintable()


def test_a_manifest_of_many_levels_is_refused(root):
    (folder_of(root) / "manifest.json").write_text("[" * 200_000 + "]" * 200_000)
    with pytest.raises(StoreError, match="not JSON text"):
        list(stored_results(root))


@pytest.mark.parametrize("name", ["manifest.json", "table.safetensors", "figure.svg"])
@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_pipes_and_devices_are_not_read(root, name, kind):
    path = folder_of(root) / name
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    started = time.perf_counter()
    if name == "manifest.json":  # a folder without one is not a result
        assert list(stored_results(root)) == []
    else:
        with pytest.raises(StoreError, match="not a regular file"):
            list(stored_results(root))
    assert time.perf_counter() - started < 5


def test_a_large_sparse_file_is_not_read(root):
    for name in ("manifest.json", "figure.svg"):
        with (folder_of(root) / name).open("r+b") as file:
            file.truncate(2**40)
        with pytest.raises(StoreError):
            list(stored_results(root))


def test_a_folder_with_an_escape_sequence_in_its_name_is_printed_in_plain(root, capsys):
    folder = folder_of(root)
    folder = folder.rename(folder.with_name("smoke-\x1b[2J"))
    (folder / "table.safetensors").write_bytes(b"")
    assert main(["report", "--out", str(root)]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_a_hostile_result_that_is_handed_over_is_escaped(root):
    import dataclasses

    (result,) = stored_results(root)
    claim = dataclasses.replace(result.claims[0], statement="<script>alert(1)</script>")
    page = render_report([dataclasses.replace(result, claims=(claim,))])
    assert "<script" not in page


def stored_arrays(header, body=b""):
    """Return a file in the format safetensors with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def of_one_array(dtype="F64", shape=(3,), ends=(0, 24), **metadata):
    tensor = {"dtype": dtype, "shape": shape, "data_offsets": ends}
    return {"a": tensor, "__metadata__": metadata}


NO_TEXTS = json.dumps({"sha256": "", "texts": {}})
HOSTILE_ARRAYS = {
    "larger than its body": stored_arrays(of_one_array(shape=(10**6,))),
    "terabytes": stored_arrays(of_one_array(shape=(10**12,), ends=(0, 8 * 10**12))),
    "overflow": stored_arrays(of_one_array(shape=(2**62, 4)), bytes(24)),
    "negative": stored_arrays(of_one_array(shape=(-3,)), bytes(24)),
    "too much body": stored_arrays(of_one_array(), bytes(32)),
    "unknown type": stored_arrays(of_one_array(dtype="object"), bytes(24)),
    "no header": bytes(4),
    "header past the end": (10**9).to_bytes(8, "little"),
    "not JSON": stored_arrays(b"hello"),
    "deep": stored_arrays(b"[" * 10**5),
    "without our entry": stored_arrays(of_one_array(), bytes(24)),
    "other digest": stored_arrays(of_one_array(eigenheads=NO_TEXTS), bytes(24)),
    "shared bytes": stored_arrays(
        {**of_one_array(), "b": of_one_array()["a"]}, bytes(24)
    ),
    "our entry is no mapping": stored_arrays(of_one_array(eigenheads="[]"), bytes(24)),
}


@pytest.mark.parametrize("content", HOSTILE_ARRAYS.values(), ids=list(HOSTILE_ARRAYS))
def test_arrays_that_are_not_what_they_say_are_refused(tmp_path, content):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"is not a whole file of arrays"):
        read_arrays(path)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(3.0),
        np.empty((0, 4)),
        np.array(["a", "ä"]),
        np.array([b"x"], dtype="S4"),
        np.array([True, False]),
        np.arange(3, dtype=">i4"),
    ],
    ids=str,
)
def test_what_is_written_is_read(tmp_path, array):
    write_arrays(tmp_path / "x.safetensors", {"a": array})
    (again,) = read_arrays(tmp_path / "x.safetensors").values()
    assert again.dtype.kind == array.dtype.kind
    assert again.flags.writeable
    np.testing.assert_array_equal(again, array)
