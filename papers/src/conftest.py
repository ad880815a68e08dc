"""Doctests of what needs PyTorch are collected only where it is installed."""

import importlib.util
import re
from pathlib import Path

HAS_TORCH = importlib.util.find_spec("torch") is not None
# PyTorch itself, or a package that needs it, at the top level of a module.
PACKAGES = r"torch|eigenheads\.(nn|adapters|robustness|extend\.models)"
NEEDS_TORCH = re.compile(rf"^(import torch|from ({PACKAGES})\b)", re.MULTILINE)
SOURCE = Path(__file__).parent
collect_ignore = [
    path.relative_to(SOURCE).as_posix()
    for path in SOURCE.rglob("*.py")
    if not HAS_TORCH
    and (path.parent.name == "recipes" or NEEDS_TORCH.search(path.read_text("utf-8")))
]
