"""Views of results in notebooks: tables as HTML, and a progress bar.

All texts are escaped: names of curves, models and statistics come from users.
"""

import sys
from collections.abc import Iterable, Sequence
from html import escape
from importlib import import_module
from typing import Any

# A table with more rows than this is cut, with a line that says so.
_MAX_ROWS = 20
_BAR = (
    '<div style="max-width: 32em"><progress max="1" value="{share:.4f}" '
    'style="width: 60%; vertical-align: middle"></progress> {text}</div>'
)


def html_table(
    title: str,
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    notes: Iterable[str] = (),
    n_texts: int = 1,
) -> str:
    """Return an HTML table with a title and notes below it.

    Parameters
    ----------
    title, header, rows, notes
        Contents; every text is escaped.
    n_texts
        Number of first columns with text; the others are aligned to the right.

    Examples
    --------
    >>> page = html_table("<b>", ["name", "value"], [["a & b", 1]])
    >>> "&lt;b&gt;" in page, "a &amp; b" in page, "<b>" in page
    (True, True, False)
    """
    rows = list(rows)
    cut = [f"{len(rows) - _MAX_ROWS} more rows"] if len(rows) > _MAX_ROWS else []
    body = "".join(f"<tr>{_cells(row, n_texts)}</tr>" for row in rows[:_MAX_ROWS])
    below = "".join(f"<div><small>{escape(n)}</small></div>" for n in [*cut, *notes])
    return (
        f"<div><strong>{escape(title)}</strong></div><table><thead>"
        f"<tr>{_cells(header, n_texts, 'th')}</tr></thead>"
        f"<tbody>{body}</tbody></table>{below}"
    )


def _cells(row: Sequence[object], n_texts: int, tag: str = "td") -> str:
    sides = ["left" if i < n_texts else "right" for i in range(len(row))]
    return "".join(
        f'<{tag} style="text-align: {side}">{escape(str(cell))}</{tag}>'
        for cell, side in zip(row, sides, strict=True)
    )


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook.

    Examples
    --------
    >>> is_notebook()
    False
    """
    # A process that never imported IPython is no notebook, and need not import it now.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


class NotebookBar:
    """A progress bar in a cell's output, without widgets.

    Rich needs ipywidgets in notebooks; an HTML element that is drawn again does not.
    """

    def __init__(self, total: float, description: str) -> None:
        display = import_module("IPython.display").display
        self.total, self.description = total, description
        self._done = self._drawn = 0.0
        self._handle: Any = display(self._view(), display_id=True)

    def advance(self, units: float) -> None:
        """Add finished steps; the bar is drawn again after each hundredth."""
        self._done += units
        total = self.total or 1.0
        if self._done - self._drawn >= 0.01 * total or self._done >= total:
            self.draw()

    def describe(self, description: str) -> None:
        """Change the text of the bar."""
        self.description = description
        self.draw()

    def close(self) -> None:
        """Leave the bar as it is."""

    def draw(self) -> None:
        """Draw the bar as it is now."""
        self._drawn = self._done
        self._handle.update(self._view())

    def _view(self) -> Any:
        html = import_module("IPython.display").HTML
        share = min(1.0, self._done / self.total) if self.total else 0.0
        text = escape(f"{self.description}: {share:.0%}")
        return html(_BAR.format(share=share, text=text))


def format_number(value: float) -> str:
    """Return a number with at most four significant digits, as tables show it.

    Examples
    --------
    >>> format_number(0.99654), format_number(30.0), format_number(2.5e-9)
    ('0.9965', '30', '2.5e-09')
    """
    # Only NaN differs from itself.
    return "not measured" if value != value else f"{value:.4g}"
