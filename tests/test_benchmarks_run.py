"""Each benchmark runs once at its smallest size, so that none can rot."""

import importlib

import pytest
from benchmarks.__main__ import NAMES

NEED_TORCH = {"layers"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.torch if name in NEED_TORCH else [])
        for name in NAMES
    ],
)
def test_runs(name, capsys):
    importlib.import_module(f"benchmarks.bench_{name}").main(quick=True)
    assert capsys.readouterr().out
