"""Report on a probed model: text for the terminal, and a self-contained page."""

import csv
import io
import sys
import textwrap
from os import PathLike
from pathlib import Path
from typing import IO, Any

import numpy as np
from jinja2 import Environment, PackageLoader

import eigenheads
from eigenheads._checks import (
    check_instance,
    check_path,
    check_text,
    escape_controls,
)
from eigenheads._files import write_atomically
from eigenheads._notebook import format_number
from eigenheads._plotting.heads import HeadMap, draw_head_maps, head_maps_size
from eigenheads._plotting.svg import data_address, render_svg
from eigenheads.probes import ModelProbe
from eigenheads.probes._findings import (
    findings,
    found_text,
    is_change,
    paragraph,
    questions,
)
from eigenheads.probes._nulls import NULL_TEXTS
from eigenheads.probes._result import LEVEL

_WIDTH = 80
_N_TOP = 5  # leading heads of a statistic in the page's tables
_COMPARISONS = {"greater": ">", "less": "<", "two-sided": "≠"}


def print_probe(probe: ModelProbe, *, title: str) -> None:
    """Print findings, a table by statistic and null, and a map of heads.

    Lines have at most 80 characters.
    """
    lines = [*_wrapped(title), ""]
    for note in probe.notes:
        lines += [*_wrapped(f"Note: {note}"), ""]
    lines += ["Findings", *_wrapped(paragraph(probe), first="  ", rest="  ")]
    lines += ["", *_summary_lines(probe), ""]
    if probe.contrasts:
        lines += [*_contrast_lines(probe), ""]
    lines += _map_lines(probe)
    sys.stdout.write("\n".join(lines) + "\n")


def write_probe(
    probe: ModelProbe, out: str | PathLike[str], *, title: str = "Probe of a model"
) -> Path:
    """Write page, rows, arrays and leading heads of a probe into a folder.

    They are ``probe.html``, ``probe.json``, ``probe.safetensors`` and ``heads.csv``.

    Parameters
    ----------
    probe
        Result of :func:`eigenheads.adapters.probe_model`.
    out
        Folder; created if necessary.
    title
        Of the page.

    Returns
    -------
    path
        Path of the page, one self-contained file.
    """
    check_instance("probe", probe, ModelProbe)
    root = check_path("out", out)
    check_text("title", title)
    probe.save(root / "probe.json")
    probe.save(root / "probe.safetensors")
    _write(root / "heads.csv", _top_heads_text(probe))
    path = root / "probe.html"
    _write(path, render_probe(probe, title=title))
    return path


def _write(path: Path, text: str) -> None:
    def write(file: IO[bytes]) -> None:
        file.write(text.encode())

    write_atomically(path, write)


def _top_heads_text(probe: ModelProbe) -> str:
    """Return all heads of each statistic as CSV, the leading ones first."""
    n_heads = next(iter(probe.statistics.values())).observed.size
    text = io.StringIO()
    writer: Any = None
    for name in probe.statistics:
        for rank, row in enumerate(probe.top_heads(name, n_heads), start=1):
            whole = {"statistic": name, "rank": rank, **row}
            if writer is None:
                writer = csv.DictWriter(text, list(whole), lineterminator="\n")
                writer.writeheader()
            writer.writerow(whole)
    return text.getvalue()


