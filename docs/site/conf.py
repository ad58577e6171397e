"""Configuration of Sphinx for the documentation site; stage.py writes the sources that it reads.

Everything is local: furo has no fonts or scripts from elsewhere, and the search runs in the browser.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from sphinx.application import Sphinx  # noqa: E402
from sphinx.config import Config  # noqa: E402

import simfl  # noqa: E402

project = author = "simfl"
release = version = simfl.__version__
copyright = "the simfl developers, Apache-2.0"
extensions = ["myst_parser", "sphinx_copybutton"]

html_theme = "furo"
html_title = f"simfl {version}"
html_static_path = [str(HERE / "static")]
html_css_files = ["simfl.css"]
html_show_sourcelink = False
html_copy_source = False
smartquotes = False
templates_path = [str(HERE / "_templates")]
html_sidebars = {
    "**": [
        "sidebar/brand.html", "sidebar/search.html", "sidebar/scroll-start.html", "sidebar/navigation.html",
        "versions.html", "sidebar/scroll-end.html",
    ]
}  # fmt: skip
html_theme_options = {"navigation_with_keys": True}

myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
exclude_patterns = ["_extra"]
suppress_warnings = ["misc.highlighting_failure", "myst.header"]  # `…` in outputs; generated pages skip a level
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True


def copy_texts(app: Sphinx, config: Config) -> None:
    """Copy the files of code that pages link to."""
    config.html_extra_path = [str(app.srcdir / "_extra")]


def setup(app: Sphinx) -> None:
    """Connect the copy of texts."""
    app.connect("config-inited", copy_texts)
