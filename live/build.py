"""Build the live page: ``python live/build.py`` writes the files that are shipped.

The scripts of this folder are ES modules. A browser loads modules from a server only,
so the page that users open contains all of them as one classic script, and its style.
"""

import re
import sys
from pathlib import Path

SOURCE = Path(__file__).parent
SHIPPED = SOURCE.parent / "src" / "eigenheads" / "live"
# What the script replaces: the module, and the note for those who open it from a disk.
_ENTRY = re.compile(
    r'<p id="unbuilt">.*<script type="module" src="page.js"></script>', re.S
)
_STYLE = '<link rel="stylesheet" href="style.css">'
# Imports have this form only: names in braces, from a file of the same folder.
IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)";\n', re.MULTILINE)


def one_script() -> str:
    """Return the modules as one script, each after those that it imports.

    They share one scope there, so names at the top level must differ among modules: a
    browser refuses a script that declares a name twice.
    """
    scripts: dict[str, str] = {}
    _add("page.js", scripts)
    return '"use strict";\n' + "".join(scripts.values())


def _add(name: str, scripts: dict[str, str]) -> None:
    text = (SOURCE / name).read_text(encoding="utf-8")
    for needed in IMPORT.findall(text):
        if needed not in scripts:
            _add(needed, scripts)
    scripts[name] = re.sub("^export ", "", IMPORT.sub("", text), flags=re.MULTILINE)


def page_files() -> dict[str, str]:
    """Return the files of the page that users open, by name."""
    style = (SOURCE / "style.css").read_text(encoding="utf-8")
    files = {
        name: (SOURCE / name)
        .read_text(encoding="utf-8")
        .replace(_STYLE, f"<style>\n{style}</style>")
        for name in ("index.html", "theory.html")
    }
    script = f"<script>\n{one_script()}</script>"
    files["index.html"] = _ENTRY.sub(lambda _: script, files["index.html"])
    return files


def outdated() -> list[str]:
    """Return the shipped files that are not those of the sources."""
    return [
        name
        for name, text in page_files().items()
        if not (SHIPPED / name).is_file()
        or (SHIPPED / name).read_text(encoding="utf-8") != text
    ]


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit("\n".join(f"{name} is out of date" for name in outdated()))
    for name, text in page_files().items():
        (SHIPPED / name).write_text(text, encoding="utf-8")
