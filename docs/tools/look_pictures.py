"""Write the pictures of the page of `regard look` in docs/interpret.md: python docs/tools/look_pictures.py [FOLDER]

The model of dates is the package's; the captioner and its scene are those of docs/gallery.md, in build/gallery (or in
FOLDER), where docs/tools/gallery.py trains it. Needs Playwright and chromium.
"""

import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from importlib.resources import files
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

import regard

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "build" / "gallery"
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
WIDTH, LARGEST = 760, 60_000  # pixels, and bytes


@dataclass
class Page:
    """A page of `regard look`: a model, its input, and the rows to point at; the first of two is pinned."""

    model: Path
    source: str
    map: str
    rows: tuple[str, ...]
    height: int
    head: str = ""  # the mean of all
    dark: bool = False


def pages(gallery: Path) -> dict[str, Page]:
    dates = Path(str(files("regard.studio") / "example_model" / "dates"))
    return {
        "look-text": Page(dates, "Thursday, 2 March 1972", "decoder 2 cross", ("3",), 1395, "head 2", dark=True),
        "look-picture": Page(
            gallery / "runs" / "caption-vit", str(gallery / "photos" / "valid-1.png"),
            "decoder 1 cross", ("left", "blue"), 1140,
        ),
    }  # fmt: skip


def picture(browser: Browser, page: Page) -> bytes:
    look = regard.look(regard.load(page.model, device="cpu"), page.source)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "look.html"
        file.write_text(look.to_html(), "utf-8")
        size = {"width": WIDTH, "height": page.height}
        context = browser.new_context(viewport=size, color_scheme="dark" if page.dark else "light")
        shown = context.new_page()
        shown.goto(file.as_uri())
        shown.select_option("#map", label=page.map)
        if page.head:
            shown.select_option("#head", label=page.head)
        *pinned, last = (
            shown.locator("#asking > span", has_text=re.compile(f"^{row}$")).first
            for row in page.rows
        )
        for row in pinned:
            row.click()
        last.hover()
        shown.wait_for_timeout(300)
        image = Image.open(BytesIO(shown.screenshot())).convert("RGB")
        context.close()
    for quality in range(88, 20, -6):
        content = BytesIO()
        image.save(content, "webp", quality=quality, method=6)
        if content.tell() <= LARGEST:
            break
    return content.getvalue()


def main(gallery: Path = GALLERY) -> None:
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, page in pages(gallery).items():
            (ROOT / "docs" / f"{name}.webp").write_bytes(picture(browser, page))
        browser.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
