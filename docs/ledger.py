"""The numbers of README and docs, made from the records.

``python docs/ledger.py`` judges all claims again from the recorded tables and renews
the tables between ``<!-- ledger: … -->`` marks; ``--check`` tells whether that would
change a page. ``--collect RESULTS`` first takes the runs at preset paper in a folder of
results. ``--status`` runs preset smoke and tells which records differ from today's
code; after a deliberate change, ``--smoke KEY …`` renews these tables.
"""

import argparse
import csv
import io
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from eigenheads._files import write_arrays
from eigenheads_papers import Run, experiment_keys, get_experiment
from eigenheads_papers._claims import (
    count_outcomes,
    count_verdicts,
    format_expected,
    format_measured,
    is_judged,
)
from eigenheads_papers._core import experiment_rng
from eigenheads_papers._records import (
    MANIFEST,
    RECORDS,
    SMOKE,
    TABLE,
    read_record,
    read_records,
)
from eigenheads_papers._registry import get_paper
from eigenheads_papers._run import draw_experiment, stored_run
from eigenheads_papers._statistics import mean_estimate
from eigenheads_papers._store import (
    claim_to_json,
    load_result,
    params_from_json,
    plain_params,
)
from eigenheads_papers._untested import untested_claims
from eigenheads_papers.screening import images
from eigenheads_papers.teo2024 import robustness

ROOT = Path(__file__).resolve().parent.parent
DRAWINGS = ROOT / "docs" / "papers" / "drawings"
OVERVIEW = DRAWINGS / "overview.svg"
QUESTIONS = ROOT / "docs" / "papers" / "questions"
# Large figures stay out of the repository; these are shown in README and docs.
FIGURES = {
    "marion2025/fig4",
    "marion2025/any_dimension",
    "teo2024/finetune",
    "teo2024/robustness",
    "teo2024/sign",
    "teo2024/sparsity",
    "duranthon2026/training",
    "dohmatob2025/risk",
}
# Larger tables keep only the columns that their claims read, in bytes.
LARGE = 10**6
# Trained models of long runs that are not complete; see `keep_cells`.
CELLS = RECORDS / "cells"
_MARK = re.compile(
    r"(<!-- ledger: (?P<name>[\w./-]+) -->\n).*?(<!-- end of ledger -->)", re.DOTALL
)

# A number in a sentence: the key, and how the statement of its claim begins.
_NUMBER = re.compile(
    r"(<!-- (?P<key>[\w]+/[\w]+): (?P<start>[^>]+) -->)[^<]*(<!-- end -->)"
)


def pending():
    """Return the experiments without a record, except those of the user's models."""
    return [
        key
        for key in experiment_keys()
        if read_record(key) is None and not get_experiment(key).is_users
    ]


def claims():
    """Return the key and the claim of every line of the ledger.

    Figures that show one simulation twice repeat its claims. A statement with the same
    number, to two digits, is listed once, under the first of them.
    """
    lines = {}
    for record in read_records():
        for claim in record.claims:
            rounded = f"{claim.measured:.1e}"
            line = (claim.kind, claim.paper, claim.statement, claim.relation, rounded)
            lines.setdefault(line, (record.key, claim))
    return list(lines.values())


def claims_table(paper):
    """Return the claims that a paper makes, whatever experiment measures them.

    Only in the paper's own setting is a claim held or contradicted; what small models
    say stands in a column of its own.
    """
    rows = [
        (key, claim)
        for key, claim in claims()
        if claim.paper == paper and is_judged(claim)
    ]
    has_small = any(claim.kind == "small model" for _, claim in rows)
    names = ["key", "claim", "where", "expected", "ours", "verdict"]
    lines = [names + ["on small models"] * has_small]
    for key, claim in rows:
        verdict = (
            ["", _verdict(claim)] if claim.kind == "small model" else [_verdict(claim)]
        )
        line = [*_cells(key, claim, _cell(claim.where)), *verdict]
        lines.append(line + [""] * (len(lines[0]) - len(line)))
    return _table(lines)


