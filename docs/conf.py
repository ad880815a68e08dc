"""Sphinx configuration; `make docs` builds with warnings as errors."""

import sys
from importlib.util import find_spec
from pathlib import Path

import eigenheads
from eigenheads.live import live_page

project = "Eigenheads"
author = "The Eigenheads developers"
copyright = "2026, The Eigenheads developers"
version = release = eigenheads.__version__

# Extensions of ours, and what the gallery calls by name, are beside this file.
sys.path.insert(0, str(Path(__file__).parent))

extensions = [
    "linking",  # API pages, and links to them
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # formulas without a network
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 3
html_theme = "pydata_sphinx_theme"
html_title = "Eigenheads"
html_theme_options = {
    "header_links_before_dropdown": 6,  # one row, also on small screens
    "show_toc_level": 2,
    "navigation_with_keys": False,
}
# Pages without siblings have no sections to navigate, and more room.
html_sidebars = {name: [] for name in ("start", "which_part", "live", "glossary")}
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_show_sourcelink = False
numpydoc_show_class_members = False
# Docstrings describe parameters and their types; a second list would repeat them.
autodoc_typehints = "none"
autodoc_preserve_defaults = True
# Methods are listed on the page of their class: their own names suffice.
toc_object_entries_show_parents = "hide"
# Shapes such as "*batch n d" are no types that Sphinx could link.
nitpicky = False
autosummary_generate = False  # `linking` writes these pages

EXAMPLES = Path(__file__).parent.parent / "examples"


def without_torch():
    """Return a pattern of the examples that cannot run here."""
    if find_spec("torch"):
        return r"__init__\.py"
    names = [p.name for p in EXAMPLES.glob("*.py") if "import torch" in p.read_text()]
    return "|".join([r"__init__\.py", *names])


sphinx_gallery_conf = {
    "examples_dirs": str(EXAMPLES),
    "gallery_dirs": "gallery",
    "ignore_pattern": without_torch(),
    "within_subsection_order": "gallery_setup.reading_order",
    "reset_modules": ("matplotlib", "gallery_setup.house_style"),
    "reset_modules_order": "both",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
    "capture_repr": (),
    "doc_module": ("eigenheads",),
}


def copy_live_page(app, error):
    """Put the live page beside the documents, with links to the full theory pages."""
    if error or app.builder.format != "html":
        return
    folder = Path(app.outdir) / "live"
    folder.mkdir(parents=True, exist_ok=True)
    page = live_page().read_text(encoding="utf-8")
    # A system without a page of its own keeps the short theory of the live page.
    for path in (Path(__file__).parent / "theory").glob("*.md"):
        page = page.replace(f"theory.html#{path.stem}", f"../theory/{path.stem}.html")
    (folder / "index.html").write_text(page, encoding="utf-8")
    theory = live_page().with_name("theory.html").read_text(encoding="utf-8")
    (folder / "theory.html").write_text(theory, encoding="utf-8")


def setup(app):
    app.connect("build-finished", copy_live_page)
