"""The report of reproductions: one HTML page with claims, figures and settings."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader

import eigenheads
from eigenheads.extend import (
    Got,
    check_choice,
    check_count,
    check_instance,
    check_items,
    check_path,
    fail,
    write_atomically,
)
from eigenheads.extend.drawing import data_address
from eigenheads_papers import (
    Claim,
    Experiment,
    Result,
    experiment_keys,
    get_experiment,
    stored_results,
)
from eigenheads_papers._claims import (
    count_outcomes,
    count_verdicts,
    format_expected,
    format_measured,
    is_judged,
)
from eigenheads_papers._registry import (
    PAPERS,
    PRESETS,
    command_name,
    explaining_errors,
    paper_of,
    preset_params,
    select_experiments,
)
from eigenheads_papers._run import stored_run
from eigenheads_papers._store import plain_params
from eigenheads_papers._untested import untested_claims

# Figures that are readable as thumbnails; for other papers the first figure is shown.
_THUMBNAILS = (
    "marion2025/any_dimension",
    "truong2026/phase_diagram",
    "saritas2025/gamma",
)


def write_report(
    out: str | PathLike[str] = "results",
    *,
    preset: str | None = None,
    seed: int | None = None,
    experiments: Sequence[str | Experiment[Any]] = (),
) -> Path:
    """Write ``report.html`` from the results in a folder, without simulating.

    Parameters
    ----------
    out
        Folder of results that `reproduce` wrote.
    preset, seed
        Show only results of this preset or seed. None shows the newest result of each
        key.
    experiments
        Experiments of your own whose results the page shows as well, or
        ``"module:object"``. Results of other keys are left out: nothing that a stored
        file names is imported.

    Returns
    -------
    path
        Path of the page: one file that needs no network.
    """
    if not isinstance(out, str | PathLike):
        fail("out", "the path of a folder", out)
    root = check_path("out", out)
    # Only an empty sequence means none: an array has no truth value.
    has_none = isinstance(experiments, Sequence) and not experiments
    users = [] if has_none else select_experiments(experiments)[0]
    if preset is not None:
        presets = [
            *PRESETS,
            *(name for experiment in users for name in experiment.presets),
        ]
        check_choice("preset", preset, list(dict.fromkeys(presets)))
    if seed is not None:
        check_count("seed", seed, minimum=0)
    results = newest_results(
        stored_results(root, experiments=users), preset=preset, seed=seed
    )
    if not results:
        hint = "Run `eigenheads reproduce` first."
        got = Got(f"{str(root)!r} without a matching one")
        contract = "a folder with results of `eigenheads reproduce`"
        fail("out", contract, got, hint=hint)
    page = render_report(results, experiments=users)
    path = root / "report.html"
    write_atomically(path, lambda file: _write(file, page.encode()))
    return path


def newest_results(
    results: Iterable[Result], *, preset: str | None = None, seed: int | None = None
) -> list[Result]:
    """Return the newest result of each key, in the order of the results."""
    newest: dict[str, Result] = {}
    for result in results:
        if preset not in (None, result.preset) or seed not in (None, result.seed):
            continue
        before = newest.get(result.key)
        if before is None or result.created >= before.created:
            newest[result.key] = result
    return list(newest.values())


def render_report(
    results: Iterable[Result], *, experiments: Iterable[Experiment[Any]] = ()
) -> str:
    """Return the report of results as HTML text.

    Parameters
    ----------
    results
        What :func:`~eigenheads_papers.reproduce` returned, or stored.
    experiments
        The experiments of your own among them.
    """
    environment = Environment(
        # The style sheet is that of the library's own pages.
        loader=ChoiceLoader(
            [
                PackageLoader("eigenheads_papers.report"),
                PackageLoader("eigenheads.report"),
            ]
        ),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["expectation"] = format_expected
    environment.filters["measurement"] = format_measured
    environment.tests["judged"] = is_judged
    listed = check_items("experiments", experiments, "experiments")
    users = {e.key: e for e in (get_experiment(each) for each in listed)}
    papers: dict[str, list[dict[str, Any]]] = {}
    results = check_items("results", results, "results")
    for result in results:
        check_instance("results", result, Result)
    # A claim counts for the paper that makes it, whatever experiment measures it.
    claims_of: dict[str, list[Claim]] = {}
    for claim in (claim for result in results for claim in result.claims):
        claims_of.setdefault(claim.paper, []).append(claim)
    for result in results:
        experiment = users.get(result.key) or get_experiment(result.key)
        section = _section(experiment, result)
        papers.setdefault(experiment.paper, []).append(section)
    return environment.get_template("report.html.jinja").render(
        papers=[
            {
                "paper": paper_of(sections[0]["experiment"]),
                "sections": sections,
                "shown": _thumbnail(sections),
                **_tally(key, sections, claims_of.get(key, []), users),
            }
            for key, sections in papers.items()
        ],
        version=eigenheads.__version__,
    )


def _section(experiment: Experiment[Any], result: Result) -> dict[str, Any]:
    name = result.key.replace("/", "-").replace("_", "-")
    is_current = result.version == experiment.version
    settings = _changed_settings(experiment, result)
    return {
        "id": name,
        "experiment": experiment,
        "result": result,
        "figure": data_address(result.figure),
        "finding": _finding(experiment.title, result.claims),
        "alt": _alt(experiment.title, result.claims),
        "is_current": is_current,
        "table": _table(experiment, result) if is_current else [],
        "settings": settings,
        "command": _command(experiment, result, settings),
    }


def _command(
    experiment: Experiment[Any], result: Result, settings: Sequence[str]
) -> str:
    """Return the command that makes a result; nothing if only Python can make it."""
    name = command_name(experiment)
    if not name:
        return ""
    words = [f"eigenheads reproduce {name}"]
    words += [f"--preset {shlex.quote(result.preset)} --seed {result.seed}"]
    words += [f"--set {shlex.quote(setting)}" for setting in settings]
    return " ".join(words)


def _changed_settings(experiment: Experiment[Any], result: Result) -> list[str]:
    """Return the parameters that differ from the preset, as ``--set`` reads them."""
    if all(map(is_judged, result.claims)) or result.preset not in experiment.presets:
        return []
    usual = preset_params(experiment, result.preset)
    # A run with real data has other parameters than one without, in the same preset.
    fuller = usual if experiment.with_data is None else experiment.with_data(usual)
    defaults = [plain_params(params) for params in (usual, fuller)]
    return [
        f"{name}={_setting(value)}"
        for name, value in result.params.items()
        if all(value != params.get(name) for params in defaults)
    ]


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_setting, value))
    return value if isinstance(value, str) else json.dumps(value)


def _table(experiment: Experiment[Any], result: Result) -> list[list[str]]:
    """Return the table that an experiment shows of its run, or nothing."""
    if experiment.tabulate is None:
        return []
    with explaining_errors(experiment):
        return experiment.tabulate(stored_run(experiment, result))


def _alt(title: str, claims: Iterable[Claim]) -> str:
    findings = "; ".join(
        f"{claim.statement}: {format_measured(claim)} "
        f"({claim.verdict if is_judged(claim) else claim.unjudged})"
        for claim in claims
    )
    return f"{title}. {findings}." if findings else f"{title}."


def _finding(title: str, claims: Sequence[Claim]) -> str:
    if not claims:
        return f"{title} (this run is too small to measure claims)"
    return f"{title}: {count_verdicts(claims)}"


def _thumbnail(sections: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the section whose drawing is the thumbnail of the paper."""
    readable = [section for section in sections if section["result"].key in _THUMBNAILS]
    return (readable or sections)[0]


def _tally(
    paper: str,
    sections: list[dict[str, Any]],
    claims: list[Claim],
    users: Mapping[str, Experiment[Any]],
) -> dict[str, Any]:
    """Count the paper's own claims, and our checks in its experiments, by kind."""
    measured = [claim for section in sections for claim in section["result"].claims]
    checks = [claim for claim in measured if claim.is_check]
    counts = count_outcomes([*claims, *checks] if paper else checks)
    keys = {*experiment_keys(), *users}
    return {
        "counts": counts,
        "untested": untested_claims(paper) if paper in PAPERS else (),
        "n_figures": sum(key.startswith(f"{paper}/") for key in keys),
        "n_changed": sum(claim.is_changed for claim in measured),
    }


def _write(file: Any, content: bytes) -> None:
    file.write(content)
