"""The live page in the built documentation, and the theory page of the package."""

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from eigenheads.live import live_page

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def built(tmp_path):
    """Return the page as `make docs` puts it beside the documents."""
    configuration = runpy.run_path(str(DOCS / "conf.py"))
    app = SimpleNamespace(outdir=tmp_path, builder=SimpleNamespace(format="html"))
    configuration["copy_live_page"](app, None)
    return tmp_path / "live" / "index.html"


def test_documents_link_to_the_page_and_the_page_to_theory(built):
    assert 'href="live/index.html"' in (DOCS / "live.md").read_text("utf-8")
    linked = re.findall(r'href="\.\./(theory/\w+)\.html"', built.read_text("utf-8"))
    assert linked == ["theory/location", "theory/pca", "theory/signal"]
    for name in linked:
        assert (DOCS / f"{name}.md").is_file()
    # Two heads have no page of their own, and keep the short theory of the live page.
    assert 'href="theory.html#heads"' in built.read_text("utf-8")
    assert 'id="heads"' in built.with_name("theory.html").read_text("utf-8")


def test_the_same_in_python_runs():
    (code,) = re.findall(
        r"```python\n(.*?)```", (DOCS / "live.md").read_text("utf-8"), re.DOTALL
    )
    namespace = {}
    exec(code, namespace)
    assert namespace["paths"]["kappa"].shape == (30, 201)


@pytest.mark.browser
def test_the_copy_in_the_documents_runs(built, browser):
    browser.open(f"{built.as_uri()}#updates=100&tokens=5")
    browser.wait("session.done")
    assert browser.complaints == []


@pytest.mark.browser
def test_theory_is_a_link_that_works_offline(page):
    page.follow("[data-of=location] a", "h2#location")
    assert page.run("location.protocol") == "file:"
    assert page.axe() == []
    page.follow("a", "canvas")
    papers = re.findall(r'href="(https:[^"]+)"', live_page().read_text("utf-8"))
    assert papers == [
        "https://arxiv.org/abs/2410.01537",
        "https://arxiv.org/abs/2603.03993",
        "https://arxiv.org/abs/2605.18315",
        "https://arxiv.org/abs/2606.22406",
    ]
