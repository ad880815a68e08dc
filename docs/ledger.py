"""The numbers of README and docs, made from committed manifests.

``python docs/ledger.py`` renews the tables between ``<!-- ledger: … -->`` marks;
``--collect results`` first copies the manifests and figures of runs at preset paper;
``--status`` says for every record whether the present code computed it; ``--stale``
lists the keys for which it did not; ``--check`` tells whether a page is out of date.
The tests call it.
"""

import argparse
import hashlib
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEDGER = ROOT / "docs" / "papers" / "ledger"
OVERVIEW = LEDGER / "overview.svg"
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
VERDICTS = ("held", "contradicted", "undecided")
# Only runs that took longer may be taken from an earlier commit, in seconds.
LONG = 600
# Keys that show the table of another one. Run together, they only read it; alone, they
# take as long as that one.
SAME_TABLE = {
    f"saritas2025/{name}": "saritas2025/values"
    for name in ("norms", "eigenvalues", "gamma")
}
# Trained models of long runs that are not complete; see `keep_cells`.
CELLS = LEDGER / "cells"
# Prints a digest of the table of an experiment at preset smoke.
_SMOKE = """
import hashlib, sys
from eigenheads.experiments import get_experiment
from eigenheads.experiments._run import experiment_rng
key = sys.argv[1]
experiment = get_experiment(key)
table = experiment.simulate(experiment.presets["smoke"], experiment_rng(key, 0))
digest = hashlib.sha256()
for name in sorted(table):
    array = table[name]
    digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
print(digest.hexdigest())
"""
_MARK = re.compile(
    r"(<!-- ledger: (?P<name>[\w./-]+) -->\n).*?(<!-- end of ledger -->)", re.DOTALL
)


def pending():
    """Return the experiments whose run at preset paper is not committed yet."""
    from eigenheads.experiments import experiment_keys, get_experiment

    return [
        key
        for key in experiment_keys()
        if not (LEDGER / f"{key}.json").exists()
        # These judge models of the user, and have no record.
        and not get_experiment(key).is_users
    ]


def manifests(*, counted=True):
    """Return the committed manifests in the order of the report.

    Records of the format before the present rules of verdicts, or of other parameters
    than today's preset, are not counted.
    """
    from eigenheads.experiments import experiment_keys

    paths = [LEDGER / f"{key}.json" for key in experiment_keys()]
    every = [json.loads(path.read_text()) for path in paths if path.exists()]
    return [one for one in every if (not why_not_counted(one)) == counted]


def why_not_counted(manifest):
    """Return why a record does not count, or nothing."""
    from eigenheads.experiments._store import FORMAT

    if manifest["format"] != FORMAT:
        return "recorded before the present rules of verdicts"
    if manifest["params"] != paper_params(manifest["key"]):
        return "recorded with other parameters"
    return ""


def paper_params(key):
    """Return today's parameters at preset paper, with the data that it can have."""
    from eigenheads.experiments import get_experiment
    from eigenheads.experiments._store import plain_params

    experiment = get_experiment(key)
    params = experiment.presets["paper"]
    return plain_params(
        experiment.with_data(params) if experiment.with_data else params
    )


def claims():
    """Return the key and the claim of every line of the ledger.

    Figures that show one simulation twice repeat its claims; a claim with the same
    number is listed once, under the first of them.
    """
    from eigenheads.experiments._store import claim_from_json

    found = {}
    for manifest in manifests():
        for fields in manifest["claims"]:
            claim = claim_from_json(fields)
            line = (claim.paper, claim.statement, claim.relation, claim.measured)
            found.setdefault(line, (manifest["key"], claim))
    return list(found.values())


def claims_table(paper):
    """Return the claims that a paper makes, whatever experiment measures them."""
    own = [(key, claim) for key, claim in claims() if claim.paper == paper]
    return _table(own)


def checks_table(paper):
    """Return our checks in the experiments of a paper."""
    return _table(
        (key, claim)
        for key, claim in claims()
        if claim.is_check and key.partition("/")[0] == paper
    )


