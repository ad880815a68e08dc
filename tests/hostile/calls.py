"""Right calls of every public name, and what becomes of them with a hostile argument.

Run as a program, this is the process that makes the calls, so that a crash or a hang
ends only itself: it reads one request per line, ``[name, first case, sample]``, and
answers with one line before each call and one after it.
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
import signal
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
from tests.hostile.files import GRAMMAR
from tests.hostile.values import Hostile, numbers_in, values_for

MEMORY = 4 * 2**30
# Processor time that a call may take, and time by the clock if it only waits.
SECONDS, WAITING_SECONDS = 10.0, 60.0
HAS_TORCH = importlib.util.find_spec("torch") is not None
OTHER_SENTENCES = re.compile(
    r".+ is not installed\. Run `.+`\.|store: .+"
    # This sentence is what scikit-learn's checks of estimators demand.
    r"|.+ requires y to be passed, but the target y is None\."
)
DOCUMENTED = re.compile(r"\bNaN\b|\bnan\b|infinit|\binf\b")
OUT_OF_RANGE = re.compile(r".*1e-?(308|300|200)|-?inf|huge")
# The command line has tests of its own; the parts for packages that build on the
# library are called by these, not by users.
NOT_PUBLIC = {"cli", "extend"}
# Packages of the papers, by their name in the sweep.
PAPERS = {
    "papers": "eigenheads_papers",
    "recipes": "eigenheads_papers.recipes",
    "ledger": "eigenheads_papers.report",
}
# Names for messages, which are texts of our own.
NOT_SWEPT = {"name"}
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
# scikit-learn's own checks prescribe messages about arguments of estimators.
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


# --- Public names and their right calls ----------------------------------------------


def _package(name: str) -> Any:
    return importlib.import_module(PAPERS.get(name, f"eigenheads.{name}"))


def public_names() -> list[str]:
    """Return ``package.name`` of every public callable, as the packages list them."""
    import eigenheads

    names = []
    # Packages on the disk, because not all of them are attributes of the first one.
    library = sorted(module.name for module in iter_modules(eigenheads.__path__))
    for package in [*library, *PAPERS]:
        if package.startswith("_") or package in NOT_PUBLIC:
            continue
        try:
            module = _package(package)
        except ImportError:
            if HAS_TORCH:  # without it, some packages cannot be imported
                raise
            continue
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            is_error = isinstance(thing, type) and issubclass(thing, BaseException)
            is_ours = inspect.isfunction(thing) or isinstance(thing, type)
            if is_ours and not is_error and _expected(name, thing):
                names.append(f"{package}.{name}")
    return names


def _expected(public: str, thing: Any) -> set[str]:
    """Return the calls with arguments that a public name offers."""
    if not isinstance(thing, type):
        return {public} if inspect.signature(thing).parameters else set()
    calls = {
        f"{public}.{name}"
        for name, function in _methods(thing)
        if name != "__init__" and len(inspect.signature(function).parameters) > 1
    }
    # A record only holds what functions return, and checks nothing.
    is_plain = dataclasses.is_dataclass(thing) and not hasattr(thing, "__post_init__")
    is_record = is_plain or issubclass(thing, tuple)
    is_made_by_callers = not is_record and inspect.signature(thing).parameters
    return (calls - INTERNAL) | ({public} if is_made_by_callers else set())


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


def targets_of(name: str) -> tuple[list[Target], list[str]]:
    """Return right calls of a public name, and names of calls without an example.

    For a class, these are calls of the class and of its methods.
    """
    package, _, public = name.partition(".")
    thing = getattr(_package(package), public)
    recorded = _recorded_calls(_package(package), name, thing)
    expected = _expected(public, thing)
    targets = [target for label, target in recorded.items() if label in expected]
    if hasattr(thing, "get_params") and {public, f"{public}.fit"} <= set(recorded):
        targets.append(_fit_of_parameters(recorded[public], recorded[f"{public}.fit"]))
    return targets, sorted(expected - set(recorded))


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
    calls: dict[str, Target] = {}
    docs = [inspect.getdoc(thing) or ""]
    with contextlib.ExitStack() as stack:
        replaced = thing
        if isinstance(thing, type):
            for name, function in list(_methods(thing)):
                label = public if name == "__init__" else f"{public}.{name}"
                is_of_class = isinstance(
                    inspect.getattr_static(thing, name), classmethod
                )
                bound = "cls" if is_of_class else "self"
                noting = _noting(calls, label, function, bound, thing)
                before = vars(thing).get(name)
                setattr(thing, name, classmethod(noting) if is_of_class else noting)
                restore = functools.partial(setattr, thing, name, before)
                forget = functools.partial(delattr, thing, name)
                stack.callback(forget if before is None else restore)
                docs.append(inspect.getdoc(function) or "")
        else:
            replaced = _noting(calls, public, thing, "", thing)
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
    return calls


def _noting(
    calls: dict[str, Target], label: str, function: Any, bound: str, thing: Any
) -> Any:
    """Return a function that notes its first right call.

    `bound` is the name of its first argument if it is a method, and `thing` its class.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            given = inspect.signature(function).bind(*args, **kwargs).arguments
        except TypeError:
            return function(*args, **kwargs)
        is_made = bool(bound) and label == thing.__name__  # a call of the class itself
        before = {
            key: value if key == bound and is_made else _copy(value)
            for key, value in given.items()
        }
        result = function(*args, **kwargs)
        first = before.pop(bound, None)
        call: Callable[..., Any] = function
        if is_made:
            call = thing
        elif bound == "self":
            call = functools.partial(_on_copy, function, first)
        elif bound:
            call = functools.partial(function, thing)
        calls.setdefault(label, Target(label, call, _flat(function, before)))
        return result

    return wrapper


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


