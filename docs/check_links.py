"""Check that every link inside the built documentation leads somewhere.

Usage: python docs/check_links.py docs/_build/check

Pages, files and anchors are looked up in the folder itself; addresses of other sites
are not opened.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# The attribute of a tag that names another place.
LINKS = {"a": "href", "link": "href", "img": "src", "script": "src", "iframe": "src"}


class PageLinks(HTMLParser):
    """Collect the anchors and links of one page."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links = {"", "top"}, set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        if values.get(LINKS.get(tag, "")):
            self.links.add(values[LINKS[tag]])


def broken_links(folder):
    """Return pairs (page, link) of all links that lead nowhere."""
    folder = Path(folder).resolve()
    pages = {
        path: PageLinks(path.read_text(encoding="utf-8"))
        for path in sorted(folder.rglob("*.html"))
        # Templates of the theme are no pages.
        if "_static" not in path.relative_to(folder).parts
    }
    broken = []
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            goal = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if goal.is_dir():
                goal /= "index.html"
            anchors = pages[goal].anchors if goal in pages else {parts.fragment}
            if not goal.exists() or unquote(parts.fragment) not in anchors:
                broken.append((str(path.relative_to(folder)), link))
    return broken


def main(folder):
    broken = broken_links(folder)
    for page, link in broken:
        print(f"{page}: {link} leads nowhere", file=sys.stderr)
    n_pages = len(list(Path(folder).rglob("*.html")))
    print(f"Links of {n_pages} pages checked: {len(broken)} broken.")
    return 1 if broken or not n_pages else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