def _table(rows):
    from eigenheads.experiments._claims import format_expected, format_measured

    lines = ["| key | claim | expected | ours | verdict |", "|---|---|--:|--:|---|"]
    for key, claim in rows:
        expected = format_expected(claim).removeprefix("ours: ")
        verdict = claim.verdict + (f" ({claim.note})" if claim.note else "")
        lines.append(
            f"| `{key}` | {_cell(claim.statement)} | {expected} "
            f"| {format_measured(claim)} | {verdict} |"
        )
    return "\n".join(lines)


def _cell(text):
    return text.replace("|", "\\|").replace("*", "\\*")


def figures_table():
    """Return one row per figure: key, source, verdicts, seconds."""
    from eigenheads.experiments import get_experiment
    from eigenheads.experiments._claims import count_verdicts
    from eigenheads.experiments._store import claim_from_json

    rows = ["| key | what | verdicts | seconds |", "|---|---|---|--:|"]
    for manifest in manifests():
        found = [claim_from_json(fields) for fields in manifest["claims"]]
        source = get_experiment(manifest["key"]).source
        rows.append(
            f"| `{manifest['key']}` | {source} | {count_verdicts(found)} "
            f"| {manifest['seconds']:.1f} |"
        )
    for manifest in manifests(counted=False):
        why = why_not_counted(manifest)
        rows.append(f"| `{manifest['key']}` | | not counted: {why} | |")
    for key in pending():
        rows.append(f"| `{key}` | | not run at this preset yet | |")
    return "\n".join(rows)


def untested_table(paper):
    """Return the claims of a paper that are not testable here, and why."""
    from eigenheads.experiments._untested import untested_claims

    rows = [
        "| of the paper | where | why not here | nearest | where the data are |",
        "|---|---|---|---|---|",
    ]
    for item in untested_claims(paper):
        nearest = f"`{item.instead}`" if item.instead else "–"
        command = f"`{item.command}`" if item.command else "–"
        rows.append(
            f"| {_cell(item.claim)} | {_cell(item.source)} | {_cell(item.why)} "
            f"| {nearest} | {command} |"
        )
    return "\n".join(rows)


