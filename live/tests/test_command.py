"""`eigenheads live`."""

import webbrowser
from pathlib import Path

import pytest

from eigenheads.cli import main
from eigenheads.live import live_page


def test_says_where_the_page_is(capsys, monkeypatch):
    monkeypatch.setattr(webbrowser, "open", lambda url: pytest.fail(url))
    assert main(["live", "--no-browser"]) == 0
    shown = capsys.readouterr().out
    path = Path(shown.removeprefix("Live page: ").strip())
    assert path == live_page()
    assert path.is_file()


@pytest.mark.parametrize("works", [True, False])
def test_opens_it_or_says_that_it_cannot(capsys, monkeypatch, works):
    seen = []
    monkeypatch.setattr(webbrowser, "open", lambda url: seen.append(url) or works)
    assert main(["live"]) == 0
    assert seen == [live_page().as_uri()]
    assert ("No web browser" in capsys.readouterr().out) is not works
