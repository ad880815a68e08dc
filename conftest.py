"""Fixtures: seeds from EIGENHEADS_TEST_SEEDS, array libraries that are installed."""

import importlib.util
import os

# Workers of one run share the processors: more threads in each would only contend. Set
# before NumPy and PyTorch are imported, and inherited by processes that tests start.
if "PYTEST_XDIST_WORKER" in os.environ:
    for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(_name, "1")

import numpy as np
import pytest
from hypothesis import settings
from threadpoolctl import threadpool_limits

if "PYTEST_XDIST_WORKER" in os.environ:
    threadpool_limits(1)  # where a plugin has imported NumPy before

# Tests do not measure time: on a busy machine any example may take long.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

HAS_TORCH = importlib.util.find_spec("torch") is not None
# Not tests: models for tests, whose import needs PyTorch.
collect_ignore = (
    [] if HAS_TORCH else ["tests/adapters/models.py", "tests/readme_model.py"]
)
SEEDS = [int(seed) for seed in os.environ.get("EIGENHEADS_TEST_SEEDS", "0").split(",")]
# Files that take longest. Workers begin with these, so that none is still busy with a
# long one when the others have nothing left. Files that compile different kernels come
# first; those that use the kernels of all parts follow and find them compiled.
LONG_FILES = (
    "models/test_signal_kernels.py",
    "estimators/test_location_contract.py",
    "papers/tests/test_records.py",
    "papers/tests/test_maulensoto2026.py",
    "models/test_simulate.py",
    "papers/tests/test_marion2025.py",
    "models/test_location_kernels.py",
    "papers/tests/test_truong2026.py",
    "sweeps/test_run.py",
    "sweeps/test_workers.py",
    "test_guides.py",
    "estimators/test_signal_direction.py",
    "live/tests/test_page.py",
    "hostile/test_sweep.py",
    "test_readme.py",
    "live/tests/test_mean_paths.py",
    "live/tests/test_law.py",
    "test_compile.py",
    "recipes/test_training.py",
    "papers/tests/test_teo2024.py",
    "hostile/test_command_line.py",
    "papers/tests/test_store.py",
    "cli/test_app.py",
    "papers/tests/test_saritas2025.py",
    "models/test_pca.py",
    "probes/test_controls.py",
    "models/test_simulators.py",
    "hostile/test_models.py",
    "models/test_mean_dynamics.py",
)


def pytest_collection_modifyitems(items):
    """Put the tests of long files first; the order within a file stays."""

    def place(item):
        name = item.path.as_posix()
        for number, long in enumerate(LONG_FILES):
            if name.endswith(long):
                return number
        return len(LONG_FILES)

    items.sort(key=place)


def pytest_generate_tests(metafunc):
    """Run tests with randomness once per seed."""
    if "rng_seed" in metafunc.fixturenames:
        metafunc.parametrize("rng_seed", SEEDS)


@pytest.fixture
def rng(rng_seed):
    """Return a generator of one seed."""
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
