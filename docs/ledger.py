"""The numbers of README and docs, made from committed manifests.

``python docs/ledger.py`` renews the tables between ``<!-- ledger: … -->`` marks;
``--collect results`` first copies the manifests and figures of a paper-scale run.
``--check`` only says whether a file is out of date. The tests call it.
"""

import argparse
import json
import re
import shutil
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEDGER = ROOT / "docs" / "papers" / "ledger"
# Large figures stay out of the repository; these are shown in README and docs.
FIGURES = {
    "marion2025/fig4",
    "marion2025/any_dimension",
    "teo2024/robustness",
}
_MARK = re.compile(
    r"(<!-- ledger: (?P<name>[\w./-]+) -->\n).*?(<!-- end of ledger -->)", re.DOTALL
)


def pending():
    """Return the experiments whose run at preset paper is not committed yet."""
    from eigenheads.experiments import experiment_keys

    return [key for key in experiment_keys() if not (LEDGER / f"{key}.json").exists()]


def manifests():
    """Return the committed manifests in the order of the report."""
    from eigenheads.experiments import experiment_keys

    paths = [LEDGER / f"{key}.json" for key in experiment_keys()]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def number(value):
    """Return a number as the report shows it."""
    from eigenheads.report._page import format_number

    return "not measured" if value is None else format_number(value)


def expectation(fields):
    """Return the expectation of a claim, as the report shows it."""
    from eigenheads.experiments import Claim
    from eigenheads.report._page import format_expected

    names = [name for name in fields if name != "verdict"]
    return format_expected(Claim(**{name: fields[name] for name in names}))


def claims_table(paper):
    """Return the claims of a paper as a Markdown table."""
    rows = ["| key | claim | expected | ours | verdict |", "|---|---|--:|--:|---|"]
    for manifest in manifests():
        if manifest["key"].partition("/")[0] != paper:
            continue
        for claim in manifest["claims"]:
            rows.append(
                f"| `{manifest['key']}` | {_cell(claim['statement'])} "
                f"| {expectation(claim)} "
                f"| {number(claim['measured'])} | {claim['verdict']} |"
            )
    return "\n".join(rows)


def _cell(text):
    return text.replace("|", "\\|").replace("*", "\\*")


def figures_table():
    """Return one row a reproduced figure: key, source, claims, seconds."""
    from eigenheads.experiments import get_experiment

    rows = ["| key | what | claims met | seconds |", "|---|---|--:|--:|"]
    for manifest in manifests():
        claims = manifest["claims"]
        met = sum(claim["verdict"] == "reproduced" for claim in claims)
        source = get_experiment(manifest["key"]).source
        rows.append(
            f"| `{manifest['key']}` | {source} | {met} of {len(claims)} "
            f"| {manifest['seconds']:.1f} |"
        )
    waiting = Counter(key.partition("/")[0] for key in pending())
    for paper, count in waiting.items():
        rows.append(f"| `{paper}/*` | {count} figures | not run at this preset yet | |")
    return "\n".join(rows)


def untested_table(paper):
    """Return what of a paper is not tested here, and why."""
    from eigenheads.experiments import untested_claims

    rows = ["| of the paper | where | why not here | nearest |", "|---|---|---|---|"]
    for item in untested_claims(paper):
        nearest = f"`{item.instead}`" if item.instead else "–"
        rows.append(
            f"| {_cell(item.claim)} | {_cell(item.source)} | {_cell(item.why)} "
            f"| {nearest} |"
        )
    return "\n".join(rows)


def papers_table(folder=""):
    """Return one row a paper: claims reproduced, not, and untestable here."""
    from eigenheads.experiments import get_paper, untested_claims

    rows = [
        "| paper | reproduced | not reproduced | untestable here | seconds |",
        "|---|--:|--:|--:|--:|",
    ]
    by_paper = {}
    for manifest in manifests():
        by_paper.setdefault(manifest["key"].partition("/")[0], []).append(manifest)
    waiting = Counter(key.partition("/")[0] for key in pending())
    for key, group in by_paper.items():
        rest = f", {waiting[key]} figures not run yet" if waiting[key] else ""
        claims = [claim for manifest in group for claim in manifest["claims"]]
        met = sum(claim["verdict"] == "reproduced" for claim in claims)
        unmeasured = sum(claim["measured"] is None for claim in claims)
        rows.append(
            f"| [{get_paper(key).title}]({folder}{key}.md){rest} | {met} "
            f"| {len(claims) - met - unmeasured} "
            f"| {unmeasured + len(untested_claims(key))} "
            f"| {sum(manifest['seconds'] for manifest in group):.0f} |"
        )
    return "\n".join(rows)


def table(name):
    """Return the table that a mark names."""
    if name == "papers":
        return papers_table()
    if name == "summary":  # as seen from README
        return papers_table("docs/papers/")
    if name.startswith("untested/"):
        return untested_table(name.partition("/")[2])
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


def out_of_date():
    """Return the pages whose tables are not those of the manifests."""
    return [page for page in pages() if renewed(page.read_text()) != page.read_text()]


def collect(results):
    """Copy the manifests, and some figures, of a run at preset paper."""
    from eigenheads.experiments import code_version

    for path in sorted(results.glob("*/*/paper-seed0-*/manifest.json")):
        manifest = json.loads(path.read_text())
        key = manifest["key"]
        if manifest["code"] != code_version(key.partition("/")[0]):
            continue
        target = LEDGER / f"{key}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
        if key in FIGURES:
            shutil.copy(path.with_name("figure.svg"), target.with_suffix(".svg"))


def main():
    """Renew, collect or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collect", type=Path, metavar="RESULTS")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.collect:
        collect(options.collect)
    stale = out_of_date()
    for page in stale:
        print(f"{'out of date' if options.check else 'renewed'}: {page.name}")
        if not options.check:
            page.write_text(renewed(page.read_text()))
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
