"""The site: Sphinx over the Markdown pages of this folder. `make docs` builds it strictly into build/site."""

import re
import sys
from pathlib import Path
from typing import Any

from regard import __version__

sys.path.insert(0, str(Path(__file__).parent / "tools"))

project, author, release = "Regard", "the authors of Regard", __version__
project_copyright = "the authors of Regard, Apache-2.0"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "mathml",
    "docstrings",
    "lessons",
    "accessible",
]
exclude_patterns = ["tools", "gallery", "course/solutions", "course/graders"]

# Markdown
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4

# API pages
default_role = "code"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_typehints = (
    "none"  # shapes and types are in the text; signatures name the arguments and their defaults
)
autodoc_preserve_defaults = True
add_module_names = False
nitpicky = True
nitpick_ignore_regex = [  # types of others, and those of ours that are no public names
    (
        "py:.*",
        r"(torch|numpy|collections|typing|pathlib|nn|abc|builtins|jaxtyping|regard\.\w+)\b.*",
    ),
    ("py:class", "ABC|Generic|Tensor"),
]

# Pages
html_theme, html_title, html_static_path = "furo", "Regard", ["_static"]
html_css_files, html_favicon = ["site.css"], "_static/favicon.svg"
html_math_renderer = "mathml"
html_copy_source = False
smartquotes = False  # quotes and dashes of docstrings are code more often than not
html_show_search_summary = False  # summaries would be fetched, which a browser forbids for files
html_show_sourcelink = False
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"
copybutton_prompt_text, copybutton_prompt_is_regexp = r"\$ |>>> |\.\.\. ", True


def setup(app: Any) -> None:
    app.connect("source-read", _without_links_to_the_repository)


def _without_links_to_the_repository(app: Any, page: str, source: list[str]) -> None:
    """Files outside this folder are not part of the site: their names stay, without a link."""
    outside = "../" * (page.count("/") + 1)
    source[0] = re.sub(rf"\[([^\]]+)\]\({re.escape(outside)}[^)]+\)", r"\1", source[0])
