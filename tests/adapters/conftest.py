"""Tests of the adapters are collected only where PyTorch is installed."""

import importlib.util
from pathlib import Path

import pytest

HAS_TORCH = importlib.util.find_spec("torch") is not None
collect_ignore_glob = [] if HAS_TORCH else ["test_*.py"]
# `make test-all` has an environment of its own for TransformerLens.
if importlib.util.find_spec("transformer_lens") is None:
    collect_ignore_glob.append("test_transformer_lens.py")


def pytest_collection_modifyitems(items):
    """Tests here swap untrained models in evaluation mode on purpose."""
    quiet = pytest.mark.filterwarnings("ignore::eigenheads.adapters.SwapWarning")
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(quiet, append=False)


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors gain nothing from threads that contend with other workers."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
