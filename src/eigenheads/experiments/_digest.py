"""Digests of the code that a result rests on.

A digest covers the definitions that a function reaches through this package, and
nothing else: comments, docstrings and unrelated functions do not change it. Checks of
arguments and the texts of errors are left out as well, because they either let a
simulation run unchanged or stop it; so are views for notebooks, how code is compiled
and cached, the reading and writing of files, and threads with their progress, on which
no number depends beyond rounding. So a result stays current until code that computes it
changes, and claims or drawings can change without a new simulation.
"""

import ast
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import eigenheads
from eigenheads.experiments._core import Experiment
from eigenheads.experiments._registry import experiment_keys, get_experiment

_ROOT = Path(eigenheads.__file__).parent
# Modules that check, compile, store, schedule or show, and compute no result.
_LEFT_OUT = {
    "_checks",
    "_compile",
    "_errors",
    "_extras",
    "_files",
    "_limits",
    "_notebook",
    "_parallel",
    "_typing",
}
# A definition: its module, and its name there; None stands for the whole module.
_Place = tuple[str, str | None]
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@cache
def code_version(key: str) -> str:
    """Return the package version and a digest of the code that simulates.

    Parameters
    ----------
    key
        Key of an experiment; a paper stands for all of its experiments, and any other
        text for the whole package.
    """
    keys = [one for one in experiment_keys() if key in (one, one.partition("/")[0])]
    if keys:
        parts = [_reached(_simulating(get_experiment(one))) for one in keys]
        text = "\n".join(sorted(set().union(*parts)))
    else:
        files = sorted(_ROOT.rglob("*.py"))
        text = "\n".join(_plain(_parsed(file)) for file in files)
    return f"{eigenheads.__version__}+{_short(text)}"


@cache
def claims_version(key: str) -> str:
    """Return a digest of the code that turns the table of a key into claims."""
    return _short("\n".join(sorted(_reached([get_experiment(key).check]))))


@cache
def drawing_version(key: str) -> str:
    """Return a digest of the code that draws the table of a key."""
    return _short("\n".join(sorted(_reached([get_experiment(key).draw]))))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _simulating(experiment: Experiment[Any]) -> list[Callable[..., Any]]:
    cells = experiment.cells
    return [experiment.simulate, *([cells.run] if cells else [])]


def _reached(functions: Iterable[Callable[..., Any]]) -> set[str]:
    """Return the source of all definitions that these functions reach."""
    waiting = [_place(function) for function in functions]
    seen: set[_Place] = set()
    found: set[str] = set()
    # This searches the graph of definitions. The set of seen places ends cycles, and
    # the result is a set, so the order of the search does not change the digest.
    while waiting:
        place = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        module = _read(place[0])
        for statement in module.statements(place[1]):
            found.add(f"{place[0]}\n{_plain(statement)}")
            waiting += module.references(statement)
        # A module that only passes a name on leads to the module that defines the name.
        if place[1] in module.imports:
            waiting.append(module.imports[place[1]])
    return found


def _place(function: Callable[..., Any]) -> _Place:
    while isinstance(function, partial):
        function = function.func
    # The first part of the name is the top-level definition, which contains methods and
    # inner functions. A lambda at the top level has no name, so its whole module stands
    # for it.
    name: str = function.__qualname__.partition(".")[0]
    return function.__module__, None if name == "<lambda>" else name


@dataclass
class _Module:
    """Top-level statements of a module, by the names that they define."""

    defined: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imports: dict[str, _Place] = field(default_factory=dict)
    others: list[ast.stmt] = field(default_factory=list)

    def statements(self, name: str | None) -> list[ast.stmt]:
        """Return what defines a name, and top-level statements that mention it."""
        if name is None:
            return [one for many in self.defined.values() for one in many] + self.others
        if name not in self.defined:
            return []
        return self.defined[name] + [
            one for one in self.others if any(n == name for n in _names(one))
        ]

    def references(self, statement: ast.stmt) -> Iterator[_Place]:
        """Yield the definitions that a statement refers to."""
        local = dict(self.imports)
        for node in ast.walk(statement):
            local |= _imported(node)  # imports inside functions
        # These nodes stand left of a dot.
        owners = {
            id(node.value)
            for node in ast.walk(statement)
            if isinstance(node, ast.Attribute)
        }
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module, name = local.get(node.value.id, ("", ""))
                if module and name is None:
                    yield module, node.attr
            if not isinstance(node, ast.Name):
                continue
            if node.id in local:
                place = local[node.id]
                # `module.name` is followed above; a bare module is all of it.
                if place[1] is not None or id(node) not in owners:
                    yield place
            elif node.id in self.defined:
                yield self._own, node.id

    _own: str = ""


