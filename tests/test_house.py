"""House rules that readers rely on: one name per thing, plain docstrings.

`make check` runs this file. docs/glossary.md has the words.
"""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = (ROOT / "src" / "eigenheads", ROOT / "papers" / "src" / "eigenheads_papers")
# Parts that every experiment has under the same name.
EXPERIMENT_PARTS = {"Params", "simulate", "check", "draw", "work", "files", "with_data"}
# Names that several modules define today. Rename them and shorten this list; a new
# homonym fails.
KNOWN_HOMONYMS: set[str] = set()
QUESTION = re.compile(r"(What|Who|Whose|Where|When|Why|How|Which|Whether)\b")
# "one number a head": the plain word is "per".
PER = re.compile(
    r"\b(number|draw|kernel|step|time|row|column|value|weight|line|file)s? a "
    r"(head|token|run|step|bag|row|layer|prompt|seed|cell|point|model|result)\b"
)
MODULES = [path for source in SOURCES for path in sorted(source.rglob("*.py"))]


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def where(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def is_exempt(path: Path, name: str) -> bool:
    """Return whether several modules may define this name here."""
    # An experiment is in the folder of its paper.
    if path.parent.name[-4:].isdigit() or path.parent.name == "screening":
        return name in EXPERIMENT_PARTS
    # The functions of the command line are named after its commands.
    return path.parent.name == "cli"


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


@pytest.mark.parametrize("path", MODULES, ids=where)
def test_docstrings_open_with_a_verb_or_a_noun(path):
    riddles = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            opening = (ast.get_docstring(node) or "").partition("\n")[0]
            if QUESTION.match(opening):
                riddles.append(opening)
    assert riddles == []


@pytest.mark.parametrize("path", MODULES, ids=where)
def test_per_is_not_written_as_a(path):
    text = path.read_text(encoding="utf-8")
    assert [found.group() for found in PER.finditer(text)] == []


SEEDS = re.compile(
    r"\bdefault_rng\(|\bRandomState\(|\bSeedSequence\(|Generator\(|\bSFC64\("
)


@pytest.mark.parametrize("path", MODULES, ids=where)
def test_seeds_become_generators_in_one_place(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    code = [line for line in lines if not re.match(r"\s*(>>>|\.\.\.|hint = )", line)]
    made = [line.strip() for line in code if SEEDS.search(line)]
    assert path.name == "_rng.py" or made == []
