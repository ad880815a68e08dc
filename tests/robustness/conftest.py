"""Tests of robustness are collected only where PyTorch is installed."""

import importlib.util

import pytest

HAS_TORCH = importlib.util.find_spec("torch") is not None
collect_ignore_glob = [] if HAS_TORCH else ["test_*.py"]


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors gain nothing from threads that contend with other workers."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
