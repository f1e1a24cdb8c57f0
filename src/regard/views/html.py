"""Self-contained HTML pages, whose content security policy forbids requests: of a look,
and the frame of other pages.

The script of a look's page is a bundle of the modules in `page/`; the policy forbids any other. The
look is embedded as JSON and shown as text only.
"""

import html
import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from string import Template
from typing import Any

from regard.interpret.look import HTML_RENDERERS
from regard.views.canvas import escaped
from regard.views.script_bundle import bundle

SCRIPT = "studio/app/page/main.js"
HEIGHT = 720  # pixels of the frame in a notebook
STUDIO_TAG = 'body class="studio"'
PAGE_END = "</body>\n</html>\n"


def document_start(
    title: str, head: str, *, policy: str = "", schemes: str = "light dark", body: str = "body"
) -> str:
    """An HTML document up to its content.

    `head` is markup, as is `body`, a tag; without `policy`, a header has it.
    """
    meta = ""
    if policy:
        meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{meta}<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="{schemes}">
<title>{escaped(title)}</title>
{head}
</head>
<{body}>
"""


def page_start(title: str, style: str, allowed: str = "") -> str:
    """The beginning of a page without a script, up to its content;
    `allowed` are further directives of its policy.
    """
    policy = f"default-src 'none'; {allowed}style-src {content_hash(style)}"
    return document_start(title, f"<style>{style}</style>", policy=policy, schemes="light")


def script_page(
    title: str,
    style: str,
    body: str,
    script: str,
    *,
    tables: Mapping[str, object],
    texts: Mapping[str, str] | None = None,
    tag: str = "body",
    allowed: str = "",
) -> str:
    """A page with one script, which its policy allows alone;
    `allowed` are further sources of scripts.

    tables   what the script reads, as JSON, by the ids of the elements that hold it; `texts`
             likewise, without tags
    """
    policy = (
        f"default-src 'none'; script-src {content_hash(script)}{allowed}; style-src "
        f"{content_hash(style)}; img-src data:; base-uri 'none'; form-action 'none'"
    )
    start = document_start(title, f"<style>{style}</style>", policy=policy, body=tag)
    json_texts = {
        name: json.dumps(each, ensure_ascii=False, allow_nan=False) for name, each in tables.items()
    }
    held = [  # in JSON, no tag or comment can begin
        *(
            ("application/json", name, text.replace("<", "\\u003c"))
            for name, text in json_texts.items()
        ),
        *(("text/plain", name, text) for name, text in (texts or {}).items()),
    ]
    data = "".join(
        f'<script type="{kind}" id="{name}">{text}</script>\n' for kind, name, text in held
    )
    return f'{start}{body}{data}<script type="module">{script}</script>\n{PAGE_END}'


def page(look: dict[str, Any] | Sequence[dict[str, Any]]) -> str:
    """What `Look.as_dict` returns, as an HTML page; of several looks,
    a page to choose from them.
    """
    first = look if isinstance(look, dict) else look[0]
    title = f"{first['title']} · Regard" if first["title"] else "Regard"
    return script_page(
        title, page_part("page.css"), page_part("page.html"), bundle(SCRIPT), tables={"look": look}
    )


def frame(look: dict[str, Any]) -> str:
    """The page in a sandboxed frame, for a notebook."""
    return (
        f'<iframe title="A look" width="100%" height="{HEIGHT}" frameborder="0" '
        f'sandbox="allow-scripts allow-downloads" srcdoc="{html.escape(page(look))}"></iframe>'
    )


HTML_RENDERERS.update(page=page, frame=frame)


def page_part(name: str) -> str:
    """A style or a piece of markup that pages share."""
    return files("regard").joinpath("studio", "app", "page", name).read_text(encoding="utf-8")


def studio_frame(brand: str, note: str) -> str:
    """The content of a studio's page, in which page/frame.js shows views,
    with a name and a note beside it.
    """
    return Template(page_part("frame.html")).substitute(brand=escaped(brand), note=escaped(note))


def content_hash(text: str) -> str:
    """The source that allows exactly this script or style in a content security policy."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
