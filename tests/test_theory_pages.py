"""Theory pages: each proposition says what it assumes, its proof, code and tests."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs" / "theory").glob("[!i]*.md"))
HEADING = re.compile(r"^##+ (Proposition \d+): .+$", re.MULTILINE)
ROWS = ("assumes", "proof", "code", "tests")


def propositions():
    """Return page, number and text of every proposition."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        starts = [*HEADING.finditer(text)]
        ends = [*(start.start() for start in starts[1:]), len(text)]
        for start, end in zip(starts, ends, strict=True):
            yield pytest.param(
                text[start.end() : end], id=f"{page.stem}-{start[1].split()[1]}"
            )


def row(text, name):
    found = re.search(rf"^\| {name} \| (.+) \|$", text, re.MULTILINE)
    assert found, f"no row `{name}`"
    return found[1]


def exists(name):
    """Tell if a name, or a method of a class, is exported by its package."""
    package, _, names = name.removeprefix("eigenheads.").partition(".")
    source = ROOT / "src" / "eigenheads" / package / "__init__.py"
    first, _, method = names.partition(".")
    # Not imported unless for a method: some packages need PyTorch.
    if f'"{first}"' not in source.read_text(encoding="utf-8"):
        return False
    module = importlib.import_module(f"eigenheads.{package}") if method else None
    return not method or hasattr(getattr(module, first), method)


def test_every_page_has_propositions_in_order():
    assert len(PAGES) == 7
    for page in PAGES:
        numbers = re.findall(
            r"^##+ Proposition (\d+)", page.read_text(encoding="utf-8"), re.MULTILINE
        )
        assert [int(number) for number in numbers] == [*range(1, len(numbers) + 1)]
        assert len(numbers) >= 4, page


@pytest.mark.parametrize("text", [*propositions()])
def test_a_proposition_names_its_proof_and_code_and_tests_that_exist(text):
    assert all(row(text, name).strip() for name in ROWS)
    code = row(text, "code")
    names = re.findall(r"`~(eigenheads\.[\w.]+)`", code)
    assert names or "eigenheads reproduce" in code
    assert [name for name in names if not exists(name)] == []
    tests = re.findall(r"`((?:papers/)?tests/[\w/]+\.py)::(\w+)`", row(text, "tests"))
    assert tests
    for path, name in tests:
        assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE), (
            f"{path}::{name}"
        )


def test_a_name_that_does_not_exist_is_noticed():
    assert exists("eigenheads.theory.LocationLandscape.risk")
    assert not exists("eigenheads.theory.LocationLandscape.risks")
