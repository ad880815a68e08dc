"""Doctests of what needs PyTorch are collected only where it is installed."""

import importlib.util

HAS_TORCH = importlib.util.find_spec("torch") is not None
collect_ignore_glob = (
    []
    if HAS_TORCH
    else [
        "eigenheads/nn/*.py",
        "eigenheads/adapters/*.py",
        "eigenheads/robustness/*.py",
        "eigenheads/extend/models.py",
        "eigenheads/_modules.py",
    ]
)