# --- Hostile calls and how they end --------------------------------------------------


def cases_of(name: str, targets: list[Target], sample: int | None) -> list[Case]:
    """Return all cases of a public name, or a sample that is the same every time."""
    cases = [
        Case(target, parameter, hostile)
        for target in targets
        for parameter, right in target.arguments.items()
        # scikit-learn's interface has arguments that nothing reads.
        if parameter not in NOT_SWEPT
        and f"{parameter} : Ignored" not in (inspect.getdoc(_function(target)) or "")
        for hostile in values_for(right, with_torch=HAS_TORCH)
        if not (hostile.label in LARGE and WORK.fullmatch(parameter))
    ]
    if sample is not None and len(cases) > sample:
        cases = random.Random(name).sample(cases, sample)
    return cases


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
        is_callable = case.hostile.label in ("function", "class")
        if is_callable and OWN_ERROR.fullmatch(str(error)):
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
    if OUT_OF_RANGE.fullmatch(case.hostile.label):
        package = ".".join(call.__module__.split(".")[:2])
        text += importlib.import_module(package).__doc__ or ""
    return text


def _about_parameter(case: Case) -> str:
    """Return what the docstring says about the parameter that was replaced."""
    call = _function(case.target)
    docs = [inspect.getdoc(call) or ""]
    if isinstance(call, type):
        docs.append(inspect.getdoc(call.__init__) or "")
    lines, is_meant = [], False
    for line in "\n".join(docs).splitlines():
        if line and not line.startswith(" "):
            names = line.partition(" : ")[0].replace("*", "").split(", ")
            is_meant = case.parameter in names
        elif is_meant:
            lines.append(line)
    return "\n".join(lines)


def _judge_error(error: Exception) -> str:
    text, frames = str(error), traceback.extract_tb(error.__traceback__)
    if isinstance(error, ValueError | TypeError | ImportError | RuntimeError):
        if GRAMMAR.fullmatch(text) and text.isprintable():
            return ""
        if OTHER_SENTENCES.fullmatch(text) or SKLEARN in frames[-1].filename:
            return ""
    ours = [f for f in frames if f"{os.sep}eigenheads{os.sep}" in f.filename]
    where = (ours or frames)[-1]
    place = f"{Path(where.filename).name}:{where.lineno}"
    return f"{type(error).__name__} at {place}: {' '.join(text.split())[:150]}"


def _limit(seconds: float, waiting: float) -> None:
    """End this process by a signal unless it comes back in time; 0 lifts the limit."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, waiting)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.environ["BROWSER"] = "true"
    if HAS_TORCH:  # now, and not in the time of the first case with a tensor
        importlib.import_module("torch").set_num_threads(1)
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
                answers.write(json.dumps(["begin", index, cases[index].label]) + "\n")
                _limit(SECONDS, WAITING_SECONDS)
                wrong = outcome(cases[index])
                _limit(0.0, 0.0)
                answers.write(json.dumps(["end", index, wrong]) + "\n")
            answers.write(json.dumps(["done"]) + "\n")
            os.chdir("/")


if __name__ == "__main__":
    main()
