"""Sources that users name on the command line: models, callables and lists."""

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from eigenheads._checks import Got, as_float, fail

if TYPE_CHECKING:
    from eigenheads.adapters._load import LoadedModel
    from eigenheads.robustness import Robustness

# Owners in error messages: the names of the commands.
_PROBE, _ROBUSTNESS = "probe", "robustness"


def call_source(source: str, *, name: str) -> Any:
    """Call the function that `source` names, without arguments, and return its result.

    Parameters
    ----------
    source
        ``"module:callable"``; the module may be in the current folder. This runs the
        user's own code.
    name
        The argument, for error messages. An error in the user's code is
        reported in one sentence that names the line of code.

    Examples
    --------
    >>> call_source("string:Formatter", name="MODEL")
    <string.Formatter object at ...>
    >>> call_source("string:nothing", name="MODEL")
    Traceback (most recent call last):
    ...
    eigenheads._errors.UsageValueError:
    eigenheads: `MODEL` must be module:callable; got 'string:nothing', ...
    """

    def refuse(why: str, hint: str = "") -> NoReturn:
        got = Got(f"{source!r}{why}")
        fail(name, "module:callable", got, hint=hint)

    with _current_folder():
        function = _find(source, refuse)
        try:
            return function()
        except (Exception, SystemExit) as error:
            refuse(_describe_error(error))


def _find(source: str, refuse: Callable[..., NoReturn]) -> Callable[[], Any]:
    module, _, name = source.partition(":")
    if not (module and name):
        refuse("", "mymodels:trained means function `trained` in mymodels.py.")
    try:
        attribute = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        # Either this module or a package above it is missing. Otherwise the missing
        # module is one that the user's code imports.
        if error.name and f"{module}.".startswith(f"{error.name}."):
            refuse(f", and there is no module {error.name!r} here")
        refuse(_describe_error(error))
    except (Exception, SystemExit) as error:
        refuse(_describe_error(error))
    if attribute is None:
        refuse(f", and {module} has no {name!r}")
    if not callable(attribute):
        refuse(f", whose type is {type(attribute).__name__}")
    return attribute


def _describe_error(error: BaseException) -> str:
    """Return the error, and the line of the user's code that raised it."""
    said = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    here = Path(__file__).parents[1]
    # Frames of this package and of the import system do not help the user.
    theirs = [
        frame
        for frame in frames
        if here not in Path(frame.filename).parents
        and "importlib" not in frame.filename
    ]
    # Code in the current folder is preferred to libraries that it calls.
    ours = [
        frame
        for frame in theirs
        if Path.cwd() in Path(frame.filename).resolve().parents
    ]
    last = (ours or theirs)[-1:]
    where = "".join(f" ({Path(at.filename).name}, line {at.lineno})" for at in last)
    return f", which raised {type(error).__name__}: {said}{where}"


@contextmanager
def _current_folder() -> Iterator[None]:
    """Import from the current folder first, inside this context."""
    here = os.getcwd()  # noqa: PTH109 -- as Python puts it on the path
    sys.path.insert(0, here)
    # The caches may lack a file that was written after the program started.
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(here)


def load_model(
    spec: str, *, data: Path | None = None, max_length: int | None = None
) -> "LoadedModel":
    """Return the model that `spec` names, with a batch.

    Parameters
    ----------
    spec
        Folder of a Hugging Face model; or ``module:callable`` that returns
        ``(model, batch)``, which runs your own code.
    data, max_length
        Options of :func:`~eigenheads.adapters._load.load_folder`.
    """
    # Imported here: the command line must start without PyTorch.
    from eigenheads.adapters._load import MODEL_CONTRACT, load_folder

    is_callable = ":" in spec
    if not is_callable and not Path(spec).is_dir():
        hint = "Models are read from disk only. Download it first."
        got = Got(f"{spec!r}, which is not a folder")
        fail("MODEL", MODEL_CONTRACT, got, hint=hint)
    # A folder with a colon in its name is still a folder.
    if not is_callable or Path(spec).is_dir():
        return load_folder(Path(spec), data=data, max_length=max_length)
    for option, value in (("data", data), ("max_length", max_length)):
        if value is not None:
            hint = "The callable returns its own batch."
            contract = "left out for module:callable"
            fail(option, contract, str(value), hint=hint)
    return _from_callable(spec)


