"""Draw the ledger: claims of each paper by verdict, and our checks beside them.

The SVG is written by hand, so that the same counts give the same bytes everywhere.
"""

from eigenheads._plotting.svg import BLUE, GREY, INK, ORANGE

WIDTH, LEFT, RIGHT, TOP, ROW = 920, 130, 236, 92, 30
PALE_BLUE, PALE_ORANGE, PALE_GREY = "#cfe1f2", "#fbdcc4", "#ececec"
# Verdict: fill and outline of its bar. Pale: on small models.
STYLES = {
    "held": (BLUE, BLUE),
    "contradicted": (ORANGE, ORANGE),
    "undecided": (GREY, GREY),
    "same direction": (PALE_BLUE, BLUE),
    "opposite direction": (PALE_ORANGE, ORANGE),
    "undecided on small models": (PALE_GREY, GREY),
    "not testable here": ("none", GREY),
}


def drawing(rows, summary):
    """Return the SVG of rows ``(paper, outcomes by kind, not testable)``."""
    rows = [row for row in rows if row[0][-4:].isdigit()]
    bars = [(*row[1]["claim"], *row[1]["small model"], row[2]) for row in rows]
    scale = (WIDTH - LEFT - RIGHT) / max(map(sum, bars))
    height = TOP + ROW * len(rows) + 14
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'role="img" font-family="sans-serif" font-size="13">',
        f"<title>{summary}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        *_legend(),
    ]
    for at, ((paper, outcomes, _), numbers) in enumerate(zip(rows, bars, strict=True)):
        y = TOP + ROW * at
        parts.append(_text(LEFT - 10, y + 15, paper, "end"))
        x = float(LEFT)
        for name, number in zip(STYLES, numbers, strict=True):
            if number:
                parts += _bar(x, y, scale * number, number, name)
            x += scale * number
        theory = outcomes["theory"]
        passed = f"{theory[0]} of {sum(theory)}" if any(theory) else "–"
        parts.append(_text(WIDTH - 128, y + 15, passed, "end"))
        asked = ", ".join(map(str, outcomes["question"]))
        parts.append(
            _text(
                WIDTH - 12, y + 15, asked if any(outcomes["question"]) else "–", "end"
            )
        )
    return "\n".join([*parts, "</svg>", ""])


def _legend():
    parts = [
        _text(
            12, 20, "Statements of the papers (pale: on small models)", "start", "bold"
        ),
        _text(WIDTH - 128, 20, "theory =", "end", "bold"),
        _text(WIDTH - 128, 36, "simulation", "end", "bold"),
        _text(WIDTH - 12, 20, "questions:", "end", "bold"),
        _text(WIDTH - 12, 36, "yes, no, open", "end", "bold"),
    ]
    x, y = 12, 46
    for name, (fill, line) in STYLES.items():
        parts.append(
            f'<rect x="{x}" y="{y}" width="12" height="12" fill="{fill}" '
            f'stroke="{line}"/>'
        )
        parts.append(_text(x + 18, y + 11, name, "start"))
        x += 38 + 7 * len(name)
        if x > WIDTH - 300:
            x, y = 12, y + 20
    return parts


def _bar(x, y, width, number, name):
    fill, line = STYLES[name]
    ink = "white" if name in ("held", "contradicted") else INK
    return [
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="20" fill="{fill}" '
        f'stroke="{line}"><title>{name}: {number}</title></rect>',
        _text(round(x + width / 2, 1), y + 15, number, "middle", ink=ink),
    ]


def _text(x, y, words, anchor, weight="normal", ink=INK):
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}" '
        f'fill="{ink}">{words}</text>'
    )
