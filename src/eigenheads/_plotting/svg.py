"""Figures as SVG text, reproducible byte by byte, without pyplot's global state."""

import base64
import io
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

# Text, axes and theory curves.
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


def plain(text: str) -> str:
    r"""Return a name that Matplotlib draws as it is, not as a formula between dollars.

    Examples
    --------
    >>> print(plain("$5 to $6"))
    \$5 to \$6
    """
    return text.replace("$", r"\$")


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
        A complete file with a white background; equal drawings give equal bytes.

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
        # A date or a version would make equal drawings differ.
        metadata = {"Date": None, "Creator": None}
        figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    return buffer.getvalue().replace(b"<svg ", b"<svg " + _WHITE, 1)


def render_figure(
    draw: Callable[[Figure], None], *, size: tuple[float, float], kind: str
) -> bytes:
    """Return what `draw` puts on an empty figure as ``"pdf"`` or ``"png"``."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=size)
        draw(figure)
        buffer = io.BytesIO()
        # A date would make equal drawings differ.
        metadata = {"CreationDate": None} if kind == "pdf" else None
        figure.savefig(buffer, format=kind, dpi=200, metadata=metadata)
    return buffer.getvalue()


def new_figure(draw: Callable[[Figure], None], *, size: tuple[float, float]) -> Figure:
    """Return a figure that `draw` has filled, in the style of the reports.

    Examples
    --------
    >>> new_figure(lambda figure: None, size=(2.0, 1.0)).get_size_inches()
    array([2., 1.])
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=size)
        draw(figure)
    return figure


def data_address(svg: bytes) -> str:
    """Return a figure as an address, for the ``src`` of an image in a page.

    Browsers run no script of an image and load nothing that it names, so that a figure
    from elsewhere is harmless.

    Examples
    --------
    >>> figure = render_svg(lambda figure: None, size=(1.0, 1.0))
    >>> data_address(figure)[:26]
    'data:image/svg+xml;base64,'
    """
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
