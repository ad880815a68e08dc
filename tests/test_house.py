"""House rules that readers rely on: one name per thing, plain docstrings.

`make check` runs this file. docs/glossary.md has the words.
"""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "eigenheads"
# Parts that every experiment has under the same name.
EXPERIMENT_PARTS = {"Params", "simulate", "check", "draw", "work", "files", "with_data"}
# Names that several modules define today. Rename them and shorten this list; a new
# homonym fails.
KNOWN_HOMONYMS: set[str] = set()
# Modules whose docstrings still open with a question word, or say "a" for "per".
KNOWN_RIDDLES: set[str] = set()
QUESTION = re.compile(r"(What|Who|Whose|Where|When|Why|How|Which|Whether)\b")
# "one number a head": the plain word is "per".
PER = re.compile(
    r"\b(number|draw|kernel|step|time|row|column|value|weight|line|file)s? a "
    r"(head|token|run|step|bag|row|layer|prompt|seed|cell|point|model|result)\b"
)
MODULES = sorted(SOURCE.rglob("*.py"))
PLAIN = [
    path for path in MODULES if path.relative_to(SOURCE).as_posix() not in KNOWN_RIDDLES
]


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def where(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def is_exempt(path: Path, name: str) -> bool:
    """Return whether several modules may define this name here."""
    parts = path.relative_to(SOURCE).parts
    if parts[0] == "experiments" and len(parts) == 3:
        return name in EXPERIMENT_PARTS
    # The functions of the command line are named after its commands.
    return parts[0] == "cli"


def test_a_name_means_one_thing():
    places = defaultdict(list)
    for path in MODULES:
        for node in parsed(path).body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef):
                continue
            if not node.name.startswith("_") and not is_exempt(path, node.name):
                places[node.name].append(where(path))
    homonyms = {name: files for name, files in places.items() if len(files) > 1}
    new = {name: homonyms[name] for name in sorted(homonyms.keys() - KNOWN_HOMONYMS)}
    assert new == {}, "rename one of them, or make it private (leading underscore)"


@pytest.mark.parametrize("path", PLAIN, ids=where)
def test_docstrings_open_with_a_verb_or_a_noun(path):
    riddles = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            opening = (ast.get_docstring(node) or "").partition("\n")[0]
            if QUESTION.match(opening):
                riddles.append(opening)
    assert riddles == []


@pytest.mark.parametrize("path", PLAIN, ids=where)
def test_per_is_not_written_as_a(path):
    text = path.read_text(encoding="utf-8")
    assert [found.group() for found in PER.finditer(text)] == []
