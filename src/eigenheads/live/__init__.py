"""The live page: training in any dimension, simulated exactly in a web browser.

The page is ``index.html`` with its ES modules, in this folder; ``page.js`` imports the
others. From a disk it opens as one file with one script, which :func:`live_page`
writes: it needs no server and no network. Its engine and theory follow
:mod:`eigenheads.dynamics`, :mod:`eigenheads.models` and :mod:`eigenheads.theory`, and
are tested against them in a browser.
"""

import webbrowser
from pathlib import Path

from eigenheads.live._build import cached_page

__all__ = ["live_page", "open_live_page"]


def live_page() -> Path:
    """Return the path of the live page.

    It is written to the user's folder for caches (``EIGENHEADS_CACHE_DIR`` if that is
    set), unless it is there already.

    Returns
    -------
    path
        Path of an HTML file that opens from the file system.

    Examples
    --------
    >>> live_page().name
    'index.html'
    """
    return cached_page()


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
