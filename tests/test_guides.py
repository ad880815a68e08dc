"""The guides' code runs: the blocks of a page in order, in one namespace."""

import doctest
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "guides"
GUIDES = sorted(set(FOLDER.glob("*.md")) - {FOLDER / "index.md"})
GUIDES.append(FOLDER.with_name("start.md"))


def python_blocks(page):
    return re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)


def with_marks(paths):
    """Mark the pages whose code needs PyTorch."""
    return [
        pytest.param(
            path,
            marks=pytest.mark.torch if "import torch" in path.read_text() else [],
            id=path.stem,
        )
        for path in paths
    ]


def test_there_are_guides_to_run():
    assert GUIDES


@pytest.mark.parametrize("path", with_marks(GUIDES))
def test_code_of_the_guide_runs(path):
    blocks = python_blocks(path.read_text(encoding="utf-8"))
    assert blocks
    namespace = {"__name__": path.stem}
    for number, block in enumerate(blocks, start=1):
        exec(compile(block, f"{path.name}, block {number}", "exec"), namespace)


THEORY = sorted(set(FOLDER.with_name("theory").glob("*.md")))
PAGES = [page for page in THEORY if ">>>" in page.read_text(encoding="utf-8")]


def test_there_is_theory_to_run():
    assert PAGES


@pytest.mark.parametrize("path", with_marks(PAGES))
def test_code_of_the_theory_page_gives_what_it_shows(path):
    failed, tried = doctest.testfile(str(path), module_relative=False, encoding="utf-8")
    assert tried
    assert failed == 0
