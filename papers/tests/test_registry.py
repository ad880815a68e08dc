"""Experiments are found by key, pattern, module, object and entry point."""

import dataclasses
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from eigenheads_papers import (
    Experiment,
    Paper,
    _registry,
    experiment_keys,
    get_experiment,
)
from eigenheads_papers._registry import (
    PRESETS,
    command_name,
    get_paper,
    load_experiments,
    paper_of,
    preset_params,
    select_experiments,
    select_keys,
)


@pytest.mark.parametrize("key", experiment_keys())
def test_every_experiment_is_complete(key):
    experiment = get_experiment(key)
    assert isinstance(experiment, Experiment)
    assert experiment.key == key
    assert tuple(experiment.presets) == PRESETS
    assert not experiment.title.endswith(".")
    assert experiment.about.endswith(".")
    assert get_paper(experiment.paper).key == experiment.paper
    for params in experiment.presets.values():
        assert experiment.work(params) > 0


def test_globs_and_papers_and_all_select_keys_in_order():
    everything = experiment_keys()
    assert select_keys(["all"]) == everything
    assert select_keys(["*"]) == everything
    assert select_keys(["marion2025"]) == [
        key for key in everything if key.startswith("marion2025/")
    ]
    assert select_keys(["marion2025/fig4", "marion2025/fig3a"]) == [
        "marion2025/fig3a",
        "marion2025/fig4",
    ]


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(ValueError, match=r"got 'marion2025/fig44'.*'marion2025/fig4'"):
        select_keys(["marion2025/fig44"])
    with pytest.raises(ValueError, match="eigenheads list"):
        get_experiment("zzz")
    with pytest.raises(ValueError, match="at least one key"):
        select_experiments([])


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(ValueError, match=r"got 'smok'\. Did you mean 'smoke'"):
        preset_params(get_experiment("marion2025/fig4"), "smok")


def test_an_unknown_paper_is_named():
    with pytest.raises(ValueError, match="`paper` must be one of"):
        get_paper("nobody1900")


SKELETON = Path(__file__).parents[2] / "docs" / "developer" / "experiment.py"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder with the skeleton as my_module.py; leaves no module behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_module.py").write_text(SKELETON.read_text())
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "importing.py").write_text("import no_such_library\n")
    (tmp_path / "twice.py").write_text(
        "from dataclasses import replace\nfrom my_module import experiment\n"
        "experiments = [experiment, replace(experiment, title='other')]\n"
        "several = [experiment, replace(experiment, key='author2026/fig2')]\n"
        "taken = replace(experiment, key='marion2025/fig4')\n"
        "outside = replace(experiment, key='../elsewhere')\n"
        "nothing = ()\n"
    )
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name in ("my_module", "broken", "importing", "twice"):
            del sys.modules[name]


def test_a_module_of_the_current_folder_names_experiments(folder):
    (experiment,) = load_experiments("my_module:experiments")
    assert experiment.key == "author2026/fig1"
    assert get_experiment("my_module:experiment") is experiment
    assert get_experiment(experiment) is experiment
    assert command_name(experiment) == "my_module:experiment"
    chosen, named = select_experiments(["marion2025/fig3*", "my_module:experiments"])
    assert [each.key for each in chosen[-2:]] == ["marion2025/fig3b", "author2026/fig1"]
    assert "author2026/fig1" in named
    assert "marion2025/fig3a" not in named
    # Nothing is registered by this: the next call knows only what it names.
    assert "author2026/fig1" not in experiment_keys()


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("nowhere:experiments", "and there is no module 'nowhere' here"),
        ("my_module.sub:experiments", "and there is no module 'my_module.sub' here"),
        ("my_module:experimens", "my_module has no 'experimens'"),
        ("my_module:Params", "whose type is type"),
        ("twice:nothing", "whose type is tuple"),
        (
            "broken:experiments",
            r"ZeroDivisionError: division by zero \(broken.py, line 1",
        ),
        ("importing:experiments", "ModuleNotFoundError: No module named 'no_such_lib"),
        (":experiments", "means `experiments` of my_module.py"),
        ("my_module:", "means `experiments` of my_module.py"),
        ("twice:experiments", "'author2026/fig1' of two experiments"),
        ("twice:taken", "'marion2025/fig4', which Eigenheads has. Give it another"),
        ("twice:outside", "paper/figure, of letters"),
    ],
)
def test_a_source_that_is_none_gets_a_sentence(folder, source, sentence):
    with pytest.raises(
        ValueError, match=rf"^load_experiments: `key` must be .*{sentence}"
    ):
        load_experiments(source)


def test_several_experiments_are_not_one(folder):
    with pytest.raises(ValueError, match=r"one experiment; got .*author2026/fig2\)"):
        get_experiment("twice:several")


def test_a_paper_of_a_user_may_be_described_by_its_module(folder, monkeypatch):
    experiment = get_experiment("my_module:experiment")
    assert paper_of(experiment) == Paper(key="author2026", title="author2026")
    described = Paper(key="author2026", title="On means", authors="A. Author")
    monkeypatch.setattr(sys.modules["my_module"], "paper", described, raising=False)
    assert paper_of(experiment) is described


def test_an_entry_point_registers_experiments(folder, monkeypatch):
    points = [
        EntryPoint("mine", "my_module:experiments", _registry.GROUP),
        EntryPoint("again", "my_module:experiments", _registry.GROUP),
        EntryPoint("broken", "broken:experiments", _registry.GROUP),
    ]
    monkeypatch.setattr(_registry, "entry_points", lambda group: points)
    _registry._installed_experiments.cache_clear()
    try:
        with pytest.warns(UserWarning) as caught:
            keys = experiment_keys()
        assert keys[-1] == "author2026/fig1"
        assert select_keys(["author*"]) == ["author2026/fig1"]
        experiment = get_experiment("author2026/fig1")
        assert command_name(experiment) == "author2026/fig1"
        # One package must not disable the others.
        again, broken = (str(warning.message) for warning in caught)
        assert again.startswith("Entry point 'again' is left out.")
        assert "`key` must be a key of its own" in again
        assert broken.startswith("Entry point 'broken' is left out.")
        assert "`key` must be module:object" in broken
    finally:
        _registry._installed_experiments.cache_clear()


def test_a_changed_copy_of_ours_needs_a_key_of_its_own():
    ours = get_experiment("marion2025/fig4")
    with pytest.raises(ValueError, match="'marion2025/fig4', which Eigenheads has"):
        get_experiment(dataclasses.replace(ours, title="changed"))
    renamed = dataclasses.replace(ours, key="mine2026/fig4")
    assert get_experiment(renamed) is renamed