def checks_table(paper, kind):
    """Return our checks of one kind in the experiments of a paper."""
    lines = checks(paper, kind)
    return _table(lines) if len(lines) > 1 else "None."


def checks(paper, kind):
    """Return a header and our checks of one kind in the experiments of a paper."""
    lines = [["key", "statement", "expected", "ours", "verdict"]]
    for key, claim in claims():
        of_paper = key.partition("/")[0] == paper
        if claim.kind == kind and of_paper and is_judged(claim):
            lines.append([*_cells(key, claim), _verdict(claim)])
    return lines


def unjudged():
    """Return a header and the numbers on models that say nothing, with the reason."""
    lines = [["key", "measured", "ours", "why not judged"]]
    for key, claim in claims():
        if not is_judged(claim):
            statement, _, ours = _cells(key, claim)[1:]
            lines.append([f"`{key}`", statement, ours, claim.unjudged])
    return lines


def question_files():
    """Return the files with all our questions and answers, which pages show."""
    papers = dict.fromkeys(key.partition("/")[0] for key in experiment_keys())
    tables = {paper: checks(paper, "question") for paper in papers}
    tables["unjudged"] = unjudged()
    return {
        QUESTIONS / f"{name}.csv": _csv(lines)
        for name, lines in tables.items()
        if len(lines) > 1
    }


def _csv(lines):
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(lines)
    return written.getvalue()


def key_table(name):
    """Return all rows of one experiment."""
    lines = [["statement", "expected", "ours", "verdict"]]
    lines += [
        [*_cells(key, claim)[1:], _verdict(claim)]
        for key, claim in claims()
        if key == name
    ]
    return _table(lines)


def _cells(key, claim, *where):
    expected = format_expected(claim).removeprefix("ours: ")
    return [
        f"`{key}`",
        _cell(claim.statement),
        *where,
        expected,
        format_measured(claim),
    ]


def _verdict(claim):
    return _cell(claim.verdict + (f" ({claim.note})" if claim.note else ""))


def _table(lines):
    """Return lines of cells as a table; columns of numbers are aligned right."""
    numbers = ("expected", "ours")
    rule = ["--:" if name in numbers else "---" for name in lines[0]]
    return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])


def _cell(text):
    return text.replace("|", "\\|").replace("*", "\\*")


def values_table(key):
    """Return accuracies by kind of attention, and paired differences with 95 %."""
    record = read_record(key)
    table = record.table()["accuracy"]
    if key == "teo2024/finetune":
        names, base = record.params["kinds"], 0
        parts = {"clean": table[:, 0], "corrupted": table[:, 1:].mean(axis=1)}
    else:
        params = params_from_json(get_experiment(key), record.params)
        of = robustness._measured(Run(params, record.table()))
        names, base = of.models, of.models.index("symmetric")
        shown = {"clean": "clean", "corruptions": "15 corruptions", "attack": "PGD"}
        parts = {
            title: np.array([of(part, name) for name in names])
            for part, title in shown.items()
        }
    lines = [[f"in percent (less {names[base]})", *parts]]
    for row, name in enumerate(names):
        cells = [f"{np.nanmean(values[row]):.1f}" for values in parts.values()]
        if row != base:
            gaps = [
                _with_interval(values[row] - values[base]) for values in parts.values()
            ]
            cells = [f"{mean} ({gap})" for mean, gap in zip(cells, gaps, strict=True)]
        lines.append([name, *cells])
    return _table(lines)


def screening_table(key):
    """Return what remedies change, in points with 95 %, by training and condition."""
    record = read_record(key)
    accuracy = record.table()["accuracy"]
    params = params_from_json(get_experiment(key), record.params)
    remedies = images.remedies(params)
    screen = f"screen {params.main_calibration}"
    columns = {
        "dropped: screen": ("dropped", screen),
        "dropped: oracle": ("dropped", "oracle"),
        "plain: screen": ("plain", screen),
        "plain: oracle": ("plain", "oracle"),
        "plain: imputed": ("plain", "impute"),
    }
    lines = [["in points", *columns]]
    for place, title in enumerate(map(images.TITLES.get, images.CONDITIONS)):
        cells = []
        for kind, remedy in columns.values():
            of_kind = accuracy[images.KINDS.index(kind), :, place]
            gaps = of_kind[:, remedies.index(remedy)] - of_kind[:, 0]
            cells.append("" if np.isnan(gaps).any() else _with_interval(gaps))
        lines.append([title, *cells])
    return _table(lines)


