"""Doctests of what needs PyTorch are collected only where it is installed."""

import importlib.util

HAS_TORCH = importlib.util.find_spec("torch") is not None
collect_ignore_glob = (
    []
    if HAS_TORCH
    else [
        "eigenheads/_tour/_torch.py",
        "eigenheads/nn/*.py",
        "eigenheads/adapters/*.py",
        "eigenheads/robustness/*.py",
        "eigenheads/recipes/*.py",
        "eigenheads/experiments/marion2025/_transformer.py",
        "eigenheads/experiments/screening/_measurement.py",
        "eigenheads/experiments/teo2024/_finetuning.py",
        "eigenheads/experiments/teo2024/_models.py",
        "eigenheads/experiments/teo2024/_program.py",
        "eigenheads/experiments/teo2024/_robustness_cell.py",
        "eigenheads/experiments/teo2024/_training.py",
    ]
)
