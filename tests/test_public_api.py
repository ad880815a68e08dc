"""What users import: sorted, bound, documented, and light."""

import importlib
import inspect
import subprocess
import sys

import pytest

import eigenheads

# Modules that `import eigenheads` must leave alone.
HEAVY = ("torch", "matplotlib", "sklearn", "numba", "scipy", "pandas", "jinja2")
# Subpackages that need an extra; their own tests look at them.
NEEDS_TORCH = {"nn", "adapters", "robustness"}
CORE = [
    name
    for name in eigenheads.__all__
    if not name.startswith("_") and name not in NEEDS_TORCH
]


@pytest.mark.parametrize("name", CORE)
def test_names_are_sorted_bound_and_documented(name):
    module = importlib.import_module(f"eigenheads.{name}")
    assert module.__doc__
    # Constants, classes, functions: ruff's order of __all__ (RUF022).
    assert len(module.__all__) == len(set(module.__all__))
    for public in module.__all__:
        thing = getattr(module, public)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert thing.__doc__, public


def test_submodules_are_found_lazily_and_listed():
    assert eigenheads.datasets is importlib.import_module("eigenheads.datasets")
    assert set(dir(eigenheads)) == set(eigenheads.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = eigenheads.nothing


def test_import_is_light():
    code = (
        "import sys, eigenheads; "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "[]"


def test_the_command_line_starts_without_the_heavy_libraries():
    code = (
        "import sys; from eigenheads.cli import main; main(['--help']); "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip().endswith("[]")


@pytest.mark.parametrize("package", ["theory", "models", "functional", "datasets"])
def test_signatures_are_readable_in_help(package):
    """Types of arrays have short names, not their definitions."""
    module = importlib.import_module(f"eigenheads.{package}")
    for name in module.__all__:
        thing = getattr(module, name)
        if callable(thing):
            try:
                shown = str(inspect.signature(thing))
            except ValueError:  # exceptions of C have none
                continue
            assert "numpy" not in shown, name