def _with_interval(values):
    """Return the mean of paired differences with half its 95 % interval."""
    half = mean_estimate(values[~np.isnan(values)]).interval(0.95)[1]
    mean = np.nanmean(values)
    return f"{mean:.2f} ± {half - mean:.2f}"


def figures_table():
    """Return one row per figure: key, source, verdicts, seconds."""
    rows = ["| key | what | verdicts | seconds |", "|---|---|---|--:|"]
    for record in read_records():
        source = get_experiment(record.key).source
        rows.append(
            f"| `{record.key}` | {source} | {count_verdicts(record.claims)} "
            f"| {record.seconds:.1f} |"
        )
    for key in pending():
        rows.append(f"| `{key}` | | not run at this preset yet | |")
    return "\n".join(rows)


def untested_table(paper):
    """Return the claims of a paper that are not testable here, and why."""
    rows = [
        "| of the paper | where | why not here | nearest |",
        "|---|---|---|---|",
    ]
    for item in untested_claims(paper):
        nearest = f"`{item.instead}`" if item.instead else "–"
        rows.append(
            f"| {_cell(item.claim)} | {_cell(item.source)} | {_cell(item.why)} "
            f"| {nearest} |"
        )
    return "\n".join(rows)


def papers_table(folder=""):
    """Return one row per paper: its claims by verdict, and our checks by kind."""
    names = ["paper", "held", "contradicted", "undecided"]
    names += ["small models: same, opposite, undecided", "not testable here"]
    names += ["theory against simulation", "our questions: yes, no, open"]
    lines = [names]
    for paper, numbers, n_untested in paper_counts():
        passed, n = numbers["theory"][0], sum(numbers["theory"])
        claimed = [*map(str, numbers["claim"]), _listed(numbers["small model"])]
        # Measurements of ours without a paper have checks only.
        has_claims = paper[-4:].isdigit()
        lines.append(
            [
                f"[{get_paper(paper).title}]({folder}{paper}.md)",
                *(claimed if has_claims else ["–"] * 4),
                str(n_untested) if has_claims else "–",
                f"{passed} of {n}" if n else "–",
                _listed(numbers["question"]),
            ]
        )
    return _table(lines)


def _listed(numbers):
    return ", ".join(map(str, numbers)) if any(numbers) else "–"


def paper_counts():
    """Return for each paper its claims and our checks by kind, and what is untested.

    Claims count for the paper that makes them, checks for the paper in whose
    experiments they are. A claim that small models measure is not counted again as not
    testable here.
    """
    rows = []
    for paper in dict.fromkeys(key.partition("/")[0] for key in experiment_keys()):
        numbers = count_outcomes(
            claim
            for key, claim in claims()
            if (claim.paper or key.partition("/")[0]) == paper
        )
        untested = [item for item in untested_claims(paper) if not item.on_small_models]
        rows.append((paper, numbers, len(untested)))
    return rows


def total_counts():
    """Return the counts of all papers together, by kind."""
    rows = [numbers for _, numbers, _ in paper_counts()]
    return {
        kind: [sum(one[kind][at] for one in rows) for at in range(3)]
        for kind in rows[0]
    }


def counts():
    """Return the counts of all papers together, in sentences for everybody."""
    total = total_counts()
    n_untested = sum(n for paper, _, n in paper_counts() if paper[-4:].isdigit())
    held, contradicted, undecided = total["claim"]
    same, opposite, unclear = total["small model"]
    agree, n = total["theory"][0], sum(total["theory"])
    yes, no, still_open = total["question"]
    return (
        f"Statements of the papers, measured in their own settings: {held} held, "
        f"{contradicted} contradicted, {undecided} undecided. Statements on large "
        "models, measured on small ones: "
        f"{same} point in the same direction, {opposite} in the opposite one, "
        f"{unclear} are undecided. Our simulations agree with theory in {agree} of "
        f"{n} checks. "
        f"Questions of ours: {yes} answered yes, {no} no, {still_open} open. "
        f"{n_untested} statements cannot be tested here."
    )


