"""The documentation: broken links are found, and every public name has a page."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def check_links(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import check_links

    return check_links


def test_broken_links_and_anchors_are_found(check_links, tmp_path, capsys):
    (tmp_path / "a.html").write_text(
        '<h1 id="top-of-a">A</h1><a href="b.html#there">b</a>'
        '<a href="https://example.org/x">out</a><a href="#top-of-a">up</a>'
    )
    (tmp_path / "b.html").write_text('<p id="there">B</p><img src="no.png">')
    assert check_links.broken_links(tmp_path) == [("b.html", "no.png")]
    (tmp_path / "b.html").write_text('<p id="elsewhere">B</p>')
    assert check_links.broken_links(tmp_path) == [("a.html", "b.html#there")]
    assert check_links.main(tmp_path) == 1
    assert "leads nowhere" in capsys.readouterr().err


def test_an_empty_folder_is_no_documentation(check_links, tmp_path):
    assert check_links.main(tmp_path) == 1


def test_the_api_page_lists_every_package():
    import eigenheads

    page = (ROOT / "docs/api.md").read_text()
    listed = re.findall(r"^api/(eigenheads[\w.]+)$", page, re.M)
    source = (ROOT / "docs/linking.py").read_text()
    names = set(eigenheads.__all__) - {"__version__"}
    assert {f"eigenheads.{name}" for name in names} <= set(listed)
    assert all(f'"{name}"' in source for name in listed)


def test_every_guide_has_its_place_in_the_reading_order():
    folder = ROOT / "docs" / "guides"
    index = (folder / "index.md").read_text()
    for path in folder.glob("*.md"):
        if path.name != "index.md":
            assert re.search(rf"^{path.stem}$", index, re.MULTILINE), path.stem
