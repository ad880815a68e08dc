"""Draw the ledger: claims of each paper by verdict, and our checks beside them.

The SVG is written by hand, so that the same counts give the same bytes everywhere.
"""

from eigenheads._plotting.svg import BLUE, GREY, INK, ORANGE

WIDTH, LEFT, RIGHT, TOP, ROW = 860, 150, 130, 66, 30
# Verdict: fill and outline of its bar.
STYLES = {
    "held": (BLUE, BLUE),
    "contradicted": (ORANGE, ORANGE),
    "undecided": (GREY, GREY),
    "not testable here": ("none", GREY),
}


def drawing(rows, summary):
    """Return the SVG of rows ``(paper, claims by verdict, passed, checks)``."""
    rows = [row for row in rows if row[1]]
    largest = max(sum(numbers) for _, numbers, _, _ in rows)
    scale = (WIDTH - LEFT - RIGHT) / largest
    height = TOP + ROW * len(rows) + 14
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'role="img" font-family="sans-serif" font-size="13">',
        f"<title>{summary}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        *_legend(),
    ]
    for at, (paper, numbers, passed, n_checks) in enumerate(rows):
        y = TOP + ROW * at
        parts.append(_text(LEFT - 10, y + 15, paper, "end"))
        x = float(LEFT)
        for name, number in zip(STYLES, numbers, strict=True):
            if number:
                parts += _bar(x, y, scale * number, number, name)
            x += scale * number
        parts.append(_text(WIDTH - 12, y + 15, f"{passed} of {n_checks}", "end"))
    return "\n".join([*parts, "</svg>", ""])


def _legend():
    parts = [
        _text(12, 22, "Claims of the papers, by verdict", "start", "bold"),
        _text(WIDTH - 12, 22, "our checks held", "end", "bold"),
    ]
    x = LEFT
    for name, (fill, line) in STYLES.items():
        parts.append(
            f'<rect x="{x}" y="36" width="12" height="12" fill="{fill}" '
            f'stroke="{line}"/>'
        )
        parts.append(_text(x + 18, 47, name, "start"))
        x += 34 + 8 * len(name)
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
