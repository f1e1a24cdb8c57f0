"""Self-contained HTML pages, whose content security policy forbids requests: of a look, and the frame of other pages.

The script of a look's page is a bundle of the modules in `page/`; the policy forbids any other. The look is embedded
as JSON and shown as text only.
"""

import html
import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from string import Template
from typing import Any

from regard.interpret.look import HTML_RENDERERS
from regard.views.canvas import escaped
from regard.views.script_bundle import bundle

SCRIPT = "views/page/main.js"
HEIGHT = 720  # pixels of the frame in a notebook
PAGE_END = "</body>\n</html>\n"


def page_start(title: str, style: str, allowed: str = "") -> str:
    """The beginning of a page without a script, up to its content; `allowed` are further directives of its policy."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; {allowed}style-src {content_hash(style)}">
<meta name="viewport" content="width=device-width">
<title>{escaped(title)}</title>
<style>{style}</style>
</head>
<body>
"""


def page(look: dict[str, Any] | Sequence[dict[str, Any]]) -> str:
    """What `Look.as_dict` returns, as an HTML page; of several looks, a page to choose from them."""
    script, style = bundle(SCRIPT), _read("page.css")
    policy = (
        f"default-src 'none'; script-src {content_hash(script)}; style-src {content_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    data = json.dumps(look, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")  # no tag or comment can begin
    first = look if isinstance(look, dict) else look[0]
    title = html.escape(f"{first['title']} · Regard" if first["title"] else "Regard")
    return Template(_read("page.html")).substitute(policy=policy, title=title, style=style, look=data, script=script)


def frame(look: dict[str, Any]) -> str:
    """The page in a sandboxed frame, for a notebook."""
    return (
        f'<iframe title="A look" width="100%" height="{HEIGHT}" frameborder="0" '
        f'sandbox="allow-scripts allow-downloads" srcdoc="{html.escape(page(look))}"></iframe>'
    )


HTML_RENDERERS.update(page=page, frame=frame)


def _read(name: str) -> str:
    return files("regard.views").joinpath("page", name).read_text(encoding="utf-8")


def content_hash(text: str) -> str:
    """The source that allows exactly this script or style in a content security policy."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
