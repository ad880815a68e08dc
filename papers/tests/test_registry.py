import pytest

from eigenheads_papers import Experiment, experiment_keys, get_experiment
from eigenheads_papers._registry import (
    PRESETS,
    get_paper,
    preset_params,
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
        select_keys([])


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(ValueError, match=r"got 'smok'\. Did you mean 'smoke'"):
        preset_params(get_experiment("marion2025/fig4"), "smok")


def test_an_unknown_paper_is_named():
    with pytest.raises(ValueError, match="`paper` must be one of"):
        get_paper("nobody1900")
