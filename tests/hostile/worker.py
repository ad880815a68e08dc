"""Process that makes hostile calls, so that a crash or a hang ends only itself.

It reads one request per line, ``[name, first case, sample]``, and answers with one line
before each call and one after it.
"""

import contextlib
import copy
import dataclasses
import doctest
import functools
import importlib
import importlib.util
import inspect
import io
import json
import os
import random
import re
import resource
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, NamedTuple

import numpy as np
from tests.hostile.examples import EXAMPLES, INTERNAL
from tests.hostile.values import Hostile, numbers_in, values_for

MEMORY = 4 * 2**30
HAS_TORCH = importlib.util.find_spec("torch") is not None
GRAMMAR = re.compile(r"[\w.() :/'-]+: `[^`]+`.* must .+; got .+\.(?: .+)?")
OTHER_SENTENCES = re.compile(
    r".+ is not installed\. Run `.+`\.|store: .+"
    # This sentence is what scikit-learn's checks of estimators demand.
    r"|.+ requires y to be passed, but the target y is None\."
)
DOCUMENTED = re.compile(r"\bNaN\b|\bnan\b|infinit|\binf\b")
OUT_OF_RANGE = {"huge", "tiny", "1e308", "1e-300", "inf", "-inf"}
# The command line has tests of its own.
# The parts for packages that build on the library are called by these, not by users.
NOT_PUBLIC = {"cli", "extend"}
# Packages of the papers, by their name in the sweep.
PAPERS = {
    "papers": "eigenheads_papers",
    "recipes": "eigenheads_papers.recipes",
    "ledger": "eigenheads_papers.report",
}
# Names for messages, which are texts of our own.
NOT_SWEPT = {"owner", "name"}
# Sizes of a computation: a large number is a valid request that takes long.
WORK = re.compile(
    r"n_\w+|max_iter|batch_size|jobs|repeats|d|count|seeds|epochs|accumulate|units|total"
)
LARGE = {"10**9", "10**30", "1e308"}
# What `len` and `int`, the hostile function and class, raise when they are called.
# Errors of functions that a caller gives reach the caller.
OWN_ERROR = re.compile(
    r"object of type '.+' has no len\(\)|len\(\) takes .+|int\(\) (argument|takes) .+"
    r"|invalid literal for int\(\) .+|only (one element|0-dim|length-1|integer).+"
)
# Frames of these packages may raise what they like about arguments of estimators:
# scikit-learn's own checks prescribe these messages.
SKLEARN = f"{os.sep}sklearn{os.sep}"


class Target(NamedTuple):
    """A call that is right, as an example of the documentation makes it."""

    name: str
    call: Callable[..., Any]
    arguments: dict[str, Any]


class Case(NamedTuple):
    """One call: which argument is replaced, and by what."""

    target: Target
    parameter: str
    hostile: Hostile

    @property
    def label(self) -> str:
        return f"{self.target.name}({self.parameter}={self.hostile.label})"


def public_names() -> list[str]:
    """Return ``package.name`` of every public callable, as the packages list them."""
    import eigenheads

    found = []
    # Packages on the disk, because not all of them are attributes of the first one.
    library = sorted(module.name for module in iter_modules(eigenheads.__path__))
    for package in [*library, *PAPERS]:
        if package.startswith("_") or package in NOT_PUBLIC:
            continue
        try:
            module = importlib.import_module(
                PAPERS.get(package, f"eigenheads.{package}")
            )
        except ImportError:
            if HAS_TORCH:  # without it, some packages cannot be imported
                raise
            continue
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            is_error = isinstance(thing, type) and issubclass(thing, BaseException)
            is_ours = inspect.isfunction(thing) or isinstance(thing, type)
            if is_ours and not is_error and expected_targets(name, thing):
                found.append(f"{package}.{name}")
    return found


def expected_targets(public: str, thing: Any) -> set[str]:
    """Return the calls with arguments that a public name offers."""
    if not isinstance(thing, type):
        return {public} if inspect.signature(thing).parameters else set()
    found = {
        f"{public}.{name}"
        for name, function in _methods(thing)
        if name != "__init__" and len(inspect.signature(function).parameters) > 1
    }
    found -= INTERNAL
    is_made_by_callers = not _is_record(thing) and inspect.signature(thing).parameters
    return found | ({public} if is_made_by_callers else set())


def _is_record(thing: Any) -> bool:
    """Return whether a class only holds what functions return, and checks nothing.

    Its methods are swept like all others.
    """
    if not isinstance(thing, type):
        return False
    is_plain = dataclasses.is_dataclass(thing) and not hasattr(thing, "__post_init__")
    return is_plain or issubclass(thing, tuple)


