"""Doctests of the layers are collected only where PyTorch is installed."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["*.py"]
