"""The modules of the page, as they are and as one script."""

import functools
import http.server
import re
import threading
from pathlib import Path

import pytest

import eigenheads.live as live
from eigenheads.live import _build

FOLDER = Path(live.__file__).parent
MODULES = sorted(path.name for path in FOLDER.glob("*.js"))


def test_every_module_is_in_the_script_after_what_it_imports():
    script = _build.one_script()
    assert "import " not in re.sub("//.*", "", script)
    assert not re.search("^export ", script, re.MULTILINE)
    assert "</script" not in script
    # The first lines of the modules, which are comments, in the order of the script.
    place = {
        name: script.index((FOLDER / name).read_text("utf-8").split("\n")[0])
        for name in MODULES
    }
    for name in MODULES:
        needed = _build._IMPORT.findall((FOLDER / name).read_text("utf-8"))
        assert len(needed) == (FOLDER / name).read_text("utf-8").count('from "./')
        assert all(place[one] < place[name] for one in needed)


def test_the_page_has_one_script_and_no_other_file_but_style_and_theory():
    files = _build.page_files()
    assert set(files) == {"index.html", "theory.html", "style.css"}
    assert files["index.html"].count("<script") == 1
    assert 'type="module"' not in files["index.html"]
    assert "Browsers load" not in files["index.html"]
    assert 'src="' not in files["index.html"]
    rest = {path.name for path in FOLDER.iterdir() if path.is_file()}
    assert rest == {*files, *MODULES, "__init__.py", "_build.py"}


def test_the_page_is_written_once(tmp_path, monkeypatch):
    monkeypatch.setenv("EIGENHEADS_CACHE_DIR", str(tmp_path))
    page = live.live_page()
    assert page.is_relative_to(tmp_path.resolve())
    written = page.stat().st_mtime_ns
    assert live.live_page() == page
    assert page.stat().st_mtime_ns == written
    page.write_text("damaged", encoding="utf-8")
    assert "Watch attention learn" in live.live_page().read_text("utf-8")


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EIGENHEADS_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(_build.tempfile, "tempdir", str(tmp_path))
    page = live.live_page()
    assert page.is_file()
    assert page.parent.name.startswith("eigenheads-live-")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def served():
    handler = functools.partial(Quiet, directory=str(FOLDER))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/index.html"
        server.shutdown()


@pytest.mark.browser
def test_the_modules_run_as_they_are(served, browser):
    """An import that is missing in a module is an error in the console."""
    browser.look(width=1400, height=900)
    for system in ("location", "location&head=softmax", "heads", "pca", "signal"):
        browser.open(f"{served}#system={system}&tokens=20&updates=100")
        browser.wait("document.getElementById('announce').textContent")
        said = browser.run("document.getElementById('summary').textContent")
        assert said.startswith("Update 100 of 100")
        assert browser.run("typeof Session") == "undefined"  # no global names
        assert "Browsers load" not in browser.run("document.body.innerText")
        assert browser.complaints == []