@cache
def _read(name: str) -> _Module:
    module = _Module()
    module._own = name
    path = _file(name)
    if path is None:
        return module
    for statement in _parsed(path).body:
        bound = _imported(statement)
        if bound or isinstance(statement, ast.Import | ast.ImportFrom):
            module.imports |= bound
        elif names := list(_targets(statement)):
            for one in names:
                module.defined.setdefault(one, []).append(statement)
        else:
            # A statement that binds no name counts for every name that it mentions.
            module.others.append(statement)
    return module


def _file(name: str) -> Path | None:
    """Return the file of a module of this package."""
    if name.partition(".")[0] != _ROOT.name:
        return None
    parts = name.split(".")[1:]
    if parts and parts[0] in _LEFT_OUT:
        return None
    base = _ROOT.joinpath(*parts)
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def _parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file without methods that only show an object."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            node.body = [one for one in node.body if not _is_view(one)]
    return tree


def _is_view(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.FunctionDef) and statement.name == "_repr_html_"


def _imported(node: ast.AST) -> dict[str, _Place]:
    """Return the names that an import of this package binds."""
    if isinstance(node, ast.Import):
        return {
            alias.asname: (alias.name, None)
            for alias in node.names
            if alias.asname and _file(alias.name)
        }
    if not isinstance(node, ast.ImportFrom) or not _file(node.module or ""):
        return {}
    bound: dict[str, _Place] = {}
    for alias in node.names:
        inner = f"{node.module}.{alias.name}"
        # The imported name may be a submodule or a name in the file of the package;
        # whether a file of that name exists decides.
        place = (inner, None) if _file(inner) else (str(node.module), alias.name)
        bound[alias.asname or alias.name] = place
    return bound


def _targets(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, _Definition):
        yield statement.name
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))
    elif isinstance(statement, ast.AnnAssign):
        yield from (n.id for n in [statement.target] if isinstance(n, ast.Name))


def _names(statement: ast.stmt) -> Iterator[str]:
    return (node.id for node in ast.walk(statement) if isinstance(node, ast.Name))


class _Reduced(ast.NodeTransformer):
    """Removes docstrings, checks that return nothing, and what words or compiles."""

    def visit_With(self, node: ast.With) -> ast.With | list[ast.stmt]:
        """Keep the body of ``with naming_errors(…)``, which only words errors."""
        self.generic_visit(node)
        calls = [item.context_expr for item in node.items]
        names = [
            call.func.id
            for call in calls
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        ]
        is_wording = names == ["naming_errors"] and len(calls) == 1
        return node.body if is_wording else node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """Drop ``short_loops=…`` of ``njit``, which only shortens compilations."""
        self.generic_visit(node)
        node.keywords = [one for one in node.keywords if one.arg != "short_loops"]
        return node

    def visit_Raise(self, node: ast.Raise) -> ast.Raise:
        """Keep that an error is raised, and drop which."""
        return ast.Raise()

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | ast.Pass:
        """Drop docstrings and calls such as ``check_count(…)``."""
        value = node.value
        is_check = (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Name)
            and value.func.id.startswith("check_")
        )
        return ast.Pass() if is_check or isinstance(value, ast.Constant) else node


def _plain(tree: ast.AST) -> str:
    """Return source without comments, docstrings, checks and texts of errors."""
    lines = ast.unparse(_Reduced().visit(tree)).splitlines()
    return "\n".join(line for line in lines if line.strip() != "pass")
