"""Folders of results from a stranger: refused in one sentence, or harmless."""

import hashlib
import json
import os
import shutil
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

import eigenheads.report
from eigenheads._files import read_arrays, write_arrays
from eigenheads._plotting.svg import embedded_svg
from eigenheads.cli import main
from eigenheads.experiments import StoreError, reproduce, stored_results
from eigenheads.report import render_report, write_report

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
    for name in ("table.npz", "figure.svg"):
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


@pytest.mark.parametrize("inside", HOSTILE_FIGURES.values(), ids=HOSTILE_FIGURES)
def test_nothing_in_a_figure_runs_or_loads(root, inside):
    (folder_of(root) / "figure.svg").write_bytes(SVG % (inside + DRAWING).encode())
    rewrite(root, lambda manifest: manifest.update(drawing="other", code="other"))
    page = write_report(root).read_text()
    for word in ("<script", "alert(1)<", "example.org", "javascript:", "foreignObject"):
        assert word not in page
    for word in (
        "onload",
        "onclick",
        "<style>@import",
        "position:",
        "<animate",
        "<set",
    ):
        assert word not in page[page.index("<main>") :]
    assert 'd="M 0 0 L 1 1"' in page


@pytest.mark.parametrize("name", ["report", "probe", "bags"])
def test_pages_allow_nothing_from_outside(root, name):
    templates = Path(eigenheads.report.__file__).parent / "templates"
    pages = {path.name.partition(".")[0]: path for path in templates.glob("*.html.*")}
    assert set(pages) == {"report", "probe", "bags"}
    page = pages[name].read_text()
    if name == "report":
        page = write_report(root).read_text()
    policy = page.index("Content-Security-Policy")
    assert policy < page.index("<style>")
    assert "default-src 'none'" in page[policy : policy + 100]


@pytest.mark.parametrize(
    "figure",
    [
        b"",
        b"no drawing",
        b"<svg",
        SVG % b"<g>",
        b"<svg>\xff</svg>",
        b"<svg>&lol;</svg>",
    ],
)
def test_a_figure_that_is_none_is_refused(root, figure, capsys):
    (folder_of(root) / "figure.svg").write_bytes(figure)
    rewrite(root, lambda manifest: manifest.update(drawing="other", code="other"))
    assert main(["report", "--out", str(root)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "`figure` must be an SVG drawing" in said


def test_a_figure_that_uses_itself_again_and_again_is_not_unfolded():
    uses = "".join(
        f'<g id="g{i}">' + f'<use xlink:href="#g{i - 1}"/>' * 10 + "</g>"
        for i in range(1, 10)
    )
    text = embedded_svg(SVG % f'<g id="g0">{DRAWING}</g>{uses}'.encode(), "x")
    assert "<use" not in text


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


@pytest.mark.parametrize("name", ["manifest.json", "table.npz", "figure.svg"])
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
    (folder / "table.npz").write_bytes(b"")
    assert main(["report", "--out", str(root)]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_a_hostile_result_that_is_handed_over_is_escaped(root):
    import dataclasses

    (result,) = stored_results(root)
    claim = dataclasses.replace(result.claims[0], statement="<script>alert(1)</script>")
    page = render_report([dataclasses.replace(result, claims=(claim,))])
    assert "<script" not in page


def write_members(path, members, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)


def npy(header, body=b""):
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + body


def header(descr="'<f8'", shape="(3,)", order="False"):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


HOSTILE_ARRAYS = {
    "larger than its body": npy(header(shape="(1000000,)")),
    "terabytes": npy(header(shape="(1000000000000,)")),
    "negative": npy(header(shape="(-3,)"), bytes(24)),
    "too much body": npy(header(), bytes(32)),
    "objects": npy(header(descr="'|O'"), bytes(24)),
    "record": npy(header(descr="[('a', '<f8')]"), bytes(24)),
    "empty texts": npy(header(descr="'<U0'", shape="(1000000000000,)")),
    "dates": npy(header(descr="'<M8[s]'"), bytes(24)),
    "complex": npy(header(descr="'<c16'"), bytes(48)),
    "no header": b"\x93NUMPY\x01\x00",
    "other version": b"\x93NUMPY\x02\x00" + bytes(100),
    "not an array": b"hello",
    "long header": b"\x93NUMPY\x01\x00\xff\xff" + b" " * 65535,
}


@pytest.mark.parametrize("content", HOSTILE_ARRAYS.values(), ids=list(HOSTILE_ARRAYS))
def test_arrays_that_are_not_what_they_say_are_refused(tmp_path, content):
    write_members(tmp_path / "x.npz", [("a.npy", content)])
    with pytest.raises(ValueError, match=r"is not a whole .npz file"):
        read_arrays(tmp_path / "x.npz")


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path):
    tracemalloc = pytest.importorskip("tracemalloc")
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, a=np.zeros(2**24))
    assert path.stat().st_size < 2**20
    tracemalloc.start()
    with pytest.raises(ValueError, match="is compressed"):
        read_arrays(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22


def test_members_that_share_their_bytes_are_refused(tmp_path):
    path = tmp_path / "x.npz"
    write_arrays(path, {"a": np.zeros(1000), "b": np.zeros(1000)})
    content = path.read_bytes()
    # The directory's second entry points at the first member.
    start = content.rindex(b"PK\x01\x02")
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    assert names == ["a.npy", "b.npy"]
    offset = start + 42
    path.write_bytes(content[:offset] + bytes(4) + content[offset + 4 :])
    with pytest.raises(ValueError, match=r"is not a whole .npz file"):
        read_arrays(path)


def test_a_name_that_occurs_twice_is_refused(tmp_path):
    path = tmp_path / "x.npz"
    one = npy(header(), bytes(24))
    with pytest.warns(UserWarning, match="Duplicate name"):
        write_members(path, [("a.npy", one), ("a.npy", one)])
    with pytest.raises(ValueError, match="occurs twice"):
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
    write_arrays(tmp_path / "x.npz", {"a": array})
    (again,) = read_arrays(tmp_path / "x.npz").values()
    assert again.dtype == array.dtype
    assert again.flags.writeable
    np.testing.assert_array_equal(again, array)
