"""Each benchmark runs once at its smallest size, so that none can rot."""

import importlib

import pytest
from benchmarks.__main__ import NAMES

SLOW = pytest.mark.slow
MARKS = {
    "layers": [pytest.mark.torch, SLOW],
    "live": [pytest.mark.browser, SLOW],
    "out_of_core": SLOW,
    "probe_model": [pytest.mark.torch, SLOW],
    "screening": [pytest.mark.torch, SLOW],
    "sweep": SLOW,
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=MARKS.get(name, [])) for name in NAMES],
)
def test_runs(name, capsys):
    importlib.import_module(f"benchmarks.bench_{name}").main(quick=True)
    assert capsys.readouterr().out
