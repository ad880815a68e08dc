"""The report in headless Chromium: phone and desktop, light and dark."""

import re

import pytest

from eigenheads_papers import reproduce
from eigenheads_papers.report import write_report

pytestmark = pytest.mark.browser

# What the page is, as the browser lays it out.
SEEN = """({
  overflow: document.documentElement.scrollWidth - innerWidth,
  cut: ((box) => box.scrollWidth - box.clientWidth)(document.querySelector(".scroll")),
  ground: getComputedStyle(document.body).backgroundColor,
  ink: getComputedStyle(document.body).color,
  figures: [...document.querySelectorAll("figure img")]
    .map((image) => image.naturalWidth && image.getBoundingClientRect().width),
  thumbnails: [...document.querySelectorAll(".thumbnail img")]
    .map((image) => image.getBoundingClientRect().height),
  unnamed: [...document.images].filter((image) => !/held/.test(image.alt)).length })"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    root = tmp_path_factory.mktemp("browser")
    reproduce(["marion2025/fig5", "marion2025/bayes"], preset="smoke", out=root)
    return write_report(root)


def brightness(color):
    red, green, blue = (int(part) for part in re.findall(r"\d+", color)[:3])
    return (red + green + blue) / 3


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_reads_well_at_any_width_and_scheme(browser, report, width, dark):
    browser.look(width=width, height=844, dark=dark)
    browser.open(report.as_uri())
    seen = browser.run(SEEN)
    assert seen["overflow"] <= 0
    assert seen["cut"] <= 0
    # On a phone a figure keeps a readable width and scrolls inside its frame.
    assert len(seen["figures"]) == 2
    assert min(seen["figures"]) >= max(600, 0.7 * min(width, 992))
    # The drawing is shown a second time, small, and not empty.
    assert len(seen["thumbnails"]) == 1
    assert 40 < min(seen["thumbnails"]) < 200
    assert seen["unnamed"] == 0
    contrast = brightness(seen["ground"]) - brightness(seen["ink"])
    assert contrast < -150 if dark else contrast > 150
    assert browser.axe() == []
    assert browser.complaints == []
    inside = (report.as_uri(), "data:")
    assert [url for url in browser.requests if not url.startswith(inside)] == []
