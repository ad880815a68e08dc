"""The live page: training in any dimension, simulated exactly in a web browser.

The page is one file that needs no server and no network, with a second one for the
theory in short; ``live/build.py`` of the repository makes both. Its engine and theory
follow :mod:`eigenheads.models`, :mod:`eigenheads.models` and
:mod:`eigenheads.theory`, and are tested against them in a browser.
"""

import webbrowser
from pathlib import Path

__all__ = ["live_page", "open_live_page"]


def live_page() -> Path:
    """Return the path of the live page.

    Returns
    -------
    path
        Path of an HTML file that opens from the file system.

    Examples
    --------
    >>> live_page().name
    'index.html'
    """
    return Path(__file__).parent / "index.html"


def open_live_page() -> bool:
    """Open the live page in the user's web browser.

    Returns
    -------
    opened
        False if no browser could be started.
    """
    try:
        return webbrowser.open(live_page().as_uri())
    except webbrowser.Error:
        return False
