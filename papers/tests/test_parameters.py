"""Changed settings, and what is behind ``describe`` and ``list``."""

import dataclasses

import pytest

from eigenheads_papers import experiment_keys, get_experiment, reproduce
from eigenheads_papers._parameters import change_params, parameter_rows
from eigenheads_papers._records import estimated_seconds, read_records, table_columns


def test_every_parameter_has_a_meaning():
    for key in experiment_keys():
        for field in dataclasses.fields(get_experiment(key).presets["demo"]):
            assert field.metadata.get("meaning"), f"{key}: {field.name}"


def test_changed_settings_are_measured_and_not_judged(tmp_path):
    (usual,) = reproduce("marion2025/large_lambda", preset="smoke", out=tmp_path)
    (other,) = reproduce("marion2025/large_lambda", preset="smoke", out=tmp_path, d=300)
    assert other.params["d"] == 300
    assert len(other.claims) == len(usual.claims)
    assert {claim.verdict for claim in other.claims} == {"not judged"}
    assert not other.changed
    # The preset itself, spelled out, is the same request.
    (same,) = reproduce(
        "marion2025/large_lambda", preset="smoke", out=tmp_path, d=usual.params["d"]
    )
    assert same.reused
    assert same.claims == usual.claims


def test_table_has_the_columns_on_record(tmp_path):
    (result,) = reproduce("marion2025/large_lambda", preset="smoke", out=tmp_path)
    assert sorted(result.table) == table_columns("marion2025/large_lambda")


def test_every_experiment_on_record_has_an_estimate():
    for record in read_records():
        experiment = get_experiment(record.key)
        for params in experiment.presets.values():
            assert estimated_seconds(experiment, params) is not None, experiment.key


def test_longer_runs_have_longer_estimates():
    experiment = get_experiment("marion2025/fig4")
    smoke, paper = (
        estimated_seconds(experiment, experiment.presets[name])
        for name in ("smoke", "paper")
    )
    assert 0 < smoke < paper


def test_rows_show_every_preset():
    experiment = get_experiment("marion2025/fig4")
    rows = {row[0]: row[1:] for row in parameter_rows(experiment)}
    assert rows["d"] == ("dimension of the tokens", "80", "80", "80")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lambda": 1}, "Did you mean 'inverse_temperature'?"),
        ({"d": "many"}, "`d` must be finite numbers"),
        ({"d": 2.5}, "`d` must be integers"),
        ({"on_manifold": 1}, "`on_manifold` must be true or false"),
    ],
)
def test_wrong_settings_are_refused_in_a_sentence(settings, message):
    params = get_experiment("marion2025/fig4").presets["smoke"]
    with pytest.raises(ValueError, match="change_params: ") as caught:
        change_params(params, settings)
    assert message in str(caught.value)
