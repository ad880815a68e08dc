"""The tour: whole, honest about what differs, and without torch."""

import dataclasses
import re

import numpy as np
import pytest

from eigenheads.cli import main
from eigenheads_papers._registry import get_experiment, select_keys
from eigenheads_papers.tour import _chapters, _run

KEYS = ("marion2025/bayes",)


@pytest.fixture
def short(monkeypatch):
    """Make the tour short: one key, and no model."""
    monkeypatch.setitem(_run.run_tour.__kwdefaults__, "keys", KEYS)
    monkeypatch.setattr(_run, "find_spec", lambda name: None)


def test_the_headlines_are_of_every_system_and_need_no_extra():
    """The demo installs the core alone, and has two minutes."""
    papers = {key.partition("/")[0] for key in select_keys(_run.HEADLINES)}
    core = {
        experiment.paper
        for experiment in map(get_experiment, select_keys(["all"]))
        if not experiment.needs
    }
    assert {"marion2025", "truong2026", "maulensoto2026", "teo2024"} <= papers <= core


def test_tells_what_it_measures_and_ends_with_three_steps(short, tmp_path, capsys):
    assert main(["demo", "--preset", "smoke", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for number in "12345":
        assert f"\n{number}. " in shown
    assert "claims: 1 held; theory against simulation: 5 of 5; no verdict" in shown
    accuracy = re.search(r"accuracy (\S+) on 1000 streams", shown)
    assert float(accuracy.group(1)) > 0.9
    assert shown.count("Conclusion: ") == 5
    # A layer that does worse than plain attention is shown with the reason.
    moved = re.search(r"by (\S+) of its norm, that of the layer by (\S+),", shown)
    assert float(moved[2]) < float(moved[1]) or "Why the layer is worse" in shown
    assert "pip install 'eigenheads[torch]'" in shown
    assert f"Report: {tmp_path / 'report.html'}" in shown.replace("\n", "")
    assert (tmp_path / "report.html").is_file()
    ending = shown.strip().splitlines()[-4:]
    assert ending[0].endswith("Next steps:")
    assert all("eigenheads" in line or "docs/" in line for line in ending[1:])


def test_a_verdict_against_the_record_is_shown_and_exit_status_1(
    short, tmp_path, capsys, monkeypatch
):
    from eigenheads_papers.marion2025 import bayes

    broken = dataclasses.replace(
        bayes.experiments[0],
        presets={"smoke": bayes.Params(n_samples=50, sharpness_exponent=-0.1)},
    )
    monkeypatch.setattr(bayes, "experiments", (broken,))
    for name in ("digit_streams", "rare_tokens", "learned_components"):
        monkeypatch.setattr(_run, name, lambda: iter(()))
    for name in ("kernel_facts", "pursuit_facts"):
        monkeypatch.setattr(_run, name, lambda: iter(()))
    assert main(["demo", "--preset", "smoke", "--out", str(tmp_path)]) == 1
    assert "on record: held" in capsys.readouterr().out


def test_every_paper_of_the_headlines_has_a_chapter():
    told = {paper for story in _run.STORIES for paper in story.papers}
    assert {key.partition("/")[0] for key in select_keys(_run.HEADLINES)} <= told


def test_explicit_features_have_the_exponential_kernel(rng):
    x, y = rng.standard_normal((2, 6, 2))
    product = _chapters._features(x) @ _chapters._features(y).T
    np.testing.assert_allclose(product, np.exp(x @ y.T / np.sqrt(2)), rtol=1e-10)


@pytest.mark.torch
def test_a_model_is_swapped_there_and_back_and_probed():
    from eigenheads_papers.tour._torch import swap_and_probe

    learned, swapped, *probed = swap_and_probe(n_steps=2, n_permutations=39, n_images=4)
    assert "2 layers" in learned
    assert "swapped back: bit for bit the same" in swapped
    assert probed
