import pytest

from eigenheads.live import live_page


@pytest.fixture
def page(browser):
    """Open the live page, paused: what a test runs is all that runs."""
    browser.look(width=1400, height=900)
    browser.open(f"{live_page().as_uri()}#paused=1")
    return browser
