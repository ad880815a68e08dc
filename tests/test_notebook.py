"""Views in notebooks: results as tables, text escaped, and a bar without widgets."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from eigenheads._notebook import NotebookBar, html_table, is_notebook
from eigenheads._trajectories import Trajectories
from eigenheads.probes import ModelProbe, Statistic
from eigenheads_papers import reproduce, sweep

EVIL = "<script>alert(1)</script>"


def test_every_text_of_a_table_is_escaped():
    page = html_table(EVIL, [EVIL, EVIL], [[EVIL, 1]], notes=[EVIL])
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 5


def test_long_tables_say_how_much_is_left_out():
    page = html_table("many", ["n"], [[n] for n in range(1000, 1050)])
    assert "30 more rows" in page
    assert ">1019<" in page
    assert ">1020<" not in page


def test_trajectories_show_start_and_end_of_each_curve():
    curve = np.array([[0.0, 0.25], [0.0, 0.75]])
    page = Trajectories([0, 10], {"kappa": curve, EVIL: curve})._repr_html_()
    assert "<script" not in page
    assert "2 runs" in page
    for number in ("0.5", "0.25", "0.75"):
        assert f">{number}</td>" in page


def test_a_probe_shows_heads_found_per_null():
    observed = np.array([[0.9, 0.2]])
    draws = np.random.default_rng(0).uniform(0.1, 0.3, (1, 2, 99))
    cka = Statistic(EVIL, observed, {"permuted": draws}, "greater", "Alignment.")
    page = ModelProbe([0], ["attention"], {EVIL: cka}, notes=[EVIL])._repr_html_()
    assert "<script" not in page
    assert "1 of 2" in page


def test_results_and_sweeps_are_tables_and_sweeps_draw_themselves(tmp_path):
    (result,) = reproduce("marion2025/fig5", preset="smoke", out=tmp_path)
    page = result._repr_html_()
    assert page.count("<tr>") == 1 + len(result.claims)
    assert "held" in page
    swept = sweep(
        "marion2025/fig4",
        preset="smoke",
        seeds=2,
        jobs=1,
        grid={"d": "80,1e9", "n_steps": [500, 1000]},
        out=tmp_path,
    )
    assert swept._repr_html_().count("<tr>") == 1 + 4
    figure = swept.plot()
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert any("mean of 2 seeds" in label for label in labels)


def test_a_sweep_without_an_axis_has_no_map_and_says_so(tmp_path):
    swept = sweep(
        "marion2025/fig4",
        preset="smoke",
        seeds=1,
        jobs=1,
        grid={"n_steps": [500]},
        out=tmp_path,
    )
    with pytest.raises(ValueError, match="axis of two values"):
        swept.plot()


@pytest.fixture
def shown(monkeypatch):
    """A notebook's IPython, and all views that it was given."""
    views = []
    handle = SimpleNamespace(update=views.append)

    def display(view, display_id):
        assert display_id
        views.append(view)
        return handle

    module = SimpleNamespace(display=display, HTML=str)
    shell = SimpleNamespace(kernel=object())
    ipython = SimpleNamespace(get_ipython=lambda: shell, display=module)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return views


def test_a_bar_in_a_notebook_moves_to_its_end(shown):
    assert is_notebook()
    bar = NotebookBar(200.0, EVIL)
    for _ in range(200):
        bar.advance(1.0)
    assert "<script" not in "".join(shown)
    assert 'value="1.0000"' in shown[-1]
    assert len(shown) <= 102  # at most one view per hundredth


def test_progress_of_reproductions_is_drawn_in_a_notebook(shown, tmp_path):
    from eigenheads_papers.report import ProgressDisplay

    with ProgressDisplay() as listener:
        reproduce("marion2025/fig5", preset="smoke", out=tmp_path, listener=listener)
    assert "marion2025/fig5" in shown[-1]


def test_a_plain_process_is_no_notebook():
    assert not is_notebook()
