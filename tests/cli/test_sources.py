"""`module:callable`: found in the current folder, and every mistake is one sentence."""

import sys

import pytest

from eigenheads._errors import UsageError
from eigenheads.cli._models import call_source

MODULE = """
import json

NUMBER = 3

def made():
    import neighbour
    return neighbour.WORD

def broken():
    return json.loads("{")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ehmine.py").write_text(MODULE)
    (tmp_path / "neighbour.py").write_text("WORD = 'found'\n")
    (tmp_path / "ehbad.py").write_text("import ehabsent\n")
    (tmp_path / "ehtypo.py").write_text("x = = 1\n")
    yield
    for name in ("ehmine", "neighbour", "ehbad", "ehtypo"):
        sys.modules.pop(name, None)


def test_it_is_found_in_the_current_folder_and_leaves_the_path_alone(folder):
    before = list(sys.path)
    assert call_source("ehmine:made", name="MODEL") == "found"
    assert sys.path == before


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (
            "ehmine",
            "got 'ehmine'. mymodels:trained means function `trained` in mymodels.py.",
        ),
        (":made", "mymodels:trained"),
        ("ehmine:", "mymodels:trained"),
        ("ehnowhere:made", "there is no module 'ehnowhere' here"),
        ("ehmine.sub:made", "there is no module 'ehmine.sub' here"),
        ("ehmine:absent", "ehmine has no 'absent'"),
        ("ehmine:NUMBER", "whose type is int"),
        ("ehmine:broken", r"raised JSONDecodeError: .* \(ehmine.py, line 11\)"),
        ("ehbad:made", r"No module named 'ehabsent' \(ehbad.py, line 1\)"),
        ("ehtypo:made", "which raised SyntaxError"),
    ],
)
def test_mistakes_are_one_sentence(folder, source, sentence):
    before = list(sys.path)
    with pytest.raises(ValueError, match="`MODEL` must be module:") as caught:
        call_source(source, name="MODEL")
    assert isinstance(caught.value, UsageError)
    caught.match(sentence)
    assert "\n" not in str(caught.value)
    assert sys.path == before
