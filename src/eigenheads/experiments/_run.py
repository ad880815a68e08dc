"""Runs experiments into a store: what is there is reused, the rest computed."""

import hashlib
import platform
import time
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from eigenheads._checks import Got, check_count, fail
from eigenheads._parallel import reporting, threads
from eigenheads.experiments._core import Experiment, Result, Table
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
from eigenheads.plotting import render_svg

_LIBRARIES = ("numpy", "scipy", "numba", "scikit-learn")


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


def reproduce(
    keys: str | Sequence[str] = "all",
    *,
    preset: str = "demo",
    seed: int = 0,
    out: str | PathLike[str] = "results",
    jobs: int | None = None,
    force: bool = False,
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
        Folder of results. What is whole there is reused.
    jobs
        Threads; by default the cores of this machine. Never changes a result.
    force
        Compute again also what is there, or is damaged.
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
    seed = check_count("seed", seed, owner="reproduce", minimum=0)
    chosen = [
        (experiment, preset_params(experiment, preset))
        for experiment in map(
            get_experiment, select_keys([keys] if isinstance(keys, str) else keys)
        )
    ]
    root = _writable(Path(out))
    listener.begin(sum(experiment.work(params) for experiment, params in chosen))
    limit = nullcontext() if jobs is None else threads(_jobs(jobs))
    with limit, reporting(listener.advance):
        return [
            _reproduce_one(experiment, params, preset, seed, root, force, listener)
            for experiment, params in chosen
        ]


def _reproduce_one(
    experiment: Experiment[Any],
    params: Any,
    preset: str,
    seed: int,
    root: Path,
    force: bool,
    listener: Listener,
) -> Result:
    listener.start(experiment.key, experiment.work(params))
    plain, code = plain_params(params), code_version(experiment.paper)
    folder = result_folder(
        root, key=experiment.key, preset=preset, seed=seed, params=plain, code=code
    )
    result = None if force else _load(folder, experiment.key, plain)
    if result is None:
        result = _compute(experiment, params, preset, seed, plain, code)
        save_result(folder, result)
    listener.finish(result)
    return result


def _load(folder: Path, key: str, params: dict[str, Any]) -> Result | None:
    result = load_result(folder)
    if result is not None and (result.key, result.params) != (key, params):
        raise StoreError(
            f"store: `{folder}` must be the result of {key}; got one of {result.key} "
            "or of other parameters. Run `eigenheads reproduce` with --force to "
            "compute it again, or remove the folder."
        )
    return result


def _compute(
    experiment: Experiment[Any],
    params: Any,
    preset: str,
    seed: int,
    plain: dict[str, Any],
    code: str,
) -> Result:
    begin = time.perf_counter()
    table = experiment.simulate(params, experiment_rng(experiment.key, seed))
    seconds = time.perf_counter() - begin
    return Result(
        key=experiment.key,
        preset=preset,
        seed=seed,
        params=plain,
        code=code,
        table=table,
        claims=tuple(experiment.check(params, table)),
        seconds=seconds,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=_versions(),
        figure=draw_experiment(experiment, params, table),
        drawing=drawing_version(),
    )


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
    libraries = {name: version(name) for name in _LIBRARIES}
    return {"python": platform.python_version(), **libraries}


def _jobs(jobs: int) -> int:
    return check_count("jobs", jobs, owner="reproduce")


def _writable(root: Path) -> Path:
    try:
        root.mkdir(parents=True, exist_ok=True)
        trial = root / f".writable-{time.time_ns()}"
        trial.touch()
        trial.unlink()
    except OSError as error:
        got = Got(f"{str(root)!r} ({error.strerror})")
        fail("out", "a folder that can be written", got, owner="reproduce")
    return root
