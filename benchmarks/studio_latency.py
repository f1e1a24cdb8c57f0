"""How long the studio takes, in a browser: until it is first painted, and from an edit to its result.

    .venv/bin/python benchmarks/studio_latency.py --rounds 30

The model of dates that the package has, and a model of the sizes of the recipe `translation`, untrained unless a run is
given, each read an input of 50 tokens. An edit switches a head off, each time another one. Its time is from the event
to the first frame after the output, its score and the map that is shown are drawn anew. The other maps and the table of
heads, which is below the fold, follow: the time of "all maps" includes them. An undone edit is one whose result was
shown before. The studio computes an edit before it is made where it is announced: "after pointing" is the time of an
edit whose button is pressed by a pointer that has been over it for a while (--rest milliseconds), "row painted" that
from the release of a bar that was held still for as long, and "token typed" that from Enter, as long after the last
letter. Server and browser share the processor. The exported page, which has no server, is measured alike.
"""

import argparse
import asyncio
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from urllib.parse import urlencode

import torch
from playwright.sync_api import Page, sync_playwright

import regard
from regard.data.train_tokenizer import train_tokenizer
from regard.inference.predictor import Predictor
from regard.recipe.load import read_recipe
from regard.recipe.shipped import find_recipe
from regard.serving.http.app import Server
from regard.serving.http.listener import HttpServer
from regard.serving.http.server import server_config
from regard.serving.scheduler.scheduler import Scheduler, SchedulerLimits

TOKENS = 50
SYLLABLES = [f"{a}{b}{c}" for a in "dklmnrst" for b in "aeiou" for c in ("", "m", "n", "r")]
WORDS = [
    f"{a}{b}{c}"
    for a in "bdfgklmnprst"
    for b in ("ai", "au", "e", "i", "o", "u")
    for c in SYLLABLES
]

CHOOSE = """(number) => {
  const heads = [...document.querySelectorAll("#heads tbody button")];
  heads[number % heads.length].click();
}"""
PRESS = """(name) => [...document.querySelectorAll("#edit button")].find((each) => each.textContent === name).click()"""
# Measures from the next event of a kind until its result is drawn; the times are those of `window.measured`.
MEASURE = """(kind) => {
  const [view, output, heads] = ["view", "output", "heads"].map((id) => document.getElementById(id));
  const changed = (element, what) => new Promise((done) => {
    const seen = new MutationObserver(() => (seen.disconnect(), done()));
    seen.observe(element, what);
  });
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const drawn = changed(output, { childList: true });
  const begun = new Promise((done) => {
    document.addEventListener(kind, () => done(performance.now()), { once: true, capture: true });
  });
  window.measured = begun.then(async (begin) => {
    await drawn;
    await frame();
    const first = performance.now() - begin;
    for (const each of [view, heads]) while (each.hasAttribute("aria-busy")) await changed(each, { attributes: true });
    await frame();
    return [first, performance.now() - begin];
  });
}"""
PAINT = """() => new Promise((done) => {
  const found = () => performance.getEntriesByName("first-contentful-paint")[0]?.startTime;
  const again = () => (found() === undefined ? setTimeout(again, 10) : done(found()));
  again();
})"""


def untrained() -> Predictor:
    """Random weights of the recipe's sizes."""
    recipe = read_recipe(find_recipe("translation"))
    words = train_tokenizer("words", [" ".join(WORDS)], 10_000)
    torch.manual_seed(1)
    table = {**recipe.as_dict()["model"], "source_vocab_size": words.size, "vocab_size": words.size}
    return Predictor(regard.build(table).eval(), recipe, (words,), words).with_decode(
        max_length=TOKENS
    )


WARM = 3  # edits that are not counted
TYPED = ("a", "e", "i", "n", "o", "r", "s", "t")  # tokens of every vocabulary that is measured here