def papers_table(folder=""):
    """Return one row per paper: its claims by verdict, and our checks."""
    from eigenheads.experiments._registry import get_paper

    rows = [
        "| paper | held | contradicted | undecided | not testable here | our checks |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for paper, numbers, passed, n_checks in paper_counts():
        # Measurements of ours without a paper have checks only.
        counts = " | ".join(map(str, numbers)) if numbers else "– | – | – | –"
        rows.append(
            f"| [{get_paper(paper).title}]({folder}{paper}.md) | {counts} "
            f"| {passed} of {n_checks} |"
        )
    return "\n".join(rows)


def paper_counts():
    """Return for each paper its claims by verdict, and our checks.

    The last verdict is "not testable here". Measurements without a paper have no
    numbers of claims.
    """
    from eigenheads.experiments import experiment_keys
    from eigenheads.experiments._untested import untested_claims

    lines = claims()
    found = []
    for paper in dict.fromkeys(key.partition("/")[0] for key in experiment_keys()):
        own = Counter(claim.verdict for _, claim in lines if claim.paper == paper)
        checks = [
            claim.verdict == "held"
            for key, claim in lines
            if claim.is_check and key.partition("/")[0] == paper
        ]
        has_claims = paper[-4:].isdigit()
        numbers = [own[verdict] for verdict in VERDICTS] if has_claims else []
        if has_claims:
            numbers.append(len(untested_claims(paper)))
        found.append((paper, numbers, sum(checks), len(checks)))
    return found


def counts():
    """Return the two counts of all papers together, in words."""
    every = [numbers for _, numbers, _, _ in paper_counts() if numbers]
    names = (*VERDICTS, "not testable here")
    told = [
        f"{sum(one)} {name}"
        for one, name in zip(zip(*every, strict=True), names, strict=True)
    ]
    passed, n = (sum(row[at] for row in paper_counts()) for at in (2, 3))
    return f"On record: claims: {', '.join(told)}; our checks: {passed} of {n}."


def table(name):
    """Return the table that a mark names."""
    if name == "papers":
        return papers_table()
    if name == "counts":
        return counts()
    if name.startswith("untested/"):
        return untested_table(name.partition("/")[2])
    if name.startswith("key/"):  # all rows of one experiment
        own = name.removeprefix("key/")
        return _table((key, claim) for key, claim in claims() if key == own)
    if name.startswith("checks/"):
        return checks_table(name.partition("/")[2])
    return figures_table() if name == "figures" else claims_table(name)


def renewed(text):
    """Return a page with its tables renewed."""
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
    """Return the drawing of both counts, paper by paper."""
    from figures.ledger import drawing

    return drawing(paper_counts(), counts())


def renewals():
    """Return the pages and the drawing that are not those of the manifests."""
    fresh = {page: renewed(page.read_text()) for page in pages()}
    fresh[OVERVIEW] = overview()
    return {
        path: text
        for path, text in fresh.items()
        if not path.exists() or path.read_text() != text
    }


def smoke_digest(key, source=ROOT / "src"):
    """Return a digest of the table at preset smoke, by the code in a folder."""
    done = subprocess.run(
        [sys.executable, "-c", _SMOKE, key],
        env=os.environ | {"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()[-1]


def smoke_digest_at(key, commit):
    """Return the same of the code at an earlier commit."""
    packed = subprocess.run(
        ["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        return smoke_digest(key, Path(folder) / "src")


def why_stale(manifest):
    """Return why a record is not that of the present code, or nothing.

    A record of an earlier commit is current while the present code computes the same
    table at preset smoke.
    """
    from eigenheads.experiments._digest import claims_version, code_version

    key, why = manifest["key"], why_not_counted(manifest)
    if why:
        return why
    if manifest["code"] != code_version(key):
        if "smoke" not in manifest:
            return "the simulation changed"
        if manifest["smoke"] != smoke_digest(key):
            return "the simulation changed, and so did its table at preset smoke"
    if manifest.get("checking") != claims_version(key):
        return "the claims changed"
    return ""


def status():
    """Return for every key why its record is stale; nothing if it is current."""
    found = dict.fromkeys(pending(), "not run yet")
    for manifest in [*manifests(), *manifests(counted=False)]:
        found[manifest["key"]] = why_stale(manifest)
    return found


def stale(data=None):
    """Return the keys to run again here, and why; and those that cannot run here."""
    from eigenheads.experiments import get_experiment
    from eigenheads.experiments._data import using_data
    from eigenheads.experiments._run import obstacle

    again, elsewhere = {}, {}
    with using_data(data):
        for key, why in status().items():
            if not why:
                continue
            experiment = get_experiment(key)
            params = experiment.presets["paper"]
            if experiment.with_data:
                params = experiment.with_data(params)
            reason = obstacle(experiment, params)
            if reason:
                elsewhere[key] = f"{why}, and {reason}"
            else:
                again[key] = why
    return again, elsewhere


def collect(results, commit=None):
    """Copy the manifests, and some figures, of runs at preset paper.

    Results of other code are skipped. `commit` names the earlier commit that computed
    them: their tables are taken, with today's claims and drawing, if they took more
    than ten minutes and both commits compute the same table at preset smoke.
    """
    from eigenheads.experiments._digest import code_version

    found = results.glob("*/*/paper-seed0-*/manifest.json")
    # A table comes before the keys that show it.
    for path in sorted(
        found, key=lambda path: f"{path.parts[-4]}/{path.parts[-3]}" in SAME_TABLE
    ):
        manifest = json.loads(path.read_text())
        key = manifest["key"]
        target = LEDGER / f"{key}.json"
        manifest["seconds"] = _least_seconds(target, manifest)
        if manifest["code"] != code_version(key):
            if not commit or manifest["seconds"] < LONG:
                print(f"skipped, computed by other code: {key}")
                continue
            manifest, figure = _checked_again(path.parent, manifest, commit)
        else:
            figure = path.with_name("figure.svg").read_bytes()
        target.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False)
        target.write_text(text + "\n")
        if key in FIGURES:
            target.with_suffix(".svg").write_bytes(figure)
        shutil.rmtree(CELLS / key, ignore_errors=True)


def _least_seconds(record, manifest):
    """Return the time of a run, or that of the earlier record if it was shorter.

    A run beside other programs takes longer; the times are there to plan with.
    """
    if manifest["key"] in SAME_TABLE:
        shown = LEDGER / f"{SAME_TABLE[manifest['key']]}.json"
        return json.loads(shown.read_text())["seconds"]
    earlier = json.loads(record.read_text()) if record.exists() else manifest
    is_same = earlier["params"] == manifest["params"]
    return min(manifest["seconds"], earlier["seconds"] if is_same else math.inf)


def keep_cells(results, commit):
    """Copy the finished jobs of long runs that are not complete into the repository.

    A run of many hours then goes on on any machine, with the code of `commit`: the
    folder of a run is named after a digest of parameters and code.
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


def _checked_again(folder, manifest, commit):
    """Return a manifest and a figure of a stored table, by today's code."""
    from eigenheads._files import read_arrays
    from eigenheads.experiments import Run, get_experiment
    from eigenheads.experiments._digest import claims_version, drawing_version
    from eigenheads.experiments._run import draw_experiment
    from eigenheads.experiments._store import claim_to_json, plain_params

    experiment = get_experiment(manifest["key"])
    params = experiment.presets["paper"]
    if experiment.with_data:
        params = experiment.with_data(params)
    known = plain_params(params)
    same = {name: value for name, value in known.items() if name in manifest["params"]}
    if same != manifest["params"]:
        raise SystemExit(f"{manifest['key']}: other parameters than today's.")
    smoke = smoke_digest(manifest["key"])
    if smoke != smoke_digest_at(manifest["key"], commit):
        raise SystemExit(f"{manifest['key']}: another table at preset smoke.")
    run = Run(params, read_arrays(folder / "table.npz"))
    figure = draw_experiment(experiment, run)
    digests = {**manifest["sha256"], "figure.svg": hashlib.sha256(figure).hexdigest()}
    record = {
        **manifest,
        "format": "eigenheads-result/2",
        "params": known,
        "commit": commit,
        "smoke": smoke,
        "checking": claims_version(manifest["key"]),
        "drawing": drawing_version(manifest["key"]),
        "sha256": digests,
        "claims": [claim_to_json(claim) for claim in experiment.check(run)],
    }
    return record, figure


def write_catalogue(results):
    """Write columns and durations of the experiments for ``eigenheads describe``.

    Columns are those of the stored results, of any preset; seconds are those of the
    committed records.
    """
    import numpy as np

    from eigenheads.experiments import experiment_keys

    path = ROOT / "src" / "eigenheads" / "experiments" / "catalogue.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    catalogue = {}
    for key in experiment_keys():
        entry = dict(known.get(key, {}))
        for table in sorted(results.glob(f"{key}/*/table.npz")):
            with np.load(table) as arrays:
                entry["columns"] = sorted(arrays.files)
        record = LEDGER / f"{key}.json"
        if record.exists():
            entry["seconds"] = round(json.loads(record.read_text())["seconds"], 1)
        catalogue[key] = entry
    path.write_text(json.dumps(catalogue, indent=1) + "\n")


def main():
    """Renew, collect or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collect", type=Path, metavar="RESULTS")
    parser.add_argument(
        "--keep-cells",
        type=Path,
        metavar="RESULTS",
        help="copy finished jobs here; --commit names the code that computed them",
    )
    parser.add_argument(
        "--restore-cells", type=Path, metavar="RESULTS", help="go on from these"
    )
    parser.add_argument("--commit", help="take tables of this earlier commit")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--stale", action="store_true", help="list stale records")
    parser.add_argument("--data", help="folder of real data, with --stale")
    parser.add_argument("--status", action="store_true", help="tell of every record")
    parser.add_argument(
        "--catalogue", type=Path, metavar="RESULTS", help="renew catalogue.json"
    )
    options = parser.parse_args()
    if options.keep_cells or options.restore_cells:
        if options.keep_cells:
            keep_cells(options.keep_cells, options.commit)
        else:
            restore_cells(options.restore_cells)
        return 0
    if options.catalogue:
        write_catalogue(options.catalogue)
        return 0
    if options.status or options.stale:
        again, elsewhere = stale(options.data) if options.stale else (status(), {})
        for key, why in (again | elsewhere).items():
            print(f"{key}: {why or 'computed by this code'}", file=sys.stderr)
        if options.stale:
            print(" ".join(again))
        return 0
    if options.collect:
        collect(options.collect, options.commit)
    old = renewals()
    for path, text in old.items():
        print(f"{'out of date' if options.check else 'renewed'}: {path.name}")
        if not options.check:
            path.write_text(text)
    return 1 if old and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
