"""Every public name and its signature, compared with the committed list.

``docs/developer/public_names.txt`` is the contract: a change of a public signature
shows as a change of that file. ``python tests/test_contract.py`` writes it anew.
"""

import importlib
import inspect
from pathlib import Path
from types import GenericAlias

import pytest

import eigenheads

LISTED = Path(__file__).parent.parent / "docs" / "developer" / "public_names.txt"
# Subpackages that need PyTorch or another extra.
NEED_TORCH = {"nn", "adapters", "robustness", "papers.recipes"}
# Name in the list, and module.
PACKAGES = {
    **{
        name: f"eigenheads.{name}"
        for name in sorted(eigenheads.__all__)
        if not name.startswith("_")
    },
    "papers": "eigenheads_papers",
    "papers.recipes": "eigenheads_papers.recipes",
    "papers.report": "eigenheads_papers.report",
}
SIMPLE = (type(None), bool, int, float, str, tuple)


def describe_package(package):
    """Return a line per public name of a package, methods indented below classes."""
    module = importlib.import_module(PACKAGES[package])
    lines = []
    for name in sorted(module.__all__):
        thing = getattr(module, name)
        lines.append(f"{package}.{name}{_call(thing)}")
        if inspect.isclass(thing):
            lines += [f"    .{method}" for method in _methods(thing)]
    return lines


def _methods(cls):
    # Inherited methods count if they are ours; scikit-learn's and PyTorch's are theirs.
    ours = [base for base in cls.__mro__ if base.__module__.startswith("eigenheads")]
    members = {
        name: member for base in ours[::-1] for name, member in vars(base).items()
    }
    for name in sorted(name for name in members if not name.startswith("_")):
        member = members[name]
        if isinstance(member, classmethod | staticmethod):
            member = member.__func__
        if inspect.isfunction(member):
            yield name + _call(member)
        elif isinstance(member, property):
            yield name


def _call(thing):
    # Python 3.11 and 3.13 describe the call of an alias such as dict[str, int]
    # differently.
    if not callable(thing) or isinstance(thing, GenericAlias):
        return ""
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return "(…)"
    shown, starred = [], False
    for one in parameters:
        if one.name in ("self", "cls"):
            continue
        if one.kind is one.KEYWORD_ONLY and not starred:
            shown.append("*")
        starred |= one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        prefix = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        shown.append(prefix + one.name + _default(one.default))
    return f"({', '.join(shown)})"


def _default(value):
    if value is inspect.Parameter.empty:
        return ""
    return f"={value!r}" if isinstance(value, SIMPLE) else "=…"


def listed(package):
    """Return the committed lines of a package."""
    lines, inside = [], False
    for line in LISTED.read_text(encoding="utf-8").splitlines():
        if not line.startswith(" "):
            inside = line.partition("(")[0].rpartition(".")[0] == package
        if inside:
            lines.append(line)
    return lines


@pytest.mark.parametrize(
    "package",
    [
        pytest.param(name, marks=[pytest.mark.torch] if name in NEED_TORCH else [])
        for name in PACKAGES
    ],
)
def test_signatures_are_the_committed_ones(package):
    assert describe_package(package) == listed(package), (
        "A public name or signature changed. If this is intended, run "
        "`python tests/test_contract.py` and add a line to CHANGELOG.md."
    )


if __name__ == "__main__":
    text = [line for package in PACKAGES for line in describe_package(package)]
    LISTED.write_text("\n".join(text) + "\n", encoding="utf-8")
