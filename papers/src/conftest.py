"""Doctests of what needs PyTorch are collected only where it is installed."""

import importlib.util

HAS_TORCH = importlib.util.find_spec("torch") is not None
collect_ignore_glob = (
    []
    if HAS_TORCH
    else [
        "eigenheads_papers/tour/_torch.py",
        "eigenheads_papers/recipes/*.py",
        "eigenheads_papers/marion2025/_transformer.py",
        "eigenheads_papers/screening/_measurement.py",
        "eigenheads_papers/teo2024/_finetuning.py",
        "eigenheads_papers/teo2024/_models.py",
        "eigenheads_papers/teo2024/_program.py",
        "eigenheads_papers/teo2024/_robustness_cell.py",
        "eigenheads_papers/teo2024/_training.py",
    ]
)
