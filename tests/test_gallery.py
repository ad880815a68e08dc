"""The gallery: every example has its place, a title, and a finding in its figure.

`make docs` runs them, with warnings as errors.
"""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("plot_*.py"))


@pytest.fixture
def setup(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs"), *sys.path])
    import gallery_setup

    return gallery_setup


def test_every_example_has_its_place(setup):
    names = [path.stem.removeprefix("plot_") for path in EXAMPLES]
    assert sorted(setup.ORDER) == names
    ordered = sorted((path.name for path in EXAMPLES), key=setup.reading_order)
    assert ordered[0] == "plot_watch_a_head.py"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_has_a_title_and_states_what_it_found(path):
    text = path.read_text(encoding="utf-8")
    title, underline, *_ = ast.get_docstring(ast.parse(text)).splitlines()
    assert underline == "=" * len(title)
    # The finding is measured when it is drawn, not written down.
    titles = [
        ast.unparse(node.args[0])
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") in {"title", "suptitle", "set_title"}
        and any(isinstance(part, ast.FormattedValue) for part in ast.walk(node))
    ]
    assert titles, path.name


def test_without_torch_its_examples_are_left_out(monkeypatch):
    source = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    wanted = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == "without_torch"
    ]
    namespace = {
        "EXAMPLES": ROOT / "examples",
        "find_spec": lambda name: None,
        "re": re,
    }
    exec(compile(ast.Module(wanted, []), "conf.py", "exec"), namespace)
    pattern = re.compile(namespace["without_torch"]())
    left_out = [path.stem for path in EXAMPLES if pattern.search(str(path))]
    assert left_out == ["plot_probe_a_head", "plot_pursuit_diagnostics"]
