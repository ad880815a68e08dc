"""Figures as SVG text, reproducible byte by byte, without pyplot's global state."""

import io
import re
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

# Text, axes and theory curves; replaced by the page's text colour in reports.
INK = "#101418"
# Readable on white and on near-black alike (contrast at least 3 to 1 on both).
BLUE, ORANGE, GREEN, PURPLE, GREY = (
    "#3b82c4",
    "#d9722e",
    "#2f9e6e",
    "#9a6bc9",
    "#868c95",
)
_WHITE = b'style="background: #ffffff" '
COLORS = (BLUE, ORANGE, GREEN, PURPLE, GREY)

_STYLE: Any = {
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.prop_cycle": cycler(color=COLORS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "figure.constrained_layout.use": True,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "grid.alpha": 0.15,
    "grid.color": INK,
    "legend.fontsize": "small",
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "eigenheads",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def render_svg(draw: Callable[[Figure], None], *, size: tuple[float, float]) -> bytes:
    """Return the SVG of what `draw` puts on an empty figure.

    Parameters
    ----------
    draw
        Fills the figure.
    size
        Width and height in inches.

    Returns
    -------
    svg
        A file of its own, on a white ground; equal drawings give equal bytes.

    Examples
    --------
    >>> render_svg(lambda figure: None, size=(1.0, 1.0))[:5]
    b'<?xml'
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=size)
        FigureCanvasSVG(figure)
        draw(figure)
        buffer = io.BytesIO()
        metadata = {"Date": None, "Creator": None}
        figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    return buffer.getvalue().replace(b"<svg ", b"<svg " + _WHITE, 1)


def embedded_svg(svg: bytes, name: str) -> str:
    """Return a figure for the inside of a page.

    Transparent, in the page's text colour and width, its ids prefixed by `name`, so
    that several figures share a page.

    Examples
    --------
    >>> figure = render_svg(lambda figure: None, size=(1.0, 1.0))
    >>> embedded_svg(figure, "demo")[:4]
    '<svg'
    """
    text = svg.decode().replace(_WHITE.decode(), "")
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="|url\()#', rf"\g<1>#{name}-", text)
    # The page sets the width; the viewBox keeps the proportions.
    head, bracket, body = text.partition(">")
    return re.sub(r' (width|height)="[^"]*"', "", head) + bracket + body
