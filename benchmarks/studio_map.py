"""Frames a second while a long map of the studio is panned and zoomed, and the memory of the server.

    .venv/bin/python benchmarks/studio_map.py --tokens 32768 --seconds 10

An untrained language model of two blocks reads a text of so many bytes. A browser opens the map of its last layer; when
the overview is complete, the map is panned and zoomed at every frame, through all levels, and the times between frames
are kept.
"""

import argparse
import asyncio
import resource
import shutil
import socket
import threading
import time
from itertools import pairwise
from statistics import median

import torch
from playwright.sync_api import sync_playwright

import regard
from regard.data.train_tokenizer import train_tokenizer
from regard.inference.predictor import Predictor
from regard.recipe.recipe import Recipe
from regard.serving.http.app import Server
from regard.serving.http.listener import HttpServer
from regard.serving.http.server import server_config
from regard.serving.scheduler.scheduler import Scheduler, SchedulerLimits

DECODER = {
    "kind": "transformer",
    "dim": 64,
    "layers": 2,
    "heads": 4,
    "ffn_dim": 128,
    "positions": "rotary",
}
PATIENCE = 1_200_000  # milliseconds
FRAMES = """async (seconds) => {
  const { view } = await import("./studio/long_view.js");
  const map = view.drawn;
  const times = [];
  const begin = performance.now();
  const frame = (now) => {
    times.push(now);
    const t = (now - begin) / 1000;
    map.zoom(Math.exp(0.06 * Math.cos(2 * Math.PI * t / 5)));
    map.pan(14 * Math.cos(t), 14 * Math.sin(0.7 * t));
    return now - begin < 1000 * seconds ? requestAnimationFrame(frame) : done(times);
  };
  let done;
  const finished = new Promise((resolve) => (done = resolve));
  requestAnimationFrame(frame);
  return finished;
}"""


def language_model() -> Predictor:
    words = train_tokenizer("bytes", ["text"], 300)
    torch.manual_seed(1)
    model = regard.build({"decoder": DECODER, "vocab_size": words.size}).eval()
    recipe = Recipe.of({"data": {"train": "x.txt"}, "model": {"decoder": DECODER}})
    return Predictor(model, recipe, (), words)


def held() -> int:
    """The most memory that the process has held, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--browser", default=shutil.which("chromium"))
    given = parser.parse_args()
    engine = Scheduler(SchedulerLimits())
    engine.load("long", "1", language_model())
    engine.start()
    listening = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(server_config(Server(engine)))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
    thread.start()
    text = (
        "the red car and the dog sat; a dogma, the doghouse of words! " * (given.tokens // 60 + 1)
    )[: given.tokens - 1]
    before = held()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=given.browser, args=["--no-sandbox"]
            )
            page = browser.new_page(viewport={"width": 1200, "height": 900})
            page.goto(f"http://127.0.0.1:{listening.getsockname()[1]}/#/long")
            page.locator("#long-text").fill(text)
            start = time.perf_counter()
            page.locator("#long-open").click()
            page.locator("#long-entropy svg").wait_for(timeout=PATIENCE)
            seconds = time.perf_counter() - start
            print(f"{given.tokens:,} tokens: the map is complete after {seconds:.0f} s", flush=True)
            times = page.evaluate(FRAMES, given.seconds)
            browser.close()
    finally:
        server.should_exit = True
        thread.join()
        engine.stop()
    apart = sorted(b - a for a, b in pairwise(times))
    worst = apart[int(0.95 * len(apart))]
    rate = 1000 * len(apart) / sum(apart)
    print(
        f"{rate:.0f} frames a second; between two frames {median(apart):.1f} ms, 95 % {worst:.1f} ms"
    )
    print(f"server: {held()} MiB at most, {before} before the text was opened")


if __name__ == "__main__":
    main()
