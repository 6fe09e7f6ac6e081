"""The documentation's site: `make site` builds it into build/site. Nothing is fetched to build or to view it."""

from __future__ import annotations

import re
from typing import Any

from espalier._version import __version__

project = "Espalier"
author = "the Espalier authors"
release = __version__
extensions = ["myst_parser", "sphinx_copybutton"]
exclude_patterns = ["conf.py", "**.ipynb"]
root_doc = "index"
myst_heading_anchors = 3
myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence"]
pygments_style, pygments_dark_style = "friendly", "monokai"
html_theme = "furo"
html_title = "Espalier"
html_static_path = ["_static"]
html_css_files = ["espalier.css"]
html_show_sourcelink = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#00695c", "color-brand-content": "#00695c"},
    "dark_css_variables": {"color-brand-primary": "#4db6ac", "color-brand-content": "#4db6ac"},
}
# Documents link to files of the repository that are no pages; those links work where the repository is read.
suppress_warnings = ["myst.xref_missing"]

_TITLED = re.compile(r'^```(\w+) title="([^"]+)"$', flags=re.MULTILINE)
_TWO_TONED = re.compile(r"(!\[[^\]]*\]\([^)]*)-light\.png\)")


def _dressed(app: Any, page: str, source: list[str]) -> None:
    """Show a block's title, the file that it is, as its caption; and a picture as light or dark as the page."""
    source[0] = _TWO_TONED.sub(r"\1-light.png){.only-light}\n\1-dark.png){.only-dark}", source[0])
    source[0] = _TITLED.sub(r"```{code-block} \1\n:caption: \2\n", source[0])


def setup(app: Any) -> None:
    """Connect what this file adds to Sphinx."""
    app.connect("source-read", _dressed)