def _from_callable(spec: str) -> "LoadedModel":
    from eigenheads.adapters._load import LoadedModel

    pair = call_source(spec, name="MODEL")
    if not isinstance(pair, tuple) or len(pair) != 2:
        got = Got(f"{spec!r}, which returned {type(pair).__name__}")
        contract = "a callable that returns (model, batch)"
        fail("MODEL", contract, got)
    return LoadedModel(pair[0], pair[1], f"{spec}: {type(pair[0]).__name__}")


def parse_layers(text: str | None) -> list[int] | None:
    """Return layers from a string such as ``0,3-5``.

    Examples
    --------
    >>> parse_layers("0,3-5")
    [0, 3, 4, 5]
    """
    if text is None:
        return None
    layers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            contract = "indices and ranges such as 0,3-5"
            fail("layers", contract, text)
        stop = int(last) if dash else int(first)
        # The limit keeps a mistyped range from filling the memory.
        if stop > 10_000 or stop < int(first):
            fail("layers", "ranges from a layer to a later one", text)
        layers += range(int(first), stop + 1)
    return sorted(set(layers))


def evaluate_source(
    source: str,
    *,
    attacks: str | None = None,
    budgets: str | None = None,
    corruptions: str | None = None,
    severities: str | None = None,
    tokens: str | None = None,
    word: int | None = None,
    shares: str | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    progress: bool = False,
) -> "Robustness":
    """Call the function that `source` names, and evaluate the models it returns.

    Parameters
    ----------
    source
        ``"module:callable"``; the module may be in the current folder. It returns
        ``(models, data)``, or ``(models, data, options)`` with options of
        :func:`~eigenheads.robustness.evaluate_robustness`. Options given here override
        these.
    attacks, budgets, corruptions, severities, shares
        Values separated by commas.
    tokens, word, batch_size, seed, progress
        As in :func:`~eigenheads.robustness.evaluate_robustness`.

    Returns
    -------
    robustness
        The table.
    """
    from eigenheads.robustness import evaluate_robustness
    from eigenheads.robustness._evaluate import check_options

    # Options are read before the user's code runs, which may take long.
    given_here: dict[str, Any] = {
        "attacks": _given(attacks),
        "budgets": _numbers("budgets", budgets),
        "corruptions": None if corruptions == "all" else _given(corruptions),
        "severities": _whole_numbers("severities", severities),
        "shares": _numbers("shares", shares),
        "tokens": tokens,
        "word": word,
        "batch_size": batch_size,
        "seed": seed,
    }
    last = {name: value for name, value in given_here.items() if value is not None}
    check_options(last)
    returned = call_source(source, name="MODEL")
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        contract = "a callable that returns (models, data) or (models, data, options)"
        got = Got(f"{source!r}, which returned {type(returned).__name__}")
        fail("MODEL", contract, got)
    models, data, own_options = returned if len(returned) == 3 else (*returned, {})
    if not isinstance(own_options, Mapping):
        fail("options", "a mapping", own_options)
    return evaluate_robustness(
        models, data, **{"progress": progress, **own_options, **last}
    )


def _given(text: str | None) -> list[str] | None:
    return None if text is None else _listed(text)


def _listed(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    return [] if names == ["none"] else names


def _numbers(name: str, text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [as_float(float(part)) for part in _listed(text)]
    except ValueError:
        fail(name, "numbers separated by commas", text)


def _whole_numbers(name: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in _listed(text)]
    except ValueError:
        fail(name, "whole numbers separated by commas", text)