def targets_of(name: str) -> tuple[list[Target], list[str]]:
    """Return right calls of a public name, and names of calls without an example.

    For a class, these are calls of the class and of its methods.
    """
    package, _, public = name.partition(".")
    module = importlib.import_module(PAPERS.get(package, f"eigenheads.{package}"))
    thing = getattr(module, public)
    recorded = _recorded_calls(module, name, thing)
    expected = expected_targets(public, thing)
    found = [target for label, target in recorded.items() if label in expected]
    if hasattr(thing, "get_params") and {public, f"{public}.fit"} <= set(recorded):
        found.append(_fit_of_parameters(recorded[public], recorded[f"{public}.fit"]))
    return found, sorted(expected - set(recorded))


def _fit_of_parameters(made: Target, fitted: Target) -> Target:
    """Return a fit with other parameters of the estimator, which only a fit reads."""

    def fit(**parameters: Any) -> Any:
        return made.call(**parameters).fit(**fitted.arguments)

    fit.__doc__ = inspect.getdoc(made.call)
    return Target(f"{made.name}(…).fit", fit, made.arguments)


def _recorded_calls(module: Any, full: str, thing: Any) -> dict[str, Target]:
    """Run the examples of a public name, and note the first right call of everything.

    Examples are those of `EXAMPLES`, its docstring, and the docstrings of its methods.
    """
    public = full.partition(".")[2]
    recorder = Recorder(public, thing)
    docs = [inspect.getdoc(thing) or ""]
    with contextlib.ExitStack() as stack:
        replaced = thing
        if isinstance(thing, type):
            for name, function in list(_methods(thing)):
                before = vars(thing).get(name)
                setattr(thing, name, recorder.method(name, function))
                stack.callback(_restore, thing, name, before)
                docs.append(inspect.getdoc(function) or "")
        else:
            replaced = recorder.noting(public, thing, "")
            setattr(module, public, replaced)
            stack.callback(setattr, module, public, thing)
        space = dict(vars(inspect.getmodule(thing) or module))
        space[public] = replaced
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        exec(compile(EXAMPLES.get(full, ""), f"<{full}>", "exec"), space)
        for doc in docs:
            for example in doctest.DocTestParser().get_examples(doc):
                with contextlib.suppress(Exception):
                    exec(compile(example.source, "<example>", "single"), space)
    return recorder.calls


class Recorder:
    """Wraps a public name, and notes the arguments of calls that return."""

    def __init__(self, public: str, thing: Any) -> None:
        self.public, self.thing = public, thing
        self.calls: dict[str, Target] = {}

    def method(self, name: str, function: Callable[..., Any]) -> Any:
        """Return a method of the class that notes its calls."""
        label = self.public if name == "__init__" else f"{self.public}.{name}"
        if isinstance(inspect.getattr_static(self.thing, name), classmethod):
            return classmethod(self.noting(label, function, "cls"))
        return self.noting(label, function, "self")

    def noting(self, name: str, function: Callable[..., Any], owner: str) -> Any:
        """Return the function; `owner` is the name of its first argument, if bound."""

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                bound = inspect.signature(function).bind(*args, **kwargs)
            except TypeError:
                return function(*args, **kwargs)
            arguments = {
                key: value if key == owner and name == self.public else _copy(value)
                for key, value in bound.arguments.items()
            }
            result = function(*args, **kwargs)
            if name not in self.calls:
                call: Callable[..., Any] = function
                first = arguments.pop(owner, None)
                if name == self.public and owner:
                    call = self.thing
                elif owner == "self":
                    call = functools.partial(_on_copy, function, first)
                elif owner:
                    call = functools.partial(function, self.thing)
                self.calls[name] = Target(name, call, _flat(function, arguments))
            return result

        return wrapper


def _methods(thing: type) -> Iterator[tuple[str, Any]]:
    """Yield public methods of ours, inherited ones too, and the constructor."""
    fields = getattr(thing, "__dataclass_fields__", {})
    for name in dir(thing):
        if name in fields:  # the default of a field may be a function
            continue
        function = inspect.getattr_static(thing, name)
        if isinstance(function, classmethod):
            function = function.__func__
        is_ours = str(getattr(function, "__module__", "")).startswith("eigenheads")
        is_public = name == "__init__" or not name.startswith("_")
        if inspect.isfunction(function) and is_ours and is_public:
            yield name, function


def _restore(thing: type, name: str, before: Any) -> None:
    if before is None:
        delattr(thing, name)
    else:
        setattr(thing, name, before)


