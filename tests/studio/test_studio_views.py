"""The studio's views of heads, data, training runs and long inputs, in a real browser, held to Python's numbers."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

import regard
from regard.data.synthetic.shapes import shapes
from regard.studio import long_inputs
from regard.studio.sources import DataSet, StudioSources
from regard.training.telemetry.log_file import truncate_log
from support.browsers import (
    HOSTILE,
    browser as launched,
    fixed,
    settled,
    strict_pages,
    until,
    violations,
)
from support.captioners import captioner
from support.keyboard import Keyboard
from support.page_blocks import run_by
from support.predictors import language_model, translator
from support.servers import Running, served

pytestmark = pytest.mark.slow

MODELS = {"en-de": translator(), "lines": language_model("bytes")}
PAIRS = [
    (f"the {name} sat on the mat {n}", HOSTILE[n % len(HOSTILE)])
    for n, name in enumerate(["cat", "dog"] * 14)
]
LONG = "the red car and the dog sat; a dogma, the doghouse! " * 7
SIDE = 32


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with launched() as started:
        yield started


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("runs")
    made = {}
    for name, shift in (("one", 0.0), ("<b>two</b>", 0.5)):
        made[name] = folder / name.strip("<b>/")
        made[name].mkdir()
        log(
            made[name],
            *[
                {"event": "train", "step": 10 * n, "loss": 4 + shift - n / 3, "rate": n * 1e-4}
                for n in range(1, 9)
            ],
        )
    log(made["one"], validation(40, 30.0), validation(80, 35.5))
    return made


def validation(step: int, bleu: float) -> dict:
    samples = [{"source": "a cat", "output": HOSTILE[0], "reference": "eine Katze"}]
    heads = [
        {"map": "decoder 1 cross", "head": head, "entropy": 1.0 + head + step / 100}
        for head in (0, 1)
    ]
    return {
        "event": "validation",
        "step": step,
        "loss": 2.0,
        "bleu": bleu,
        "samples": samples,
        "heads": heads,
    }


def log(run, *events: dict) -> None:
    with (run / "log.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


@pytest.fixture(scope="module")
def server(tmp_path_factory, runs) -> Iterator[Running]:
    data = tmp_path_factory.mktemp("data") / "test.tsv"
    data.write_text("".join(f"{a}\t{b}\n" for a, b in [("source", "target"), *PAIRS]))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("SIDE", SIDE), ("GRID", 64)):
            patch.setattr(long_inputs, name, value)
        with served(MODELS, studio=StudioSources(DataSet((str(data),)), runs)) as running:
            yield running


@pytest.fixture
def opened(browser, server) -> Iterator[Callable]:
    with strict_pages(browser) as open_page:

        def at(route: str, *, scheme: str = "light", **parameters: object) -> object:
            path = f"#/{route}?{urlencode(parameters)}"
            return settled(open_page(f"http://127.0.0.1:{server.port}/{path}", color_scheme=scheme))

        yield at


@pytest.fixture(scope="module")
def expect():
    found = pytest.importorskip("playwright.sync_api").expect
    found.set_options(timeout=60_000)
    yield found
    found.set_options(timeout=5_000)


def rows(page: object, table: str) -> list[list[str]]:
    return page.locator(f"{table} tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )


def test_a_view_of_the_docs_is_shown(opened, expect):
    """The module of docs/studio.md, listed in views.js in the place of the view of heads, whose route it has."""
    (block,) = run_by("view")
    views = (Path(regard.__file__).parent / "studio/app/views.js").read_text("utf-8")
    assert views.count("./heads_view.js") == 1
    page = opened("heads", model="en-de", sort="entropy")
    for name, body in (
        ("views", views.replace("./heads_view.js", "./own_view.js")),
        ("own_view", block.code),
    ):
        answer = partial(
            lambda body, route: route.fulfill(body=body, content_type="text/javascript"), body
        )
        page.route(f"**/{name}.js", answer)
    page.reload()
    expect(page.locator("main p").filter(has_text="en-de: entropy")).to_be_visible()
    page.goto(
        re.sub(r"&?sort=entropy", "", page.url)
    )  # the view is told that the address has changed
    expect(page.locator("main p").filter(has_text="en-de: not sorted")).to_be_visible()


def test_examples_are_browsed_and_one_click_leads_to_a_look(opened, expect, server):
    page = opened("data", model="en-de", sort="score", order="descending")
    expect(page.locator("#data-told")).to_have_text(re.compile(r"28 of 28 examples measured"))
    told = server.ask("/studio/data?model=en-de&sort=score&order=descending&count=25")[2][
        "examples"
    ]
    shown = rows(page, "#examples")
    assert [row[0] for row in shown] == [str(each["index"]) for each in told]
    assert [row[4] for row in shown] == [fixed(each["score"]) for each in told]
    assert [row[2] for row in shown] == [each["reference"] for each in told]
    page.locator("#page-after").click()
    expect(settled(page).locator("#examples tbody tr")).to_have_count(3)
    expect(page.locator("#page-after")).to_be_disabled()
    page.locator("#data-sort").select_option("length")
    assert "sort=length" in settled(page).url
    expect(page.locator("#examples tbody tr")).to_have_count(25)
    first = page.locator("#examples tbody th a").first
    text = first.text_content()
    first.click()
    expect(page.locator("#input-0")).to_have_value(text)
    assert (
        settled(page).locator("#said").text_content()
        == regard.look(MODELS["en-de"], text, beam_size=1).output.text
    )
    assert page.evaluate("window.hacked") is None


def test_one_click_leads_from_an_image_of_the_data_to_its_look(browser, expect, tmp_path):
    image, model = pytest.importorskip("PIL.Image"), captioner("transformer")
    for name, scene in zip(("a.png", "b.png"), shapes("test", 0, 2), strict=True):
        image.fromarray(scene.source.draw()).resize((150, 97)).save(tmp_path / name)
    (tmp_path / "test.tsv").write_text("image\ttext\na.png\tred\nb.png\tblue\n")
    data = DataSet((str(tmp_path / "test.tsv"),), ("image", "text"), trust_data_paths=True)
    with (
        served({"captions": model}, studio=StudioSources(data)) as running,
        strict_pages(browser) as open_page,
    ):
        page = open_page(f"http://127.0.0.1:{running.port}/#/data")
        expect(page.locator("#examples img")).to_have_count(2)
        assert violations(settled(page)) == []
        page.locator("#examples a").nth(1).click()
        look = regard.look(model, tmp_path / "b.png", beam_size=1)
        expect(page.locator("#said")).to_have_text(look.output.text)
        best = int(look["decoder 2 cross"].weights().mean(0)[0].argmax())
        columns = look.source.grid[1]
        page.locator("#map").select_option("decoder 2 cross")
        place = f"row {best // columns + 1}, column {best % columns + 1},"
        expect(settled(page).locator("#picture canvas").first).to_have_attribute(
            "aria-label", re.compile(place)
        )


def test_heads_are_sorted_and_grouped_by_what_was_measured(opened, expect, server):
    page = opened("heads", model="en-de", input="the cat sat")
    expect(page.locator("#heads-told")).to_have_text(
        re.compile(r"heads, measured over 28 examples of test.tsv\.")
    )
    told = server.ask("/studio/heads", {"model": "en-de"})[2]
    page.locator("#heads-sort").select_option("induction")
    assert "sort=induction" in settled(page).url
    heading = page.locator("#head-table thead th").all_text_contents()
    shown = rows(page, "#head-table")
    column = heading.index("induction")
    wanted = sorted(
        (head["induction"] for head in told["heads"] if head["induction"] is not None), reverse=True
    )
    assert [row[column] for row in shown if row[column] != "–"] == [
        fixed(value) for value in wanted
    ]
    by_name = {f"{head['map']}, head {head['head']}": head for head in told["heads"]}
    for row in shown:
        assert row[heading.index("entropy")] == fixed(by_name[row[0]]["entropy"])
        assert row[heading.index("ablation")] == fixed(by_name[row[0]]["ablation"])
    page.locator("#heads-sort").select_option("group")
    groups = {head["group"] for head in told["heads"]}
    expect(page.locator(".head-group h3")).to_have_text(
        [f"Group {group}" for group in sorted(groups)]
    )
    expect(page.locator(".cards canvas")).to_have_count(len(told["heads"]))
    link = page.locator(".cards a").first
    assert "map=" in link.get_attribute("href")
    link.click()
    expect(page.locator("#input-0")).to_have_value("the cat sat")


def test_runs_are_drawn_as_they_train(opened, expect, runs):
    page = opened("runs")
    expect(page.locator("#runs-told")).to_have_text("one, <b>two</b>: 80 steps.")
    captions = page.locator("#charts caption")
    expect(captions).to_have_text(["loss", "bleu", "learning rate"])
    loss = {row[0]: row[1:] for row in rows(page, "#charts figure:nth-of-type(1) table")}
    assert loss["one training"] == ["80", f"{4 - 8 / 3:.4g}"]
    assert loss["<b>two</b> training"] == ["80", f"{4.5 - 8 / 3:.4g}"]
    lines = page.locator("#charts figure:nth-of-type(1) .curve").evaluate_all(
        "(all) => all.map((each) => each.classList.value)"
    )
    assert (
        lines
        == [f"curve line-{run} dash-{dash}" for run in (0, 1) for dash in (0, 1)][: len(lines)]
    )
    rates = page.locator("#charts figure:nth-of-type(3)")
    assert rates.locator(".key").evaluate_all("(all) => all.map((each) => each.className)") == [
        "key line-0 dash-0",
        "key line-1 dash-0",
    ]
    assert [row[0] for row in rows(page, "#charts figure:nth-of-type(3) table")] == [
        "one",
        "<b>two</b>",
    ]
    assert rows(page, "#samples table") == [["a cat", HOSTILE[0], "eine Katze"]]
    assert rows(page, "#run-heads table")[1] == ["decoder 1 cross, head 1", "80", "2.8"]
    log(runs["one"], {"event": "train", "step": 90, "loss": 0.25, "rate": 1e-4})
    expect(page.locator("#charts figure:nth-of-type(1) tbody tr").first).to_contain_text("900.25")
    truncate_log(runs["one"], 80)  # the run is resumed from its checkpoint
    expect(page.locator("#charts figure:nth-of-type(1) tbody tr").first).to_contain_text("801.333")
    assert page.evaluate("window.hacked") is None


# Whether the chosen row is framed in the accent's color, which is red rather than blue, and what is above it is not.
MARKED = """([row, rows]) => {
    const canvas = document.getElementById("long-canvas");
    const cell = Math.min(canvas.clientWidth / rows, canvas.clientHeight / rows, 1);
    const copy = new OffscreenCanvas(1, 11).getContext("2d", { willReadFrequently: true });
    copy.drawImage(canvas, 40, Math.round(row * cell) - 10, 1, 11, 0, 0, 1, 11);
    const { data } = copy.getImageData(0, 0, 1, 11);
    return data[40] - data[42] > 60 && data[0] - data[2] < 60;
}"""


DRAWN = """(shares) => {  // whether the map is drawn at these shares of the height
    const canvas = document.getElementById("long-canvas");
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    const at = (y) => copy.getImageData(8, Math.round(y * canvas.height), 1, 1).data.join();
    const background = copy.getImageData(canvas.width - 2, canvas.height - 2, 1, 1).data.join();
    return shares.map((y) => at(y) !== background);
}"""


def test_the_known_part_of_a_long_map_is_drawn_while_the_rest_is_computed(
    opened, expect, monkeypatch
):
    monkeypatch.setattr(
        long_inputs, "GRID", 1024
    )  # more points than the canvas has: all that it shows come from the grid
    monkeypatch.setattr(long_inputs, "STRIP", 1 << 20)
    page, answered, held = opened("long", model="lines"), [], []

    def hold(route: object) -> None:
        answered.append(1)
        held.append(route) if len(answered) > 2 else route.continue_()

    page.route("**/overview*", hold)
    page.locator("#long-text").fill(LONG * 8)
    page.locator("#long-open").click()
    expect(page.locator("#long-entropy")).to_contain_text("Overview: ")
    until(page, f"(rows) => ({DRAWN})(rows)[0]", [0.05, 0.8])
    assert page.evaluate(DRAWN, [0.05, 0.8]) == [True, False]
    while not held:
        page.wait_for_timeout(50)
    held.pop().continue_()
    page.unroute("**/overview*")
    until(page, f"(rows) => ({DRAWN})(rows)[1]", [0.05, 0.8])


def test_a_long_map_is_zoomed_and_its_rows_are_exact(opened, expect):
    page = opened("long", model="lines")
    page.locator("#long-text").fill(LONG)
    page.locator("#long-open").click()
    seen = regard.look(MODELS["lines"], LONG, output="")
    tokens = len(seen.output.read)
    expect(page.locator("#long-told")).to_have_text(f"{tokens} tokens, 2 maps.")
    of = seen["decoder 2 self"]
    page.locator("#long-head").select_option("1")
    page.locator("#long-row").fill("300")
    page.locator("#long-row").press("Enter")
    best = of.weights([300], [1])[0, 0].topk(16)
    expect(page.locator("#long-top caption")).to_contain_text("Row 300")
    expect(page.locator("#long-top tbody td:last-child")).to_have_text(
        [f"{x:.5f}" for x in best.values.tolist()]
    )
    entropies = of.summary(0).entropy[1]
    expect(page.locator("#long-entropy h3")).to_contain_text(" nats")
    shown = page.locator("#long-entropy h3").inner_text()
    mean = float(shown.partition("mean ")[2].partition(" nats")[0])
    assert mean == pytest.approx(float(entropies.mean()), abs=0.002)  # three digits are shown
    canvas = page.locator("#long-canvas")
    until(page, MARKED, [300, tokens])
    canvas.focus()
    expect(page.locator("#long-place")).to_contain_text("1 pixels for each weight")
    for _ in range(4):
        canvas.press("+")
    expect(page.locator("#long-place")).to_contain_text("5 pixels for each weight")
    canvas.press("ArrowDown")
    expect(page.locator("#long-place")).not_to_contain_text("Rows from 0,")
    canvas.press("0")
    expect(page.locator("#long-place")).to_contain_text("Rows from 0, keys from 0")
    canvas.click(position={"x": 5, "y": 5})
    expect(page.locator("#long-top caption")).to_contain_text(re.compile(r"Row \d+ "))
    page.locator("#long-map").select_option("decoder 1 self")
    expect(page.locator("#long-top caption")).to_contain_text("Row 0")


def test_all_views_are_used_by_keys(opened, expect):
    page = opened("data", model="en-de")
    expect(page.locator("#data-told")).to_have_text(re.compile("28 of 28 examples measured"))
    keys = Keyboard(page)
    keys.tab_to("#data-sort").choose("attention entropy")
    keys.tab_to("#data-order").choose("descending")
    keys.tab_to("#page-after").press("Enter")
    assert "sort=entropy&order=descending&first=25" in settled(page).url
    keys.check_focus(
        "#page-after[aria-disabled]"
    )  # there is no further page, and the focus is not lost
    keys.press("Enter")
    expect(page.locator("#examples tbody tr")).to_have_count(3)
    text = page.locator("#examples tbody a").last.text_content()
    keys.tab_to("#examples a", back=True).press("Enter")
    assert settled(page).locator("#input-0").input_value() == text
    keys.tab_to("#views-nav a[href^='#/heads']", back=True).press("Enter")
    expect(page.locator("#heads-told")).to_have_text(re.compile("heads, measured over 28 examples"))
    keys.tab_to("#heads-sort").choose("distance")
    name = page.locator(".cards a").first.locator("span").text_content()
    keys.tab_to(".cards a").press("Enter")
    assert settled(page).locator("#edit-target").text_content().startswith(name)
    keys.tab_to("#views-nav a[href^='#/runs']", back=True).press("Enter")
    keys.tab_to("#runs-measure").choose("evenness")
    assert "measure=evenness" in settled(page).url
    keys.check_focus("#runs-measure")
    keys.tab_to("#model", back=True).choose("lines")
    keys.tab_to("#views-nav a[href^='#/long']", back=True).press("Enter")
    keys.tab_to("#long-text").enter(LONG[:120])
    keys.tab_to("#long-open").press("Enter")
    expect(page.locator("#long-top caption")).to_contain_text("Row 0")
    keys.tab_to("#long-canvas").press("+", "+", "ArrowDown", "Enter")
    expect(page.locator("#long-top caption")).not_to_contain_text("Row 0")
    keys.check_focus("#long-canvas")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(opened, expect, scheme):
    for route, ready in (
        ("data", "#examples tbody tr"),
        ("heads", "#head-table tbody tr"),
        ("runs", "#charts svg"),
    ):
        page = opened(route, scheme=scheme, model="en-de", input="the cat sat")
        expect(page.locator(ready).first).to_be_visible(timeout=60_000)
        assert violations(page) == [], route
    page = opened("long", scheme=scheme, model="lines")
    page.locator("#long-text").fill(LONG[:120])
    page.locator("#long-open").click()
    expect(page.locator("#long-entropy svg")).to_be_visible()
    assert violations(page) == []
