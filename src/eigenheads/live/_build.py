"""The live page as files that open from a disk.

The scripts of this folder are ES modules. A browser loads modules from a server only,
so the page that users open contains all of them as one classic script.
"""

import hashlib
import os
import re
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import IO

from eigenheads._files import write_atomically

_SOURCE = Path(__file__).parent
# What the script replaces: the module, and the note for those who open it from a disk.
_ENTRY = re.compile(
    r'<p id="unbuilt">.*<script type="module" src="page.js"></script>', re.S
)
# Imports have this form only: names in braces, from a file of the same folder.
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)";\n', re.MULTILINE)


def one_script() -> str:
    """Return the modules as one script, each after those that it imports.

    They share one scope there, so names at the top level must differ among modules: a
    browser refuses a script that declares a name twice.
    """
    scripts: dict[str, str] = {}
    _add("page.js", scripts)
    return '"use strict";\n' + "".join(scripts.values())


def _add(name: str, scripts: dict[str, str]) -> None:
    text = (_SOURCE / name).read_text(encoding="utf-8")
    for needed in _IMPORT.findall(text):
        if needed not in scripts:
            _add(needed, scripts)
    scripts[name] = re.sub("^export ", "", _IMPORT.sub("", text), flags=re.MULTILINE)


def page_files() -> dict[str, str]:
    """Return the files of the page that users open, by name."""
    files = {
        name: (_SOURCE / name).read_text(encoding="utf-8")
        for name in ("index.html", "theory.html", "style.css")
    }
    script = f"<script>\n{one_script()}</script>"
    files["index.html"] = _ENTRY.sub(lambda _: script, files["index.html"])
    return files


def write_page(folder: Path, files: dict[str, str]) -> Path:
    """Write the files that are not there yet, and return the path of the page."""
    for name, text in files.items():
        path, data = folder / name, text.encode()
        if not (path.is_file() and path.read_bytes() == data):
            write_atomically(path, partial(_write, data))
    return folder / "index.html"


def _write(data: bytes, file: IO[bytes]) -> None:
    file.write(data)


def cached_page() -> Path:
    """Return the page in the user's folder for caches, or else in a temporary folder.

    The folder is named after the contents: two versions of the package do not disturb
    each other.
    """
    files = page_files()
    digest = hashlib.sha256("\0".join(files.values()).encode()).hexdigest()[:12]
    try:
        return write_page(_cache() / f"live-{digest}", files)
    except (OSError, RuntimeError):  # no home, or a home that cannot be written
        return write_page(Path(tempfile.mkdtemp(prefix="eigenheads-live-")), files)


def _cache() -> Path:
    own = os.environ.get("EIGENHEADS_CACHE_DIR")
    if own:
        return Path(own).resolve()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", str(Path.home()))
    else:
        base = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    return Path(base).resolve() / "eigenheads"
