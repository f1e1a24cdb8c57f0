"""Write the pictures of docs/studio.md: PYTHONPATH=src:tests python tests/support/studio_pictures.py

Each is a state of the studio with the model of dates that the package has, in Debian's chromium.
"""

import json
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import sync_playwright

import regard
from support.browsers import CHROMIUM
from support.servers import served

DOCS = Path(__file__).parents[2] / "docs"
TEXT = "le 14 juillet 1937"
OFF = [{"edit": "switch_head_off", "map": "decoder 1 cross"}]
PAINTED = [
    {"edit": "paint_row", "map": "decoder 2 cross", "row": 6, "keys": [3], "weights": [1.0]},
    {"edit": "mask_source", "token": 6},
    {"edit": "switch_head_off", "map": "decoder 1 cross", "head": 1},
]
WIDE, PHONE = {"width": 1280, "height": 960}, {"width": 390, "height": 844}
DARK = {"color_scheme": "dark"}
STATES: dict[str, tuple[str, dict, dict]] = {  # route, parameters, options of the browser
    "type": ("type", {"input": TEXT, "map": "decoder 2 cross", "row": 6}, {}),
    "edit": ("type", {"input": TEXT, "edits": json.dumps(PAINTED), "map": "decoder 2 cross", "row": 6}, DARK),
    "phone": ("type", {"input": TEXT}, {"viewport": PHONE}),
    "beam": ("beam", {"input": "03/04/05", "beam": 4}, {}),
    "compare": ("compare", {"input": TEXT, "edits": json.dumps(OFF)}, {}),
}


def main() -> None:
    model = regard.load(files("regard.server") / "studio_model" / "dates", device="cpu")
    with served({"dates": model}) as server, sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, (route, parameters, options) in STATES.items():
            page = browser.new_context(**{"viewport": WIDE, **options}).new_page()
            page.goto(f"http://127.0.0.1:{server.port}/#/{route}?{urlencode(parameters)}")
            page.wait_for_selector("main tbody tr")
            page.wait_for_selector("main:not([aria-busy])")
            page.wait_for_timeout(500)
            picture = Image.open(BytesIO(page.screenshot()))
            picture.convert("RGB").save(DOCS / f"studio-{name}.webp", quality=80, method=6)
        browser.close()


if __name__ == "__main__":
    main()