def measure(page: Page, name: str, address: str, rounds: int, rest: int) -> None:
    """Print the times of edits, and of undoing them, and how many of the edits changed the output."""
    page.goto(address)
    page.wait_for_selector("main:not([aria-busy]) #edit button")
    times: dict[str, list[float]] = {}
    changed = 0

    def after(kind: str, what: str, act: Callable[[], object]) -> None:
        """Do something, and keep the time from its event of a kind to its result."""
        page.evaluate(MEASURE, kind)
        act()
        first, last = page.evaluate("window.measured")
        times.setdefault(what, []).append(first)
        if what == "edit":
            times.setdefault("edit, all maps", []).append(last)

    def press(button: str) -> Callable[[], object]:
        return lambda: page.evaluate(PRESS, button)

    def point_and_press() -> None:
        button = page.get_by_role("button", name="Switch off")
        button.hover()
        page.wait_for_timeout(rest)
        button.click()

    for number in range(WARM + rounds):
        page.evaluate(CHOOSE, 7 * number)  # heads of all layers in turn
        after("click", "edit", press("Switch off"))
        changed += number >= WARM and page.locator("#output-tokens :is(.new, .gone)").count() > 0
        after("click", "edit undone", press("Undo"))
        page.evaluate(CHOOSE, 7 * number + 3)  # an edit that was not made before
        page.mouse.move(0, 0)
        after("pointerdown", "edit after pointing", point_and_press)
        after("click", "edit undone", press("Undo"))
        page.locator("#map").select_option(
            "decoder 1 cross"
        )  # each of its rows may attend to all keys
        bars = page.locator("#painter .paint-bar")
        bars.nth(number % bars.count()).scroll_into_view_if_needed()
        box = bars.nth(number % bars.count()).bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 2)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.2, steps=4)
        page.wait_for_timeout(rest)
        after("pointerup", "row painted", page.mouse.up)
        after("click", "edit undone", press("Undo"))
        tokens = page.locator("#source-tokens button")
        tokens.nth(number % (tokens.count() - 1)).click()
        page.keyboard.press("Tab")
        page.locator("#token-text").press_sequentially(TYPED[number % len(TYPED)], delay=rest / 2)
        page.wait_for_timeout(rest)
        after("keydown", "token typed", lambda: page.keyboard.press("Enter"))
        after("click", "edit undone", press("Undo"))
    sizes = [page.locator(f"#{which}-tokens li").count() for which in ("source", "output")]
    for what, found in times.items():
        report(f"{what}, {name}", found[WARM * (4 if what == "edit undone" else 1) :])
    print(
        f"  {changed} of {rounds} edits changed the output; source {sizes[0]} tokens, output {sizes[1]}"
    )


def report(name: str, times: list[float]) -> None:
    print(
        f"{name:42} median {median(times):6.1f} ms, 95 % {quantiles(times, n=20)[-1]:6.1f} ms",
        flush=True,
    )


@contextmanager
def serving(models: dict[str, Predictor]) -> Iterator[str]:
    """The address of a studio of these models, in a thread."""
    engine = Scheduler(SchedulerLimits())
    for name, model in models.items():
        engine.load(name, "1", model)
    engine.start()
    listening = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(server_config(Server(engine)))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()
        engine.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--translation", help="a run or checkpoint, instead of the untrained model")
    parser.add_argument("--text", help="its input")
    parser.add_argument(
        "--rest",
        type=int,
        default=150,
        help="milliseconds from the announcement of an edit until it is made",
    )
    parser.add_argument("--browser", default=shutil.which("chromium"))
    parser.add_argument(
        "--exported",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the exported page too",
    )
    given = parser.parse_args()
    dates = regard.load(files("regard.studio") / "example_model" / "dates", device="cpu")
    inputs = {"dates": "le mercredi 14 septembre de notre an 1937, le soir"[: TOKENS - 1]}
    inputs["translation"] = " ".join(WORDS[:: len(WORDS) // TOKENS][: TOKENS - 1])
    models = {
        "dates": dates,
        "translation": regard.load(given.translation) if given.translation else untrained(),
    }
    inputs["translation"] = given.text or inputs["translation"]
    with (
        TemporaryDirectory() as folder,
        serving(models) as address,
        sync_playwright() as playwright,
    ):
        page_of_dates = Path(folder) / "dates.html"
        places = {"studio": address}
        if given.exported:
            regard.export(dates, "page", page_of_dates)
            places["exported page"] = page_of_dates.as_uri()
        browser = playwright.chromium.launch(executable_path=given.browser, args=["--no-sandbox"])
        for name, place in places.items():
            times = []
            for _ in range(max(3, given.rounds // 3)):
                page = browser.new_context(viewport={"width": 1280, "height": 960}).new_page()
                page.goto(place)
                times.append(page.evaluate(PAINT))
                page.context.close()
            report(f"first contentful paint, {name}", times)
        page = browser.new_page(viewport={"width": 1280, "height": 960})
        for name, text in inputs.items():
            query = urlencode({"model": name, "input": text, "map": "decoder 2 cross", "head": 0})
            measure(page, name, f"{address}#/type?{query}", given.rounds, given.rest)
        if given.exported:
            query = urlencode({"input": inputs["dates"], "map": "decoder 2 cross", "head": 0})
            measure(
                page,
                "dates, exported page",
                f"{places['exported page']}#/type?{query}",
                given.rounds,
                given.rest,
            )
        browser.close()


if __name__ == "__main__":
    main()
