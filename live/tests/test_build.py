"""The modules of the page, as they are and as one script."""

import functools
import http.server
import re
import threading

import pytest
from live import build

FOLDER = build.SOURCE
MODULES = sorted(path.name for path in FOLDER.glob("*.js"))


def test_every_module_is_in_the_script_after_what_it_imports():
    script = build.one_script()
    assert "import " not in re.sub("//.*", "", script)
    assert not re.search("^export ", script, re.MULTILINE)
    assert "</script" not in script
    # The first lines of the modules, which are comments, in the order of the script.
    place = {
        name: script.index((FOLDER / name).read_text("utf-8").split("\n")[0])
        for name in MODULES
    }
    for name in MODULES:
        needed = build.IMPORT.findall((FOLDER / name).read_text("utf-8"))
        assert len(needed) == (FOLDER / name).read_text("utf-8").count('from "./')
        assert all(place[one] < place[name] for one in needed)


def test_the_page_has_one_script_and_no_other_file():
    files = build.page_files()
    assert set(files) == {"index.html", "theory.html"}
    assert files["index.html"].count("<script") == 1
    assert 'type="module"' not in files["index.html"]
    assert "Browsers load" not in files["index.html"]
    for text in files.values():
        assert 'src="' not in text
        assert "stylesheet" not in text


def test_the_shipped_files_are_those_of_the_sources():
    assert build.outdated() == [], "run `python live/build.py`"
    shipped = {path.name for path in build.SHIPPED.iterdir() if path.is_file()}
    assert shipped == {"index.html", "theory.html", "__init__.py"}


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
