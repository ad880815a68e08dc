"""The page of `eigenheads probe` as a reader meets it: any width and scheme."""

import numpy as np
import pytest

from eigenheads.probes import ModelProbe, Statistic
from eigenheads.report import write_probe

pytestmark = pytest.mark.browser
OPEN = "document.querySelectorAll('details').forEach((d) => { d.open = true; })"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Write the page of two layers of twelve heads, all kinds of numbers in it."""
    rng = np.random.default_rng(0)
    tested = {
        "norm_ratio": ("greater", ["permuted_tokens", "random_values", "untrained"]),
        "qk_covariance_cosine": ("two-sided", ["permuted_coordinates"]),
        "kernel_trace": ("less", ["random_keys"]),  # without a number
    }
    statistics = {}
    for name, (alternative, nulls) in tested.items():
        observed = 4 * rng.standard_normal((2, 12))
        if name == "kernel_trace":
            observed[:] = np.nan
        counts = {null: 3 if null == "untrained" else 200 for null in nulls}
        draws = {n: rng.standard_normal((2, 12, count)) for n, count in counts.items()}
        statistics[name] = Statistic(name, observed, draws, alternative, "Definition.")
    settings = {"model": "BertModel", "n_sequences": 24, "seed": 0}
    names = ["encoder.layer.0", "encoder.layer.5"]
    probe = ModelProbe([0, 5], names, statistics, settings, ["<b>A note.</b>"])
    out = tmp_path_factory.mktemp("probe")
    title = "some_long_name_of_a_model_on_disk/all-MiniLM-L6-v2: BertModel on 24 texts"
    return write_probe(probe, out, title=title).as_uri()


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1400, False)])
def test_reads_well_at_any_width_and_scheme(browser, page, width, dark):
    browser.look(width=width, height=844, dark=dark)
    browser.open(page)
    browser.run(OPEN)
    assert browser.axe() == []
    assert browser.complaints == []
    assert browser.run("document.documentElement.scrollWidth") <= width
    outside = [
        url for url in browser.requests if not url.startswith(("file:", "data:"))
    ]
    assert outside == []
    assert browser.run("document.querySelectorAll('figure img').length") == 5
    assert browser.run("document.querySelectorAll('.numbers [scope=row]').length") == 24
    assert "<b>A note.</b>" in browser.run("document.body.innerText")


def test_rows_stay_on_one_line_and_keep_their_head_in_sight(browser, page):
    browser.look(width=390, height=844)
    browser.open(page)
    browser.run(OPEN)
    heights = browser.run(
        "[...document.querySelectorAll('.numbers tr')].map((r) => r.offsetHeight)"
    )
    assert max(heights) < 50  # two lines would be 60 and more
    wide, seen = browser.run(
        "(({scrollWidth, clientWidth}) => [scrollWidth, clientWidth])"
        "(document.querySelector('.scroll'))"
    )
    assert wide <= seen  # the summary needs no scrolling
    lefts = browser.run(
        "(() => { const box = document.querySelector('#rows .scroll');"
        " box.scrollLeft = 200; const cell = box.querySelector('tbody th');"
        " return [box, cell].map((e) => e.getBoundingClientRect().left); })()"
    )
    assert lefts[0] == lefts[1]
