"""Sphinx configuration; `make docs` builds with warnings as errors."""

import re
import shutil
from pathlib import Path

import eigenheads
from eigenheads.live import live_page

project = "Eigenheads"
author = "The Eigenheads developers"
copyright = "2026, The Eigenheads developers"
version = release = eigenheads.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
]
exclude_patterns = ["_build", "papers/ledger"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 3
html_theme = "pydata_sphinx_theme"
html_title = "Eigenheads"
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False}
html_show_sourcelink = False
numpydoc_show_class_members = False
autodoc_typehints = "description"
autodoc_preserve_defaults = True
# Shapes such as "*batch n d" are no types that Sphinx could link.
nitpicky = False
autosummary_generate = False


def copy_live_page(app, error):
    """Put the live page beside the documents, with links to the full theory pages."""
    if error or app.builder.format != "html":
        return
    target = Path(app.outdir) / "live"
    unwanted = shutil.ignore_patterns("*.py", "__pycache__", "theory.html")
    shutil.copytree(live_page().parent, target, ignore=unwanted, dirs_exist_ok=True)
    page = target / "index.html"
    text = page.read_text(encoding="utf-8")
    linked = re.sub(r"theory\.html#(\w+)", r"../theory/\1.html", text)
    page.write_text(linked, encoding="utf-8")


def setup(app):
    app.connect("build-finished", copy_live_page)