def table(name):
    """Return the table that a mark names."""
    if name == "papers":
        return papers_table()
    if name == "counts":
        return counts()
    if name.startswith("untested/"):
        return untested_table(name.partition("/")[2])
    kind, _, rest = name.partition("/")
    if kind == "values":
        is_screening = rest.startswith("screening/")
        return screening_table(rest) if is_screening else values_table(rest)
    if kind == "key":
        return key_table(rest)
    if kind == "checks":
        return checks_table(rest, "theory")
    return figures_table() if name == "figures" else claims_table(name)


def number(key, start):
    """Return the measured number of the one claim whose statement begins like this."""
    rows = [c for c in read_record(key).claims if c.statement.startswith(start)]
    if len({claim.statement for claim in rows}) != 1:
        raise ValueError(f"{key}: {len(rows)} statements begin with {start!r}")
    return format_measured(rows[0]).partition(", ")[0] + ")" * bool(rows[0].level)


def renewed(text):
    """Return a page with its tables and its numbers renewed."""
    text = _NUMBER.sub(
        lambda mark: f"{mark[1]}{number(mark['key'], mark['start'])}{mark[4]}", text
    )
    return _MARK.sub(lambda mark: f"{mark[1]}{table(mark['name'])}\n{mark[3]}", text)


def pages():
    """Return the pages with marks."""
    candidates = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        page
        for page in candidates
        if "_build" not in page.parts and _MARK.search(page.read_text())
    ]


def overview():
    """Return the drawing of the counts, paper by paper."""
    from figures.ledger import drawing

    return drawing(paper_counts(), counts())


def renewals():
    """Return the pages and the drawing that are not those of the records."""
    fresh = {page: renewed(page.read_text()) for page in pages()}
    fresh[OVERVIEW] = overview()
    fresh |= question_files()
    return {
        path: text
        for path, text in fresh.items()
        if not path.exists() or path.read_text() != text
    }


def smoke_table(key):
    """Return today's table at preset smoke."""
    experiment = get_experiment(key)
    return experiment.simulate(experiment.presets["smoke"], experiment_rng(key, 0))


def paper_params(key):
    """Return today's parameters at preset paper, with the data that it can have."""
    experiment = get_experiment(key)
    params = experiment.presets["paper"]
    return experiment.with_data(params) if experiment.with_data else params


def status():
    """Yield each key, and why its record is not that of today's code, or nothing."""
    for key in pending():
        yield key, "no record yet"
    for record in read_records():
        if record.params != plain_params(paper_params(record.key)):
            yield record.key, "recorded with other parameters"
        else:
            yield record.key, record.why_stale(smoke_table(record.key))


def renew_smoke(keys):
    """Write today's tables at preset smoke, and print how they differ."""
    for key in keys:
        today = smoke_table(key)
        print(f"{key}: {read_record(key).why_stale(today) or 'equal'}")
        write_arrays(RECORDS / key / SMOKE, today)


def collect(results, commit=None):
    """Take runs at preset paper: table, claims, smoke table and some figures.

    `commit` names the code that computed them, by default the last commit.
    """
    commit = commit or _last_commit()
    for path in sorted(results.glob("*/*/paper-seed0-*/manifest.json")):
        result = load_result(path.parent)
        key = result.key
        if result.params != plain_params(paper_params(key)):
            print(f"left out, other parameters than today's: {key}")
            continue
        folder = RECORDS / key
        earlier = read_record(key)
        is_same = earlier is not None and earlier.params == result.params
        experiment = get_experiment(key)
        table = kept_table(experiment, stored_run(experiment, result))
        write_arrays(folder / TABLE, table)
        write_arrays(folder / SMOKE, smoke_table(key))
        fields = {
            "key": key,
            "seed": result.seed,
            "params": result.params,
            "commit": commit,
            "version": result.version,
            "versions": result.versions,
            "created": result.created,
            # A run beside other programs takes longer than a quiet one.
            "seconds": min(result.seconds, earlier.seconds if is_same else math.inf),
            "tolerance": experiment.tolerance,
            "unstable": experiment.unstable,
            "claims": [claim_to_json(claim) for claim in result.claims],
        }
        _write_json(folder / MANIFEST, fields)
        if key in FIGURES:
            figure = draw_experiment(experiment, stored_run(experiment, result))
            (DRAWINGS / f"{key}.svg").write_bytes(figure)
        shutil.rmtree(CELLS / key, ignore_errors=True)
    read_record.cache_clear()


