"""The papers are built on the public names of the library, and share its version."""

import ast
import importlib
import tomllib
from pathlib import Path

import pytest

import eigenheads
import eigenheads_papers

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def imports_of_the_library(path):
    """Yield the module and the name of every import of the library in a file."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            if (node.module or "").partition(".")[0] == "eigenheads":
                yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "eigenheads":
                    yield alias.name, None


@pytest.mark.torch
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_only_public_names_are_imported(path):
    for module, name in imports_of_the_library(path):
        assert not any(part.startswith("_") for part in module.split(".")), module
        if name is not None and name != "__version__":
            public = getattr(importlib.import_module(module), "__all__", None)
            assert public is None or name in public, f"{module}.{name}"


def test_both_have_one_version():
    assert eigenheads_papers.__version__ == eigenheads.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"eigenheads=={eigenheads.__version__}" in project["dependencies"]
