"""A probed model: a table in the terminal, a self-contained page with heat maps."""

import sys
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from rich import box
from rich.console import Console
from rich.table import Table

import eigenheads
from eigenheads._files import write_atomically
from eigenheads._plotting.heads import HeadMap, draw_head_maps, head_maps_size
from eigenheads._plotting.svg import embedded_svg, render_svg
from eigenheads.report._page import format_number
from eigenheads.report._terminal import terminal_text

if TYPE_CHECKING:
    from eigenheads.probes import ModelProbe

_PIPED_WIDTH = 160
_LEVEL = 0.05
# At most so many statistics go beside each other in a terminal.
_N_COLUMNS = 8
_COMPARISONS = {"greater": ">", "less": "<", "two-sided": "≠"}


def print_probe(probe: "ModelProbe", *, title: str) -> None:
    """Print how many heads stand out, and a table by layer and head."""
    console = Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    console.print(terminal_text(title), highlight=False)
    for note in probe.notes:
        console.print(f"[yellow]Note:[/] {terminal_text(note)}", highlight=False)
    console.print(_summary_table(probe))
    console.print(_head_table(probe))
    console.print(
        f"* stands out from every null with draws enough: q ≤ {_LEVEL}, corrected for "
        f"all heads that were probed. Shown are the {_N_COLUMNS} statistics in which "
        "most heads do; the page has all.",
        highlight=False,
    )


def write_probe(
    probe: "ModelProbe", out: str | PathLike[str], *, title: str = "Probe of a model"
) -> Path:
    """Write ``probe.html``, ``probe.json`` and ``probe.npz`` into a folder.

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
    root = Path(out)
    probe.save(root / "probe.json")
    probe.save(root / "probe.npz")
    page = render_probe(probe, title=title).encode()
    path = root / "probe.html"
    write_atomically(path, lambda file: _write(file, page))
    return path


def render_probe(probe: "ModelProbe", *, title: str) -> str:
    """Return the page as text."""
    environment = Environment(
        loader=PackageLoader("eigenheads.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = format_number
    environment.filters["found"] = found_text
    return environment.get_template("probe.html.jinja").render(
        probe=probe,
        title=title,
        level=_LEVEL,
        comparisons=_COMPARISONS,
        sections=_sections(probe),
        heads=_rows_by_head(probe),
        version=eigenheads.__version__,
    )


def statistic_figure(probe: "ModelProbe", statistic: str) -> bytes:
    """Return heat maps of one statistic as SVG: observed, then far from which null."""
    measured = probe[statistic]
    maps = [HeadMap("observed", measured.observed)]
    for null, values in measured.effect_size.items():
        found = probe.q_value(statistic, null) <= _LEVEL
        title = f"sd from {null.replace('_', ' ')}"
        maps.append(HeadMap(title, values, found, is_effect=True))
    size = head_maps_size(maps)
    layers = probe.layers
    return render_svg(lambda figure: draw_head_maps(figure, maps, layers), size=size)


def found_text(row: Mapping[str, Any]) -> str:
    """Return how many heads stand out, or that none could.

    Examples
    --------
    >>> found_text({"n_found": 3, "n_heads": 12}), found_text({"n_found": None})
    ('3 of 12', 'too few draws')
    """
    if row["n_found"] is None:
        return "too few draws"
    return f"{row['n_found']} of {row['n_heads']}"


def _sections(probe: "ModelProbe") -> list[dict[str, Any]]:
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in probe.statistics}
    for row in probe.summary(_LEVEL):
        found[row["statistic"]].append(row)
    return [_section(probe, name, rows) for name, rows in found.items()]


def _section(
    probe: "ModelProbe", statistic: str, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    findings = "; ".join(
        f"{found_text(row)} from {row['null'].replace('_', ' ')}" for row in rows
    )
    svg = embedded_svg(statistic_figure(probe, statistic), statistic.replace("_", "-"))
    return {
        "id": statistic.replace("_", "-"),
        "name": statistic.replace("_", " "),
        "about": probe[statistic].about,
        "rows": rows,
        "svg": Markup(svg),  # drawn here, from numbers alone
        "alt": f"Heat maps of {statistic}. Heads that stand out: {findings}.",
        "findings": f"Heads that stand out: {findings}." if findings else "",
    }


def _rows_by_head(probe: "ModelProbe") -> list[dict[str, Any]]:
    """Return a row a head: all observed numbers, and which stand out."""
    tables = {name: one.observed for name, one in probe.statistics.items()}
    marks = {name: probe.stands_out(name, _LEVEL) for name in probe.statistics}
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


def _summary_table(probe: "ModelProbe") -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, title="heads that stand out", title_justify="left"
    )
    table.add_column("statistic", no_wrap=True)
    table.add_column("median", justify="right")
    table.add_column("null", no_wrap=True)
    table.add_column("null's median", justify="right")
    table.add_column(f"heads with q ≤ {_LEVEL}", justify="right")
    last = None
    for row in probe.summary(_LEVEL):
        is_new = row["statistic"] != last
        last = row["statistic"]
        table.add_row(
            terminal_text(last) if is_new else "",
            format_number(row["median"]) if is_new else "",
            f"{_COMPARISONS[row['alternative']]} {terminal_text(row['null'])}",
            format_number(row["null_median"]),
            found_text(row),
        )
    return table


def _head_table(probe: "ModelProbe") -> Table:
    names = sorted(
        probe.statistics, key=lambda name: -int(probe.stands_out(name, _LEVEL).sum())
    )[:_N_COLUMNS]
    places = [list(probe.statistics).index(name) for name in names]
    table = Table(box=box.SIMPLE_HEAD, title="by layer and head", title_justify="left")
    for column in ("layer", "head", *names):
        table.add_column(terminal_text(column.replace("_", " ")), justify="right")
    for row in _rows_by_head(probe):
        cells = [row["cells"][place] for place in places]
        if row["head"] == 0:
            table.add_section()
        table.add_row(
            str(row["layer"]),
            str(row["head"]),
            *(format_number(x) + ("*" if mark else " ") for x, mark in cells),
        )
    return table


def _write(file: Any, content: bytes) -> None:
    file.write(content)
