"""Whatever is asked of `reproduce` and the report: a result or one sentence."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eigenheads_papers import experiment_keys, get_experiment, reproduce
from eigenheads_papers.report import write_report

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(max_value=-1),
    st.just(float("nan")),
    st.floats(max_value=-0.5),
    st.text(max_size=8),
    st.lists(st.text(max_size=4), max_size=2),
    st.lists(st.integers(), min_size=1, max_size=2),
)
FEW = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
# Anything but these must be refused before anything is computed or written.
GOOD = {"keys": "marion2025/bayes", "preset": "smoke", "seed": 0, "jobs": 1}


@FEW
@given(name=st.sampled_from(sorted(GOOD)), value=JUNK)
def test_reproduce_refuses_junk_with_a_sentence(tmp_path, name, value):
    if (name, value) in (("jobs", None), ("keys", "*"), ("keys", ["*"])):
        return
    folder = tmp_path / "out"
    with pytest.raises(ValueError, match=r"^reproduce: `\w+` must be ") as refused:
        reproduce(**{**GOOD, name: value}, out=folder)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.rglob("*.safetensors"))


@FEW
@given(value=JUNK)
def test_the_report_refuses_junk_with_a_sentence(tmp_path, value):
    with pytest.raises(ValueError, match=r"^write_report: `\w+` must be "):
        write_report(tmp_path, preset=value)
    with pytest.raises(ValueError, match=r"^write_report: `\w+` must be "):
        write_report(value, preset="smoke")


@FEW
@given(value=JUNK)
def test_an_unknown_key_gets_a_sentence(value):
    # A text with a colon names an object of a module.
    contract = "the key of an experiment|module:object with an Experiment"
    if value not in experiment_keys():
        with pytest.raises(ValueError, match=f"`key` must be ({contract})"):
            get_experiment(value)
