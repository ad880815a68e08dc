"""The report of reproductions: one HTML page with claims, figures and settings."""

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader
from markupsafe import Markup

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
from eigenheads.extend.drawing import embedded_svg
from eigenheads_papers import (
    Claim,
    Experiment,
    Result,
    experiment_keys,
    get_experiment,
    stored_results,
)
from eigenheads_papers._claims import (
    CHANGED_SETTING,
    count_verdicts,
    format_expected,
    format_measured,
)
from eigenheads_papers._registry import PRESETS, get_paper, preset_params
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
) -> Path:
    """Write ``report.html`` from the results in a folder, without simulating.

    Parameters
    ----------
    out
        Folder of results that `reproduce` wrote.
    preset, seed
        Show only results of this preset or seed. None shows the newest result of each
        key.

    Returns
    -------
    path
        Path of the page: one file that needs no network.
    """
    if not isinstance(out, str | PathLike):
        fail("out", "the path of a folder", out, owner="report")
    root = check_path("out", out, owner="report")
    if preset is not None:
        check_choice("preset", preset, PRESETS, owner="report")
    if seed is not None:
        check_count("seed", seed, owner="report", minimum=0)
    results = newest_results(stored_results(root), preset=preset, seed=seed)
    if not results:
        hint = "Run `eigenheads reproduce` first."
        got = Got(f"{str(root)!r} without a matching one")
        contract = "a folder with results of `eigenheads reproduce`"
        fail("out", contract, got, owner="report", hint=hint)
    page = render_report(results)
    path = root / "report.html"
    write_atomically(path, lambda file: _write(file, page.encode()))
    return path


def newest_results(
    results: Iterable[Result], *, preset: str | None = None, seed: int | None = None
) -> list[Result]:
    """Return the newest result of each registered key, in the order of the report."""
    newest: dict[str, Result] = {}
    for result in results:
        if preset not in (None, result.preset) or seed not in (None, result.seed):
            continue
        known = newest.get(result.key)
        if known is None or result.created >= known.created:
            newest[result.key] = result
    return [newest[key] for key in experiment_keys() if key in newest]


def render_report(results: Iterable[Result]) -> str:
    """Return the report of results as HTML text."""
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
    environment.tests["judged"] = _is_judged
    papers: dict[str, list[dict[str, Any]]] = {}
    results = check_items("results", results, "results", owner="render_report")
    for result in results:
        check_instance("results", result, Result, owner="render_report")
    # A claim counts for the paper that makes it, whatever experiment measures it.
    made: dict[str, list[Claim]] = {}
    for claim in (claim for result in results for claim in result.claims):
        made.setdefault(claim.paper, []).append(claim)
    for result in results:
        papers.setdefault(result.key.partition("/")[0], []).append(_section(result))
    return environment.get_template("report.html.jinja").render(
        papers=[
            {
                "paper": get_paper(key),
                "sections": sections,
                "shown": _thumbnail(sections),
                "untested": untested_claims(key),
                **_tally(key, sections, made.get(key, [])),
            }
            for key, sections in papers.items()
        ],
        version=eigenheads.__version__,
    )


def _section(result: Result) -> dict[str, Any]:
    experiment = get_experiment(result.key)
    name = result.key.replace("/", "-").replace("_", "-")
    svg = embedded_svg(result.figure, name)
    # The table at the top shows the same drawing again, as a thumbnail.
    svg = svg.replace("<svg", f'<svg id="{name}-drawing"', 1)
    is_current = result.version == experiment.version
    settings = _changed_settings(experiment, result)
    return {
        "id": name,
        "experiment": experiment,
        "result": result,
        "svg": Markup(svg),  # drawn here, from numbers alone
        "view_box": _view_box(svg),
        "finding": _finding(experiment.title, result.claims),
        "alt": _alt(experiment.title, result.claims),
        "is_current": is_current,
        "table": _table(experiment, result) if is_current else [],
        "settings": settings,
        "command": " ".join(
            [
                f"eigenheads reproduce {result.key}",
                f"--preset {result.preset} --seed {result.seed}",
                *(f"--set {shlex.quote(setting)}" for setting in settings),
            ]
        ),
    }


def _changed_settings(experiment: Experiment[Any], result: Result) -> list[str]:
    """Return the parameters that differ from the preset, as ``--set`` reads them."""
    if all(map(_is_judged, result.claims)):
        return []
    usual = preset_params(experiment, result.preset)
    # A run with real data has other parameters than one without, in the same preset.
    fuller = usual if experiment.with_data is None else experiment.with_data(usual)
    known = [plain_params(params) for params in (usual, fuller)]
    return [
        f"{name}={_setting(value)}"
        for name, value in result.params.items()
        if all(value != params.get(name) for params in known)
    ]


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_setting, value))
    return value if isinstance(value, str) else json.dumps(value)


def _is_judged(claim: Claim) -> bool:
    return claim.undecided != CHANGED_SETTING


def _table(experiment: Experiment[Any], result: Result) -> list[list[str]]:
    """Return the table that an experiment shows of its run, or nothing."""
    if experiment.tabulate is None:
        return []
    return experiment.tabulate(stored_run(result))


def _alt(title: str, claims: Iterable[Claim]) -> str:
    findings = "; ".join(
        f"{claim.statement}: {format_measured(claim)} "
        f"({claim.verdict if _is_judged(claim) else CHANGED_SETTING})"
        for claim in claims
    )
    return f"{title}. {findings}." if findings else f"{title}."


def _finding(title: str, claims: Sequence[Claim]) -> str:
    if not claims:
        return f"{title} (this run is too small to measure claims)"
    return f"{title}: {count_verdicts(claims)}"


def _view_box(svg: str) -> str:
    found = re.search(r'\bviewBox="([-\d. ]+)"', svg)
    return found.group(1) if found else ""


def _thumbnail(sections: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the section whose drawing is the thumbnail of the paper."""
    readable = [section for section in sections if section["result"].key in _THUMBNAILS]
    return (readable or sections)[0]


def _tally(
    paper: str, sections: list[dict[str, Any]], claims: list[Claim]
) -> dict[str, Any]:
    """Count the paper's own claims by verdict, and our checks apart from them."""
    claims = [claim for claim in claims if _is_judged(claim)]
    measured = [
        claim
        for section in sections
        for claim in section["result"].claims
        if _is_judged(claim)
    ]
    checks = [claim for claim in measured if claim.is_check]
    return {
        **{
            f"n_{verdict}": sum(claim.verdict == verdict for claim in claims)
            for verdict in ("held", "contradicted", "undecided")
        },
        "n_untestable": len(untested_claims(paper)),
        "n_checks": len(checks),
        "n_passed": sum(claim.verdict == "held" for claim in checks),
        "n_figures": sum(key.startswith(f"{paper}/") for key in experiment_keys()),
        "n_changed": sum(claim.is_changed for claim in measured),
        "seconds": sum(section["result"].seconds for section in sections),
    }


def _write(file: Any, content: bytes) -> None:
    file.write(content)
