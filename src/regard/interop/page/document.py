"""The HTML file: settings as JSON, weights and compiled kernels as base64, and one script.

Its content security policy allows that script, WebAssembly and nothing else: no request leaves the page.
"""

from base64 import b64encode
from importlib.resources import files
from typing import Any

from regard.views.html import STUDIO_TAG, page_part, script_page, studio_frame
from regard.views.script_bundle import bundle

ENTRY = "studio/app/standalone/page.js"


def document(settings: dict[str, Any], weights: bytes) -> str:
    """The page of a model: `settings` as model.js reads them, and the bytes of its weights."""
    kernels = files("regard").joinpath("studio", "app", "standalone", "kernels.wasm").read_bytes()
    return script_page(
        f"{settings['title']} · Regard",
        page_part("page.css") + page_part("studio.css"),
        studio_frame(settings["title"], "runs in this page: nothing is sent"),
        bundle(ENTRY),
        tables={"settings": settings},
        texts={"kernels": b64encode(kernels).decode(), "weights": b64encode(weights).decode()},
        tag=STUDIO_TAG,
        allowed=" 'wasm-unsafe-eval'",
    )
