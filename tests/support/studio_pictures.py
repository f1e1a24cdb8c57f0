"""Write the pictures of docs/studio.md: PYTHONPATH=src:tests python tests/support/studio_pictures.py [NAME...]

Each is a state of the studio in Debian's chromium, mostly with the model of dates that the package has; "animation" is
the animated picture of typing, an output that appears, and an edit. With --png FOLDER they are written there, unpacked.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlencode

import torch
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

import regard
from regard.data.synthetic.dates import dates
from regard.recipe.shipped import find_recipe
from regard.studio.sources import DataSet, StudioSources
from support.browsers import CHROMIUM, settled
from support.captioners import captioner
from support.predictors import language_model
from support.servers import served

DOCS = Path(__file__).parents[2] / "docs"
TEXT = "le 14 juillet 1937"
OFF = [{"edit": "switch_head_off", "map": "decoder 1 cross"}]
PAINTED = [
    {"edit": "paint_row", "map": "decoder 2 cross", "row": 6, "keys": [3], "weights": [1.0]},
    {"edit": "mask_source", "token": 6},
    {"edit": "switch_head_off", "map": "decoder 1 cross", "head": 1},
]
LARGEST = {"studio": 60_000, "animation": 600_000}  # bytes
LONG = "the red car and the dog sat; a dogma, the doghouse of words! " * 17


@dataclass
class State:
    """A state of the studio: a view, the keys of its address, and what is done before the picture is taken."""

    route: str
    parameters: dict[str, Any] = field(default_factory=dict)
    dark: bool = False
    viewport: tuple[int, int] = (1280, 900)
    act: Callable[[Page], object] = lambda page: None


def choose_token(page: Page) -> None:
    page.locator("#output-tokens button").nth(5).click()
    page.wait_for_selector("#alternatives:not([aria-busy])")


def open_long(page: Page) -> None:
    page.locator("#long-text").fill(LONG)
    page.locator("#long-open").click()
    page.wait_for_selector("#long-entropy svg")
    page.locator("#long-row").fill("700")
    page.locator("#long-row").press("Enter")
    page.wait_for_timeout(500)


def wait_for_heads(page: Page) -> None:
    expect(page.locator("#heads-told")).to_contain_text(
        "measured over 40 examples of dates.tsv.", timeout=120_000
    )


ROW = {"model": "dates", "input": TEXT, "map": "decoder 2 cross", "row": 6}
STATES = {
    "type": State("type", ROW),
    "edit": State("type", {**ROW, "edits": json.dumps(PAINTED)}, dark=True),
    "alternatives": State("type", {**ROW, "input": "03/04/05"}, act=choose_token),
    "phone": State("type", {"model": "dates", "input": TEXT}, viewport=(390, 844)),
    "picture": State("type", {"model": "captions", "map": "decoder 2 cross"}, dark=True),
    "beam": State("beam", {"model": "dates", "input": "03/04/05", "beam": 4}),
    "compare": State(
        "compare", {"model": "dates", "input": TEXT, "edits": json.dumps(OFF)}, viewport=(1280, 980)
    ),
    "heads": State(
        "heads",
        {"model": "dates", "input": TEXT, "sort": "alignment"},
        viewport=(1280, 1000),
        act=wait_for_heads,
    ),
    "data": State("data", {"model": "dates", "sort": "entropy", "order": "descending"}),
    "runs": State("runs", dark=True),
    "long": State("long", {"model": "lines", "head": 1}, viewport=(1280, 1000), act=open_long),
    "beam-phone": State(
        "beam", {"model": "dates", "input": "03/04/05", "beam": 3}, dark=True, viewport=(390, 844)
    ),
}


def write_runs(folder: Path) -> dict[str, Path]:
    """Two short runs of the recipe of dates, of different sizes."""
    made = {"dim 32": folder / "small", "dim 64": folder / "large"}
    for name, run in made.items():
        sizes = [f"model.{part}.dim={name.removeprefix('dim ')}" for part in ("encoder", "decoder")]
        steps = [
            "train.max_steps=300",
            "train.warmup_steps=60",
            "train.validate_every=30",
            "train.log_every=3",
        ]
        regard.train(find_recipe("dates"), run, changes=[*sizes, *steps], progress=False)
    return made


def write_data(folder: Path) -> DataSet:
    """Dates, and reference links: every digit of the output belongs to the place of that digit in the source."""
    examples = list(dates("test", 0, 40))
    lines = [("source", "target"), *((each.source, each.target) for each in examples)]
    (folder / "dates.tsv").write_text("".join("\t".join(pair) + "\n" for pair in lines))
    names = {"sources": "14 / 07 / 1937", "targets": "1937 - 07 - 14", "links": "4-0 2-2 0-4"}
    for name, text in names.items():
        (folder / name).write_text(text + "\n")
    return DataSet(
        (str(folder / "dates.tsv"),), alignment=tuple(str(folder / name) for name in names)
    )


def picture_of(browser: Browser, address: str, state: State) -> Image.Image:
    size = {"width": state.viewport[0], "height": state.viewport[1]}
    context = browser.new_context(viewport=size, color_scheme="dark" if state.dark else "light")
    page = context.new_page()
    page.goto(f"{address}#/{state.route}?{urlencode(state.parameters)}")
    settled(page)
    if state.route == "heads":
        expect(page.locator("#heads-told")).not_to_contain_text("more to come", timeout=60_000)
    if state.route == "data":
        expect(page.locator("#data-told")).to_contain_text("40 of 40", timeout=60_000)
    state.act(page)
    page.wait_for_timeout(500)
    made = Image.open(BytesIO(page.screenshot()))
    context.close()
    return made.convert("RGB")


def animation(browser: Browser, address: str) -> tuple[list[Image.Image], list[int]]:
    """Frames, and the milliseconds of each: a date is typed, its output appears, and a head is switched off."""
    page = browser.new_page(viewport={"width": 1240, "height": 700})
    page.goto(
        f"{address}#/type?{urlencode({'model': 'dates', 'input': 'le', 'map': 'decoder 1 cross'})}"
    )
    settled(page)
    frames: list[Image.Image] = []
    times: list[int] = []

    def shoot(milliseconds: int) -> None:
        frames.append(
            Image.open(BytesIO(page.screenshot()))
            .convert("RGB")
            .resize((880, 497), Image.Resampling.LANCZOS)
        )
        times.append(milliseconds)

    field_ = page.locator("#input-0")
    for end in range(3, len(TEXT) + 1):
        field_.fill(TEXT[:end])
        settled(page)
        shoot(140 if end < len(TEXT) else 1400)
    for row in range(10):
        page.locator(f"#asking [data-row='{row}']").hover()
        shoot(260)
    page.locator("#edit-factor").focus()
    page.get_by_role("button", name="Switch off").hover()
    shoot(700)
    page.get_by_role("button", name="Switch off").click()
    settled(page)
    shoot(2600)
    page.get_by_role("button", name="Undo").click()
    settled(page)
    shoot(1200)
    page.close()
    return frames, times


@contextmanager
def studio(*, runs: bool) -> Iterator[str]:
    model = regard.load(files("regard.studio") / "example_model" / "dates", device="cpu")
    torch.manual_seed(0)
    models = {
        "dates": model,
        "captions": captioner("transformer"),
        "lines": language_model("bytes"),
    }
    with TemporaryDirectory() as folder:
        sources = StudioSources(write_data(Path(folder)), write_runs(Path(folder)) if runs else {})
        with served(models, studio=sources) as server:
            yield f"http://127.0.0.1:{server.port}/"


def smallest(image: Image.Image, most: int) -> bytes:
    """As WebP of at most so many bytes, as good as it can be."""
    for quality in range(88, 20, -6):
        content = BytesIO()
        image.save(content, "webp", quality=quality, method=6)
        if content.tell() <= most:
            return content.getvalue()
    raise SystemExit(f"a picture is larger than {most} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--png", type=Path)
    given = parser.parse_args()
    wanted = given.names or [*STATES, "animation"]
    with studio(runs="runs" in wanted) as address, sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name in wanted:
            if name == "animation":
                frames, times = animation(browser, address)
                content = BytesIO()
                frames[0].save(
                    content,
                    "webp",
                    save_all=True,
                    append_images=frames[1:],
                    duration=times,
                    loop=0,
                    quality=60,
                    method=6,
                )
                assert content.tell() <= LARGEST["animation"], content.tell()
                (DOCS / "studio.webp").write_bytes(content.getvalue())
                continue
            image = picture_of(browser, address, STATES[name])
            if given.png:
                image.save(given.png / f"{name}.png")
            else:
                (DOCS / f"studio-{name}.webp").write_bytes(smallest(image, LARGEST["studio"]))
        browser.close()


if __name__ == "__main__":
    main()