def render_probe(probe: ModelProbe, *, title: str) -> str:
    """Return the page as text."""
    environment = Environment(
        loader=PackageLoader("eigenheads.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = format_number
    environment.filters["found"] = found_text
    # In the order of first use.
    nulls = dict.fromkeys(
        n for statistic in probe.statistics.values() for n in statistic.nulls
    )
    return environment.get_template("probe.html.jinja").render(
        probe=probe,
        title=title,
        level=LEVEL,
        comparisons=_COMPARISONS,
        paragraph=paragraph(probe),
        findings=findings(probe),
        nulls={null: NULL_TEXTS.get(null, "") for null in nulls},
        questions=_questions(probe),
        contrasts=_contrasts(probe),
        heads=_rows_by_head(probe),
        version=eigenheads.__version__,
    )


def statistic_figure(probe: ModelProbe, statistic: str) -> bytes:
    """Return heat maps of one statistic as SVG: observed, then effects by null."""
    measured = probe[statistic]
    maps = [HeadMap("observed", measured.observed)]
    for null, values in measured.effect_size.items():
        is_found = probe.q_value(statistic, null) <= LEVEL
        title = f"sd from {null.replace('_', ' ')}"
        maps.append(HeadMap(title, values, is_found, is_effect=True))
    return _drawn(probe, maps)


def question_figure(probe: ModelProbe, statistics: list[str]) -> bytes:
    """Return heat maps as SVG, one per statistic; dots mark heads that stand out."""
    maps = [
        HeadMap(
            name.replace("_", " "), probe[name].observed, probe.stands_out(name, LEVEL)
        )
        for name in statistics
    ]
    return _drawn(probe, maps)


def _drawn(probe: ModelProbe, maps: list[HeadMap]) -> bytes:
    size, layers = head_maps_size(maps), probe.layers
    return render_svg(lambda figure: draw_head_maps(figure, maps, layers), size=size)


def _questions(probe: ModelProbe) -> list[dict[str, Any]]:
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in probe.statistics}
    for row in probe.summary(LEVEL):
        rows[row["statistic"]].append(row)
    listed = []
    for number, (question, names) in enumerate(questions(probe).items()):
        counts = "; ".join(
            f"{name.replace('_', ' ')}: {probe.stands_out(name, LEVEL).sum()} heads"
            for name in names
        )
        listed.append(
            {
                "id": f"question-{number}",
                "question": question,
                "figure": data_address(question_figure(probe, names)),
                "alt": f"Heat maps, layers by heads. Heads that stand out: {counts}.",
                "top": [
                    {
                        "name": name.replace("_", " "),
                        "heads": probe.top_heads(name, _N_TOP),
                    }
                    for name in names
                ],
                "sections": [_section(probe, name, rows[name]) for name in names],
            }
        )
    return listed


def _contrasts(probe: ModelProbe) -> list[dict[str, Any]]:
    """Return medians by statistic: those of the probe, then on other tokens."""
    rows: dict[str, dict[str, Any]] = {}
    for row in probe.contrast_rows():
        name = row["statistic"]
        cells = rows.setdefault(
            name,
            {"name": name.replace("_", " "), "median": row["median"], "others": []},
        )
        cells["others"].append({**row, "is_change": is_change(row)})
    return list(rows.values())


def _section(
    probe: ModelProbe, statistic: str, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    name = statistic.replace("_", "-")
    counts = "; ".join(f"{row['null']} {found_text(row)}" for row in rows)
    return {
        "id": name,
        "name": statistic.replace("_", " "),
        "about": probe[statistic].about,
        "rows": rows,
        "figure": data_address(statistic_figure(probe, statistic)),
        "alt": f"Heat maps of {statistic}. Heads that stand out: {counts}.",
        "n_found": int(probe.stands_out(statistic, LEVEL).sum()),
        "n_heads": int(np.isfinite(probe[statistic].observed).sum()),
    }


def _rows_by_head(probe: ModelProbe) -> list[dict[str, Any]]:
    """Return one row per head: observed numbers, with marks of those that stand out."""
    tables = {name: statistic.observed for name, statistic in probe.statistics.items()}
    marks = {name: probe.stands_out(name, LEVEL) for name in probe.statistics}
    return [
        {
            "layer": layer,
            "head": head,
            "cells": [
                (float(tables[name][i, head]), bool(marks[name][i, head]))
                for name in probe.statistics
            ],
        }
        for i, layer in enumerate(probe.layers)
        for head in range(next(iter(tables.values())).shape[1])
        if np.isfinite([table[i, head] for table in tables.values()]).any()
    ]


def _wrapped(text: str, *, first: str = "", rest: str = "") -> list[str]:
    # Titles and notes may contain names of files, so control characters are escaped.
    lines = textwrap.wrap(
        escape_controls(text), _WIDTH, initial_indent=first, subsequent_indent=rest
    )
    return lines or [""]


def _summary_lines(probe: ModelProbe) -> list[str]:
    """Return the table by statistic and null, at most 80 characters wide."""
    # Long names are cut, so that the columns add up to 80 characters.
    layout = "{:<21.21} {:>8} {:<22.22} {:>8} {:>5} {:>11}"
    lines = [
        layout.format("statistic", "median", "null", "median", "heads", "needs"),
        "-" * _WIDTH,
    ]
    last, n_heads = None, 0
    rows = probe.summary(LEVEL)
    for row in rows:
        # The name and the median of a statistic are shown in its first row only.
        is_new = row["statistic"] != last
        last, n_heads = row["statistic"], max(n_heads, row["n_heads"])
        lines.append(
            layout.format(
                last if is_new else "",
                _short(row["median"]) if is_new else "",
                f"{_COMPARISONS[row['alternative']]} {row['null']}",
                _short(row["null_median"]),
                "?" if row["n_found"] is None else row["n_found"],
                row["needs"],
            ).rstrip()
        )
    about = f"heads: those with q <= {LEVEL} against the null, of {n_heads}."
    if any(row["needs"] for row in rows):
        about += (
            " needs: cannot tell for some heads; so many draws can (--redraws for "
            "random values, keys and projections, otherwise --permutations), or copies "
            "(--untrained)."
        )
    if any(row["n_found"] is None for row in rows):
        about += " ?: cannot tell for any head."
    return lines + _wrapped(about)


def _short(number: float) -> str:
    """Return a number in at most 8 characters."""
    text = f"{number:.3g}"
    return text if len(text) <= 8 else f"{number:.1g}"


def _contrast_lines(probe: ModelProbe) -> list[str]:
    """Return the medians that change on other sets of tokens."""
    layout = "{:<22.22} {:>9} {:>9} {:>12}  {:<23.23}"
    lines = [
        layout.format("statistic", "median", "then", "rank corr.", "tokens").rstrip(),
        "-" * _WIDTH,
    ]
    rows = [row for row in probe.contrast_rows() if is_change(row)]
    for row in rows:
        numbers = (row["median"], row["other_median"], row["correlation"])
        shown = [_short(number) for number in numbers]
        lines.append(layout.format(row["statistic"], *shown, row["tokens"]).rstrip())
    lines += _wrapped(
        "Medians over heads that change by more than a tenth without these tokens"
        + (", and rank correlations over heads." if rows else ": none.")
    )
    return lines


def _map_lines(probe: ModelProbe) -> list[str]:
    """Return the number of statistics in which each head stands out, by layer."""
    # One number per head replaces a table of all statistics, which the page has.
    total = np.sum([probe.stands_out(n, LEVEL) for n in probe.statistics], axis=0)
    lines = ["Statistics in which a head stands out from its nulls, by layer and head"]
    for layer, row in zip(probe.layers, total, strict=True):
        cells = " ".join(f"{count:>2}" if count else " ." for count in row)
        lines += _wrapped(cells, first=f"  layer {layer:>3}  ", rest=" " * 13)
    return lines
