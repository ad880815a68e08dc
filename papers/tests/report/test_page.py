"""The report: whole, self-contained, and from the stored results alone."""

import base64
import dataclasses
import html
import re

import pytest

from eigenheads_papers import experiment_keys, reproduce, stored_results
from eigenheads_papers._claims import format_number
from eigenheads_papers._untested import untested_claims
from eigenheads_papers.report import render_report, write_report
from eigenheads_papers.report._page import newest_results
from eigenheads_papers.report.terminal import print_claims

KEYS = ["marion2025/fig5", "marion2025/bayes"]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    reproduce(KEYS, preset="smoke", out=root)
    return root


@pytest.fixture(scope="module")
def page(store):
    return write_report(store).read_text(encoding="utf-8")


def test_shows_every_claim_with_its_numbers_and_verdict(store, page):
    from markupsafe import escape

    for result in stored_results(store):
        for claim in result.claims:
            assert str(escape(claim.statement)) in page
            assert f">{format_number(claim.measured)}</td>" in page
    assert "≤ 0.002</td>" in page
    assert page.count('class="held"') == sum(
        len(result.claims) for result in stored_results(store)
    )


def test_a_run_that_cannot_tell_says_so_and_counts_as_neither(store, capsys):
    result = next(iter(stored_results(store)))
    first, *rest = result.claims
    unsure = dataclasses.replace(first, undecided="too few seeds to see it, ± 8")
    mixed = dataclasses.replace(result, claims=(unsure, *rest))
    shown = render_report([mixed])
    held = sum(not claim.is_check for claim in rest)
    label = 'data-label="claims: held, contradicted, undecided"'
    assert f"{label}>{held}, 0, 1<" in shown
    assert "on record: held" in shown
    assert "too few seeds to see it, ± 8" in shown
    assert "<strong>(on record" not in shown
    print_claims([mixed])
    printed = " ".join(capsys.readouterr().out.split())
    assert "undecided (on record: held)" in printed
    assert mixed.changed == ()


def test_says_how_each_figure_was_made(store, page):
    for result in stored_results(store):
        assert f"eigenheads reproduce {result.key} --preset smoke --seed 0" in page
        assert result.version in page
        assert f"numpy {result.versions['numpy']}" in page


def test_asks_nothing_of_the_network(page):
    links = re.findall(r'(?:href|src)="([^"]+)"', page) + re.findall(
        r"url\(([^)]+)\)", page
    )
    assert all(link.startswith(("#", "data:")) for link in links)
    assert "<script" not in page
    assert "@import" not in page


def test_ids_are_unique_and_links_have_targets(page):
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    targets = re.findall(r'href="#([^"]+)"', page)
    assert set(targets) <= set(ids)


def test_figures_are_images_that_state_their_finding(store, page):
    image = (
        r'<figure tabindex="0"><img src="data:image/svg.xml;base64,(.+?)" alt="(.+?)"'
    )
    images = re.findall(image, page)
    figures = [base64.b64decode(content) for content, _ in images]
    assert figures == [result.figure for result in stored_results(store)]
    assert all("held" in alt for _, alt in images)


def test_the_front_page_has_a_row_a_paper_with_one_of_its_figures(page):
    front = page[page.index('<table class="claims front">') : page.index("</table>")]
    assert front.count("<tr><td>") == 1
    n_keys = sum(key.startswith("marion2025/") for key in experiment_keys())
    assert f">2 of {n_keys}</td>" in front
    (alt,) = re.findall(r'<img src="data:[^"]+" alt="([^"]+)"', front)
    assert alt.endswith("claims: 2 held; theory against simulation: 2 of 2")


def test_a_claim_without_a_number_is_undecided_and_changed(store):
    (result, *_) = stored_results(store)
    claims = tuple(
        dataclasses.replace(claim, measured=float("nan")) for claim in result.claims
    )
    page = render_report([dataclasses.replace(result, claims=claims)])
    front = page[page.index('<table class="claims front">') : page.index("</table>")]
    own = sum(not claim.is_check for claim in claims)
    assert f'data-label="claims: held, contradicted, undecided">0, 0, {own}<' in front
    assert f'data-label="changed">{len(claims)}<' in front


def test_what_is_untestable_is_listed_with_the_reason(page):
    listed = untested_claims("marion2025")
    assert listed
    assert f"in the paper's setting: {len(listed)} claims, with reasons" in page
    for item in listed:
        assert html.escape(item.why, quote=False).replace("'", "&#39;") in page


def test_the_newest_result_of_a_key_is_shown(store):
    results = list(stored_results(store))
    newer = dataclasses.replace(results[0], created="2999-01-01T00:00:00+00:00", seed=9)
    shown = newest_results([newer, *results])
    assert [result.seed for result in shown if result.key == newer.key] == [9]
    assert [result.seed for result in newest_results([newer, *results], seed=0)] == [
        0,
        0,
    ]
    assert newest_results(results, preset="paper") == []


def test_results_of_another_version_are_marked(store):
    (result, *_) = stored_results(store)
    assert "Computed by version" not in render_report([result])
    old = dataclasses.replace(result, version="0.0.0")
    assert "Computed by version 0.0.0" in render_report([old])


def test_a_changed_verdict_stands_out(store):
    (result, *_) = stored_results(store)
    claim = dataclasses.replace(result.claims[0], on_record="contradicted")
    page = render_report([dataclasses.replace(result, claims=(claim,))])
    assert "on record: contradicted" in page


def test_an_empty_folder_gets_a_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"report: `out` must be a folder with result"):
        write_report(tmp_path)


def test_a_changed_setting_is_shown_and_not_judged(tmp_path):
    (result,) = reproduce(
        "marion2025/large_lambda", preset="smoke", out=tmp_path, d=300
    )
    page = render_report([result])
    assert "preset smoke with d=300, seed 0" in page
    assert "--preset smoke --seed 0 --set d=300" in page
    assert page.count(">not judged:") == len(result.claims)
    assert "on record:" not in page
    assert 'data-label="theory against simulation">0 of 0<' in page