def kept_table(experiment, run):
    """Return the table of a run; of a large one, the columns that its claims read."""
    if sum(column.nbytes for column in run.table.values()) <= LARGE:
        return run.table
    watched = _Watched(run.table)
    experiment.check(Run(run.params, watched))
    return {name: run.table[name] for name in watched.read}


class _Watched(dict):
    """A table that notes which columns are read."""

    def __init__(self, table):
        super().__init__(table)
        self.read = set()

    def __getitem__(self, name):
        self.read.add(name)
        return super().__getitem__(name)


def _last_commit():
    done = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def judge_again():
    """Renew the claims of the records from their tables, where the rules changed."""
    for record in read_records():
        if record.without_table:
            continue
        path = RECORDS / record.key / MANIFEST
        fields = json.loads(path.read_text())
        claims = [claim_to_json(claim) for claim in record.judge_again()]
        if claims != fields["claims"]:
            print(f"judged again: {record.key}")
            _write_json(path, fields | {"claims": claims})
    read_record.cache_clear()


def _write_json(path, fields):
    text = json.dumps(fields, indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n")


def keep_cells(results, commit):
    """Copy the finished jobs of long runs that are not complete into the repository.

    A run of many hours then goes on on any machine, with the code of `commit`.
    """
    for jobs in sorted(results.glob("*/*/paper-seed0-*/jobs")):
        target = CELLS / jobs.relative_to(results)
        shutil.copytree(jobs, target, dirs_exist_ok=True)
        (target.parent / "commit").write_text(f"{commit}\n")
        print(f"{len([*target.iterdir()])} finished jobs: {target.relative_to(CELLS)}")


def restore_cells(results):
    """Copy committed jobs to where `eigenheads reproduce` finds them."""
    for jobs in sorted(CELLS.glob("*/*/*/jobs")):
        shutil.copytree(jobs, results / jobs.relative_to(CELLS), dirs_exist_ok=True)
        commit = (jobs.parent / "commit").read_text().strip()
        key = jobs.parent.parent.relative_to(CELLS)
        print(f"{key}: {len([*jobs.iterdir()])} finished jobs, of commit {commit}")


def main():
    """Renew, collect or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collect", type=Path, metavar="RESULTS")
    parser.add_argument("--commit", help="commit of the code that computed RESULTS")
    parser.add_argument("--smoke", nargs="+", metavar="KEY", help="renew smoke tables")
    parser.add_argument("--status", action="store_true", help="compare smoke tables")
    parser.add_argument("--check", action="store_true", help="only compare pages")
    parser.add_argument(
        "--keep-cells",
        type=Path,
        metavar="RESULTS",
        help="copy finished jobs of long runs into the repository",
    )
    parser.add_argument(
        "--restore-cells", type=Path, metavar="RESULTS", help="go on from these"
    )
    options = parser.parse_args()
    if options.keep_cells:
        keep_cells(options.keep_cells, options.commit or _last_commit())
    elif options.restore_cells:
        restore_cells(options.restore_cells)
    elif options.smoke:
        renew_smoke(options.smoke)
    elif options.status:
        for key, why in status():
            print(f"{key}: {why or 'current'}", flush=True)
    else:
        return _renew_pages(options)
    return 0


def _renew_pages(options):
    if options.collect:
        collect(options.collect, options.commit)
    if not options.check:
        judge_again()
    old = renewals()
    for path, text in old.items():
        print(f"{'out of date' if options.check else 'renewed'}: {path.name}")
        if not options.check:
            path.write_text(text)
    return 1 if old and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
