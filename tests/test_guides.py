"""The guides' code runs: the blocks of a page in order, in one namespace."""

import re
from pathlib import Path

import pytest

GUIDES = sorted((Path(__file__).parents[1] / "docs" / "guides").glob("*.md"))


def python_blocks(page):
    return re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)


def test_there_are_guides_to_run():
    assert GUIDES


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
def test_code_of_the_guide_runs(path):
    blocks = python_blocks(path.read_text(encoding="utf-8"))
    assert blocks
    namespace = {"__name__": path.stem}
    for number, block in enumerate(blocks, start=1):
        exec(compile(block, f"{path.name}, block {number}", "exec"), namespace)