def _flat(function: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return keyword arguments as names of their own; leave out *args."""
    flat = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            flat.update(arguments.get(name, {}))
        elif name in arguments and parameter.kind is not parameter.VAR_POSITIONAL:
            flat[name] = arguments[name]
        elif parameter.default is not parameter.empty and name not in ("self", "cls"):
            flat[name] = parameter.default
    return flat


def _on_copy(function: Any, instance: Any, **arguments: Any) -> Any:
    return function(_copy(instance), **arguments)


def _copy(value: Any) -> Any:
    """Return a copy, or the value itself if it contains what cannot be copied."""
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def cases_of(name: str, targets: list[Target], sample: int | None) -> list[Case]:
    """Return all cases of a public name, or a sample that is the same every time."""
    cases = [
        Case(target, parameter, hostile)
        for target in targets
        for parameter, given in target.arguments.items()
        if parameter not in NOT_SWEPT and not _is_ignored(target, parameter)
        for hostile in values_for(given, with_torch=HAS_TORCH)
        if not (hostile.label in LARGE and WORK.fullmatch(parameter))
    ]
    if sample is not None and len(cases) > sample:
        cases = random.Random(name).sample(cases, sample)
    return cases


def _is_ignored(target: Target, parameter: str) -> bool:
    """Return whether scikit-learn's interface has an argument that nothing reads."""
    return f"{parameter} : Ignored" in (inspect.getdoc(_function(target)) or "")


def _function(target: Target) -> Callable[..., Any]:
    call = target.call
    if not isinstance(call, functools.partial):
        return call
    return call.args[0] if call.func is _on_copy else call.func


def outcome(case: Case) -> str:
    """Make the call; return an empty text, or what is wrong with how it ended."""
    arguments = {key: _copy(value) for key, value in case.target.arguments.items()}
    arguments[case.parameter] = case.hostile.make()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = case.target.call(**arguments)
            if inspect.isgenerator(result):
                result = next(result, None)
    except Exception as error:
        if case.hostile.label in ("function", "class") and OWN_ERROR.fullmatch(
            str(error)
        ):
            return ""
        return _judge_error(error)
    numbers = numbers_in(result)
    finite = [bool(np.isfinite(number).all()) for number in numbers]
    is_blind = case.hostile.has_nan and numbers and all(finite)
    if is_blind and not DOCUMENTED.search(_about_parameter(case)):
        return "finite numbers from NaN"
    if not all(finite) and not DOCUMENTED.search(_documentation(case)):
        return "a result that is not finite, and not documented"
    return ""


def _documentation(case: Case) -> str:
    """Return the docstring and, for values out of range, that of the package."""
    call = _function(case.target)
    text = inspect.getdoc(call) or ""
    if isinstance(case.target.call, functools.partial):  # attributes that a fit sets
        owner = case.target.call.args[-1]
        text += inspect.getdoc(owner if isinstance(owner, type) else type(owner)) or ""
    if case.hostile.label in OUT_OF_RANGE:
        package = ".".join(call.__module__.split(".")[:2])
        text += importlib.import_module(package).__doc__ or ""
    return text


def _about_parameter(case: Case) -> str:
    """Return what the docstring says about the parameter that was replaced."""
    call = _function(case.target)
    docs = [inspect.getdoc(call) or ""]
    if isinstance(call, type):
        docs.append(inspect.getdoc(call.__init__) or "")
    found, is_own = [], False
    for line in "\n".join(docs).splitlines():
        if line and not line.startswith(" "):
            names = line.partition(" : ")[0].replace("*", "").split(", ")
            is_own = case.parameter in names
        elif is_own:
            found.append(line)
    return "\n".join(found)


def _judge_error(error: Exception) -> str:
    text = str(error)
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    if isinstance(error, ValueError | TypeError | ImportError | RuntimeError):
        if GRAMMAR.fullmatch(text) and text.isprintable():
            return ""
        if OTHER_SENTENCES.fullmatch(text):
            return ""
        if SKLEARN in last.filename:
            return ""
    ours = [f for f in frames if f"{os.sep}eigenheads{os.sep}" in f.filename]
    where = (ours or frames)[-1]
    place = f"{Path(where.filename).name}:{where.lineno}"
    return f"{type(error).__name__} at {place}: {' '.join(text.split())[:150]}"


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.environ["BROWSER"] = "true"
    if HAS_TORCH:  # now, and not in the time of the first case with a tensor
        import torch

        torch.set_num_threads(1)
    for line in sys.stdin:
        name, first, sample = json.loads(line)
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                targets, missing = targets_of(name)
            except Exception as error:
                targets, missing = [], [f"{name}: {error!r} in examples.py"]
            cases = cases_of(name, targets, sample)
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            answers.write(json.dumps(["missing", missing]) + "\n")
            for index in range(first, len(cases)):
                case = cases[index]
                answers.write(json.dumps(["begin", index, case.label]) + "\n")
                answers.write(json.dumps(["end", index, outcome(case)]) + "\n")
            answers.write(json.dumps(["done"]) + "\n")
            os.chdir("/")


if __name__ == "__main__":
    main()
