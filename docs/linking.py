"""Sphinx extension: API pages of all public names, and links to them from the text.

Names in the text, such as ``RobustPCA`` in inline code, link to their API page, and
arXiv numbers link to the paper, without markup in the source.
"""

import importlib
import inspect
import re
import types
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

# In the order of the API page.
PACKAGES = (
    "eigenheads.estimators",
    "eigenheads.models",
    "eigenheads.models",
    "eigenheads.theory",
    "eigenheads.datasets",
    "eigenheads.functional",
    "eigenheads.nn",
    "eigenheads.adapters",
    "eigenheads.robustness",
    "eigenheads.probes",
    "eigenheads.report",
    "eigenheads.live",
    "eigenheads.extend",
    "eigenheads_papers",
    "eigenheads_papers.recipes",
    "eigenheads_papers.report",
)
HEADINGS = {
    "Classes": "autoclass",
    "Functions": "autofunction",
    "Warnings and errors": "autoexception",
    "Constants": "autodata",
}
ARXIV = re.compile(r"arXiv[: ]\s*(\d{4}\.\d{4,5})")


def public_names():
    """Return the full name of every public name, by its last part."""
    found = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        found |= {name: f"{module.__name__}.{name}" for name in module.__all__}
    return found


def write_api_pages(folder):
    """Write a page per package, with tables of its names, and a page per name."""
    folder = Path(folder)
    pages = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        title = package
        lines = [title, "=" * len(title), "", f".. automodule:: {title}", ""]
        for heading, directive in HEADINGS.items():
            names = [n for n in module.__all__ if _directive(module, n) == directive]
            if names:
                lines += [heading, "-" * len(heading), "", ".. autosummary::"]
                lines += ["   :toctree: generated", "   :nosignatures:", ""]
                lines += [f"   {name}" for name in names] + [""]
            for name in names:
                options = ["   :members:", "   :inherited-members:"]
                pages[folder / "generated" / f"{title}.{name}.rst"] = [
                    *(name, "=" * len(name), "", f".. currentmodule:: {title}", ""),
                    f".. {directive}:: {name}",
                    *(options if directive == "autoclass" else []),
                    "",
                ]
        pages[folder / f"{title}.rst"] = lines
    (folder / "generated").mkdir(parents=True, exist_ok=True)
    for old in set(folder.rglob("*.rst")) - set(pages):
        old.unlink()
    for page, lines in pages.items():
        text = "\n".join(lines)
        # An unchanged page keeps its time, so that Sphinx does not read it again.
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def _directive(module, name):
    """Return the directive that documents a name."""
    thing = getattr(module, name)
    if isinstance(thing, types.GenericAlias):  # a type, which autodoc cannot show
        return ""
    if inspect.isclass(thing):
        return "autoexception" if issubclass(thing, Exception) else "autoclass"
    return "autofunction" if inspect.isroutine(thing) else "autodata"


class NameLinks(SphinxTransform):
    """Turn inline code that is a public name into a link to its page."""

    default_priority = 500
    _names = None

    def apply(self):
        if NameLinks._names is None:
            NameLinks._names = public_names()
        for literal in list(self.document.findall(nodes.literal)):
            full = self._target(literal.astext())
            linked = (nodes.reference, addnodes.pending_xref, nodes.title)
            if full is None or _inside(literal, linked):
                continue
            link = addnodes.pending_xref(
                "",
                literal.deepcopy(),
                refdomain="py",
                reftype="obj",
                reftarget=full,
                refexplicit=True,
                refwarn=False,
                refdoc=self.env.docname,
            )
            literal.replace_self(link)

    def _target(self, text):
        match = re.fullmatch(r"((?:\w+\.)*)(\w+)((?:\(.*\))?)", text)
        if not match:
            return None
        before, name, call = match.groups()
        owner = before.rstrip(".").rpartition(".")[2]
        full = self._names.get(name)
        if owner in self._names:  # a method
            return f"{self._names[owner]}.{name}"
        if full is None:
            return None
        if owner:
            return full if full.split(".")[-2] == owner else None
        # Single small words, such as `risk`, may also be columns or parameters.
        return full if call or "_" in name or name != name.lower() else None


class ArxivLinks(SphinxTransform):
    """Turn arXiv numbers into links."""

    default_priority = 510

    def apply(self):
        linked = (nodes.reference, nodes.literal, nodes.literal_block, nodes.title)
        for text in list(self.document.findall(nodes.Text)):
            content, start, parts = text.astext(), 0, []
            if _inside(text, linked):
                continue
            for match in ARXIV.finditer(content):
                address = f"https://arxiv.org/abs/{match[1]}"
                parts += [
                    nodes.Text(content[start : match.start()]),
                    nodes.reference("", f"arXiv {match[1]}", refuri=address),
                ]
                start = match.end()
            if parts:
                parts.append(nodes.Text(content[start:]))
                text.parent.replace(text, parts)


def _inside(node, kinds):
    while node.parent is not None:
        node = node.parent
        if isinstance(node, kinds):
            return True
    return False


def leave_out(app, what, name, obj, skip, options):
    """Leave out members that scikit-learn, PyTorch or Python define."""
    if what not in ("class", "exception"):
        return None
    function = getattr(obj, "fget", None) or getattr(obj, "__func__", obj)
    ours = getattr(function, "__module__", None) or ""
    if not ours.startswith("eigenheads"):
        return True
    return None


def setup(app):
    write_api_pages(Path(app.srcdir) / "api")
    app.setup_extension("sphinx.ext.autodoc")  # has the event below
    app.connect("autodoc-skip-member", leave_out)
    app.add_transform(NameLinks)
    app.add_transform(ArxivLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
