"""The guides' code runs and prints what they show, block by block.

``python tests/test_guides.py PAGE...`` writes the printed output into the pages.
"""

import contextlib
import doctest
import io
import re
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "guides"
GUIDES = sorted(set(FOLDER.glob("*.md")) - {FOLDER / "index.md"})
GUIDES.append(FOLDER.with_name("start.md"))
# A block of code, and what it prints if that follows at once.
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```$(?P<shown>\n\n^```text\n(?P<text>.*?)^```$)?",
    flags=re.DOTALL | re.MULTILINE,
)
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+\.?\d*(?:e[-+]?\d+)?")


def run_block(code, name, namespace):
    """Run a block and return what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, name, "exec"), namespace)
    return printed.getvalue()


def prints_as_shown(printed, shown):
    """Return whether texts are equal, and numbers up to 3 % or 0.006.

    Other processors and library versions round differently, and optimisers end
    elsewhere.
    """
    if NUMBER.sub("#", " ".join(printed.split())) != NUMBER.sub(
        "#", " ".join(shown.split())
    ):
        return False
    pairs = zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True)
    return all(
        float(one) == pytest.approx(float(other), rel=0.03, abs=0.006)
        for one, other in pairs
    )


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


@pytest.mark.parametrize("path", with_marks(GUIDES))
def test_code_of_the_guide_runs_and_prints_what_is_shown(path):
    blocks = list(BLOCK.finditer(path.read_text(encoding="utf-8")))
    assert blocks
    namespace = {"__name__": path.stem}
    for number, block in enumerate(blocks, start=1):
        name = f"{path.name}, block {number}"
        printed = run_block(block["code"], name, namespace)
        if block["shown"]:
            assert prints_as_shown(printed, block["text"]), (name, printed)


@pytest.mark.parametrize(
    ("printed", "shown", "is_equal"),
    [
        ("0.951 of 12\n", "0.953 of 12", True),
        ("a  b\n", "a b\n", True),
        ("0.90", "0.95", False),
        ("11 of 12", "12 of 12", False),
        ("found 3", "lost 3", False),
        ("1 2", "1", False),
    ],
)
def test_other_numbers_and_words_are_noticed(printed, shown, is_equal):
    assert prints_as_shown(printed, shown) == is_equal


THEORY = sorted(set(FOLDER.with_name("theory").glob("*.md")))
PAGES = [page for page in THEORY if ">>>" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", with_marks(PAGES))
def test_code_of_the_theory_page_gives_what_it_shows(path):
    failed, tried = doctest.testfile(str(path), module_relative=False, encoding="utf-8")
    assert tried
    assert failed == 0


def renewed(page):
    """Return a page with the output of every block that prints below it."""
    namespace = {"__name__": "page"}

    def with_output(block):
        printed = run_block(block["code"], "page", namespace)
        lines = "\n".join(line.rstrip() for line in printed.rstrip().splitlines())
        shown = f"\n\n```text\n{lines}\n```" if lines else ""
        return f"```python\n{block['code']}```{shown}"

    return BLOCK.sub(with_output, page)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
