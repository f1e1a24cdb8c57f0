"""The HTML file: settings as JSON, weights and compiled kernels as base64, and one script.

Its content security policy allows that script, WebAssembly and nothing else: no request leaves the page.
"""

import html
import json
from base64 import b64encode
from importlib.resources import files
from string import Template
from typing import Any

from regard.views.html import content_hash
from regard.views.script_bundle import bundle

ENTRY = "interop/page/browser/page.js"


def document(settings: dict[str, Any], weights: bytes) -> str:
    """The page of a model: `settings` as model.js reads them, and the bytes of its weights."""
    script, style = bundle(ENTRY), _read("views", "page", "page.css") + _browser("page.css")
    policy = (
        f"default-src 'none'; script-src {content_hash(script)} 'wasm-unsafe-eval'; style-src {content_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return Template(_browser("page.html")).substitute(
        policy=policy,
        title=html.escape(settings["title"]),
        style=style,
        settings=json.dumps(settings, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c"),
        kernels=b64encode(files("regard").joinpath("interop", "page", "browser", "kernels.wasm").read_bytes()).decode(),
        weights=b64encode(weights).decode(),
        script=script,
    )


def _browser(name: str) -> str:
    return _read("interop", "page", "browser", name)


def _read(*path: str) -> str:
    return files("regard").joinpath(*path).read_text(encoding="utf-8")
