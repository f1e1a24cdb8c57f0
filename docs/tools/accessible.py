"""Sphinx extension: what the theme's pages lack for keyboards and screen readers (the rules of axe-core).

Code that may scroll can be focused, the levels of headings and the names of landmarks are stated, and a column
without a heading has no heading cell.
"""

from pathlib import Path
from typing import Any

CHANGES = {
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="Pages">',
    '<aside class="toc-drawer">': '<aside class="toc-drawer" aria-label="On this page">',
    '<aside class="toc-drawer no-toc">': '<aside class="toc-drawer no-toc" aria-label="On this page">',
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
    '<th class="head"><p></p></th>': '<td class="head"></td>',
    '<div id="search-results"></div>': '<h1>Search</h1><div id="search-results" role="status"></div>',
    '<div class="math-block">': '<div tabindex="0" class="math-block">',
}


def _finished(app: Any, exception: Exception | None) -> None:
    if exception is None and app.builder.name == "html":
        for path in Path(app.outdir).rglob("*.html"):
            text = path.read_text("utf-8")
            for old, new in CHANGES.items():
                text = text.replace(old, new)
            path.write_text(text, "utf-8")


def setup(app: Any) -> dict[str, bool]:
    app.connect("build-finished", _finished)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
