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
NOT_PUBLIC = {"cli"}
# Names for messages, which are texts of our own.
NOT_SWEPT = {"owner", "name"}
# Sizes of a computation: a large number is a valid request that takes long.
WORK = re.compile(r"n_\w+|max_iter|batch_size|jobs|repeats|d|count|seeds")
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
    for package in sorted(one.name for one in iter_modules(eigenheads.__path__)):
        if package.startswith("_") or package in NOT_PUBLIC:
            continue
        try:
            module = importlib.import_module(f"eigenheads.{package}")
        except ImportError:  # needs PyTorch
            continue
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            is_error = isinstance(thing, type) and issubclass(thing, BaseException)
            is_ours = inspect.isfunction(thing) or isinstance(thing, type)
            if is_ours and not is_error and not _is_record(thing):
                found.append(f"{package}.{name}")
    return found


def _is_record(thing: Any) -> bool:
    """Return whether a class only holds what functions return, and checks nothing."""
    if not isinstance(thing, type):
        return False
    is_plain = dataclasses.is_dataclass(thing) and not hasattr(thing, "__post_init__")
    return is_plain or issubclass(thing, tuple)


def targets_of(name: str) -> list[Target]:
    """Return right calls of a public name and, for a class, of its methods."""
    package, _, public = name.partition(".")
    module = importlib.import_module(f"eigenheads.{package}")
    thing = getattr(module, public)
    recorded = _recorded_calls(module, public, thing)
    own = inspect.signature(thing).parameters
    if public not in recorded:
        fallback = {
            key: None if p.default is p.empty else p.default
            for key, p in own.items()
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        }
        recorded[public] = Target(public, thing, fallback)
    return list(recorded.values())


def _recorded_calls(module: Any, public: str, thing: Any) -> dict[str, Target]:
    """Run the examples of a docstring, and note the first right call of everything."""
    calls: dict[str, Target] = {}

    def noting(name: str, function: Callable[..., Any], is_method: bool) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                bound = inspect.signature(function).bind(*args, **kwargs)
                arguments = copy.deepcopy(dict(bound.arguments))
            except Exception:
                return function(*args, **kwargs)
            result = function(*args, **kwargs)
            if name not in calls:
                call = function
                if name == public and is_method:
                    arguments.pop("self", None)
                    call = thing
                elif is_method:
                    call = functools.partial(_on_copy, function, arguments.pop("self"))
                calls[name] = Target(name, call, _flat(function, arguments))
            return result

        return wrapper

    with contextlib.ExitStack() as stack:
        if isinstance(thing, type):
            for name, function in _methods(thing):
                label = public if name == "__init__" else f"{public}.{name}"
                setattr(thing, name, noting(label, function, True))
                stack.callback(_restore, thing, name, function)
            replaced = thing
        else:
            replaced = noting(public, thing, False)
            setattr(module, public, replaced)
            stack.callback(setattr, module, public, thing)
        space = dict(vars(inspect.getmodule(thing) or module))
        space[public] = replaced
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        parsed = doctest.DocTestParser().get_examples(inspect.getdoc(thing) or "")
        for example in parsed:
            with contextlib.suppress(Exception):
                exec(compile(example.source, "<example>", "single"), space)
    return calls


def _methods(thing: type) -> Iterator[tuple[str, Any]]:
    for name, function in vars(thing).items():
        if inspect.isfunction(function) and (
            name == "__init__" or not name.startswith("_")
        ):
            yield name, function


def _restore(thing: type, name: str, function: Any) -> None:
    setattr(thing, name, function)


def _flat(function: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return keyword arguments as names of their own; leave out *args."""
    flat = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            flat.update(arguments.get(name, {}))
        elif name in arguments and parameter.kind is not parameter.VAR_POSITIONAL:
            flat[name] = arguments[name]
        elif parameter.default is not parameter.empty and name != "self":
            flat[name] = parameter.default
    return flat


def _on_copy(function: Any, instance: Any, **arguments: Any) -> Any:
    return function(copy.deepcopy(instance), **arguments)


def cases_of(name: str, sample: int | None) -> list[Case]:
    """Return all cases of a public name, or a sample that is the same every time."""
    cases = [
        Case(target, parameter, hostile)
        for target in targets_of(name)
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
    return call.args[0] if isinstance(call, functools.partial) else call


def outcome(case: Case) -> str:
    """Make the call; return an empty text, or what is wrong with how it ended."""
    arguments = _copied(case.target.arguments)
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
        text += inspect.getdoc(type(case.target.call.args[1])) or ""
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


def _copied(arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        return copy.deepcopy(arguments)
    except Exception:
        return dict(arguments)


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
            cases = cases_of(name, sample)
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            answers.write(json.dumps(["cases", len(cases)]) + "\n")
            for index in range(first, len(cases)):
                case = cases[index]
                answers.write(json.dumps(["begin", index, case.label]) + "\n")
                answers.write(json.dumps(["end", index, outcome(case)]) + "\n")
            answers.write(json.dumps(["done"]) + "\n")
            os.chdir("/")


if __name__ == "__main__":
    main()
