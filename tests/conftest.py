"""Fixtures: seeds from EIGENHEADS_TEST_SEEDS, array libraries that are installed."""

import importlib.util
import os

import numpy as np
import pytest

HAS_TORCH = importlib.util.find_spec("torch") is not None
SEEDS = [int(seed) for seed in os.environ.get("EIGENHEADS_TEST_SEEDS", "0").split(",")]


def pytest_generate_tests(metafunc):
    if "rng_seed" in metafunc.fixturenames:
        metafunc.parametrize("rng_seed", SEEDS)


@pytest.fixture
def rng(rng_seed):
    return np.random.default_rng(rng_seed)


def _to_torch(array):
    import torch

    return torch.asarray(array)


@pytest.fixture(
    params=[
        pytest.param(np.asarray, id="numpy"),
        pytest.param(_to_torch, id="torch", marks=pytest.mark.torch),
    ]
)
def as_array(request):
    """Convert a NumPy array to the library under test."""
    return request.param


@pytest.fixture(scope="session")
def browser():
    """Return one tab of a headless Chromium, for all tests of a worker."""
    from tests.browser import opened

    with opened() as tab:
        yield tab
